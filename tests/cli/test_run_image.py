"""`tpu run --image`: a script or a command in a container image of one's own."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli import run
from cli.user_code import read_program
from infra.errors import CommandError
from infra.publish.environment import Target
from tests.cli.call import call
from tests.cli.test_run import INLINE, Published, _published, _script  # noqa: F401
from tests.fleet.world import Cloud, _world  # noqa: F401

IMAGE = f"us-east5-docker.pkg.dev/my-project/images/my_tool@sha256:{'ab' * 32}"


@pytest.fixture(name="pullable")
def _pullable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.images, "problems", lambda *_: iter(()))


@pytest.mark.usefixtures("pullable")
def test_a_command_of_an_image_runs_without_a_script_and_is_another_program_with_another_image(
    published: Published, world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    targets: list[Target] = []

    def publish(target: Target, *_: Any, **__: Any) -> Any:
        targets.append(target)
        return SimpleNamespace(bundle=SimpleNamespace(id="1" * 64))

    monkeypatch.setattr(run, "publish", publish)
    line = ["dev", "--image", IMAGE, "--slice", "v6e-1", "--detach", "--yes"]
    assert call(run.run, [*line, "--", "python", "-m", "tool"]) == 0
    assert targets[0].code is None, "nothing is uploaded"
    (record,) = [json.loads(text) for text, _ in world.objects.values() if '"image"' in text]
    assert (record["name"], record["image"], record["run"]) == ("my-tool", IMAGE, "python -m tool")
    assert f"image     {IMAGE}" in capsys.readouterr().out
    line[2] = IMAGE.replace("ab", "cd")
    with pytest.raises(CommandError.__base__, match="this one is another program"):
        call(run.run, [*line, "--", "python", "-m", "tool"])


@pytest.mark.usefixtures("pullable")
@pytest.mark.parametrize(("words", "message"), [
    (["--image", IMAGE.partition("@")[0] + ":latest"], "--image = .*must be an image with its digest"),
    (["--image", f"docker.io/library/python@sha256:{'0' * 64}"], "reach Google's registries alone"),
    (["--image", IMAGE, "--requirements", "x.txt"], "an image has packages of its own"),
])  # fmt: skip
def test_an_image_that_no_host_runs_is_refused_before_anything(
    words: list[str], message: str, script: Path, published: Published, world: Cloud
) -> None:
    with pytest.raises(CommandError, match=message):
        call(run.run, ["dev", str(script), "--slice", "v6e-1", "--name", "own", "--yes", *words])
    assert (published.targets, world.requests, world.objects) == ([], [], {})


@pytest.mark.usefixtures("pullable")
def test_a_command_that_hosts_dont_start_is_refused_with_one_that_they_do(published: Published) -> None:
    with pytest.raises(CommandError, match=r"fix: -- /usr/bin/env torchrun x\.py"):
        call(run.run, ["dev", "--image", IMAGE, "--slice", "v6e-1", "--yes", "--", "torchrun", "x.py"])


def test_an_image_takes_no_packages_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(INLINE)
    (tmp_path / "requirements.txt").write_text("einops\n")
    program = read_program(tmp_path, None, None, [], tmp_path / "work", IMAGE)
    assert (program.requirements, program.run) == (None, "python train.py")
    assert "packages: the image's own" in program.reason
