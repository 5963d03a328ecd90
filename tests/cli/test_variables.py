"""`--env` and `--secret` of `tpu run`: what a record holds, and what is refused before anything."""

import json
from pathlib import Path

import pytest

from cli import run
from infra.errors import CommandError, Problem
from tests.cli.call import call
from tests.cli.test_run import Published, _published, _script  # noqa: F401
from tests.fleet.world import Cloud, _world  # noqa: F401


def test_variables_are_the_slices_and_others_are_another_program(
    script: Path, published: Published, world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.variables, "problems", lambda *_: iter(()))
    line = ["dev", str(script), "--slice", "v6e-16", "--name", "own", "--yes", "--detach"]
    assert call(run.run, [*line, "--env", "A=1", "--secret", "hf-token"]) == 0
    (record,) = [json.loads(text) for text, _ in world.objects.values() if '"own"' in text]
    assert (record["env"], record["secrets"]) == ({"A": "1"}, ["hf-token"])
    for words in (["--env", "A=2", "--secret", "hf-token"], ["--env", "A=1"]):
        with pytest.raises(CommandError.__base__, match="this one is another program"):
            call(run.run, [*line, *words])
    assert len(published.targets) == 1


@pytest.mark.parametrize(("words", "message"), [
    (["--env", "A"], "--env = 'A': NAME=VALUE\n    fix: write e.g. A=1"),
    (["--env", "A=1", "--env", "A=2"], '"A" twice'),
    (["--env", "TPU_NAME=x"], "none that hosts set"),
    (["--env", "A=x\ny"], "a line of printable text"),
    (["--env", f"A={'x' * 1001}"], "at most 1000 characters"),
    (["--env", f"HF_TOKEN=hf_{'x' * 34}"], "--env.HF_TOKEN = a value that isn't printed"),
    (["--env", "HF_TOKEN=x", "--secret", "hf-token"], '"HF_TOKEN" twice'),
    (["--secret", "1=x"], "[VARIABLE=]NAME[@VERSION]"),
    ([word for i in range(65) for word in ("--env", f"A{i}=1")], "65 variables: 64 at most"),
])  # fmt: skip
def test_variables_that_no_host_takes_are_refused_before_anything(
    words: list[str], message: str, script: Path, published: Published, world: Cloud
) -> None:
    with pytest.raises(CommandError) as refused:
        call(run.run, ["dev", str(script), "--slice", "v6e-16", "--yes", *words])
    assert message in str(refused.value)
    assert "hf_x" not in str(refused.value)
    assert (published.targets, world.requests, world.objects) == ([], [], {})


def test_a_secret_that_the_hosts_may_not_read_is_refused_before_anything_is_published(
    script: Path, published: Published, world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Problem("--secret", '"hf-token"', "must be readable", "grant it")
    monkeypatch.setattr(run.variables, "problems", lambda *_: iter([wrong]))
    with pytest.raises(CommandError, match="must be readable"):
        call(
            run.run,
            ["dev", str(script), "--slice", "v6e-16", "--name", "own", "--yes", "--secret", "hf-token"],
        )
    assert (published.targets, world.objects) == ([], {})
