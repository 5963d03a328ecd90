"""`tpu tensorboard`: the folder of a run's curves, and the program that shows them."""

import shlex
from pathlib import Path

import pytest

from cli.__main__ import main
from infra.layers.queue.jobs.submission import curves
from tests.infra.layers.queue.test_submission import settings
from workload.runs import location

BUCKET = {"storage:bucketName": "my-project-checkpoints"}


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.tensorboard.from_file", lambda *_: settings(**BUCKET))


def test_curves_are_looked_for_where_the_trainer_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tensorboard/` of the run, as tests/workload/test_slice.py finds it."""
    monkeypatch.setenv("CHECKPOINT_BUCKET", "my-project-checkpoints")
    url, problems = location.of_run("runs", "tiny", None)
    assert not problems
    assert curves(settings(**BUCKET), "tiny") == f"{url}/tensorboard"
    assert url.startswith(f"{curves(settings(**BUCKET))}/")


@pytest.mark.parametrize("run", ["gs://my-project-checkpoints/runs/tiny", "../tiny", "Tiny"])
def test_a_name_that_no_run_has_is_refused(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tensorboard", "dev", run]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"RUN: {run} is no name of a run" in shown.err
    assert "fix: a name that tpu runs dev lists" in shown.err


def test_tensorboard_is_started_on_the_bucket_or_named_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["tensorboard", "dev", "tiny"]) == 1
    shown = capfd.readouterr()
    line = "tensorboard --logdir gs://my-project-checkpoints/runs/tiny/tensorboard --port 6006"
    assert shown.out.strip() == line
    assert "fix: pip install tensorboard" in shown.err
    started: list[list[str]] = []
    (tmp_path / "tensorboard").write_text("#!/bin/sh\n")
    (tmp_path / "tensorboard").chmod(0o755)
    monkeypatch.setattr("os.execvp", lambda program, words: started.append([program, *words[1:]]) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["tensorboard", "dev", "tiny"])
    assert started == [shlex.split(line)]
