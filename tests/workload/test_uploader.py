"""The trainer's process that uploads curves: what it is started with, and how it ends."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_S, until
from workload.errors import ConfigError, HopelessError, OutageError, TakenError
from workload.train import config
from workload.train.config import ObserveConfig
from workload.train.uploader import Uploader

BOARD = "projects/p/locations/us-east5/tensorboards/1"


@pytest.fixture(name="log")
def _log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Log of the process's arguments and of its end, which takes `$TAKES` seconds."""
    program, log = tmp_path / "python", tmp_path / "log"
    log.touch()
    program.write_text(
        f"""#!{sys.executable}
import os, sys, time
print(*sys.argv[1:], file=open({str(log)!r}, "a"))
sys.stdin.read()
time.sleep(float(os.environ.get("TAKES", "0")))
if "KILLED" in os.environ:
    os.kill(os.getpid(), 9)
print("ended", file=open({str(log)!r}, "a"))
"""
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return log


def started(log: Path) -> str:
    while not log.read_text():
        pass
    return log.read_text().strip()


def test_it_uploads_the_run_and_has_uploaded_the_last_points_when_training_ends(log: Path) -> None:
    with Uploader("gs://b/runs/tiny", ObserveConfig(tensorboard=BOARD, experiment="vision"), HANG_S):
        line = started(log)
    assert line.split() == [
        "-m", "workload", "upload-curves", "gs://b/runs/tiny",
        "--to", BOARD, "--experiment", "vision", "--with-parent",
    ]  # fmt: skip
    assert log.read_text().splitlines()[1:] == ["ended"]


@pytest.mark.parametrize(
    ("environment", "offline", "reason"),
    [
        ({"WANDB_API_KEY": "secret"}, False, ""),
        ({"WANDB_API_KEY": "secret", "WANDB_MODE": "offline"}, True, "$WANDB_MODE is offline"),
        ({"WANDB_API_KEY": "secret", "WANDB_MODE": "dryrun"}, True, "$WANDB_MODE is dryrun"),
        ({"WANDB_API_KEY": "secret", "WANDB_MODE": "online"}, False, ""),
        ({}, True, "there is no $WANDB_API_KEY"),
        ({"WANDB_API_KEY": ""}, True, "there is no $WANDB_API_KEY"),
    ],
)
def test_with_a_key_of_wandb_the_run_is_sent_else_its_file_is_kept(
    environment: dict[str, str], offline: bool, reason: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "gs://b/runs/tiny"
    with Uploader(url, ObserveConfig(wandb="team/vision"), HANG_S, environment):
        line = started(log)
    kept = ["--offline", f"{url}/wandb"] if offline else []
    assert line.split() == [
        "-m", "workload", "upload-curves", url, "--wandb", "team/vision", *kept, "--with-parent",
    ]  # fmt: skip
    message = [
        f"curves: {reason}: nothing is sent to W&B; this start's end writes its file into {url}/wandb",
        f"    later: workload upload-curves {url} --wandb team/vision --once",
    ]
    assert capsys.readouterr().out.splitlines() == (message if offline else [])


def test_with_wandb_disabled_there_is_no_view_of_it(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"WANDB_API_KEY": "secret", "WANDB_MODE": "disabled"}
    with Uploader("gs://b/runs/tiny", ObserveConfig(wandb="vision"), HANG_S, environment):
        pass
    assert not log.read_text()
    assert capsys.readouterr().out == "curves: $WANDB_MODE is disabled: nothing is sent to W&B\n"


def test_each_view_has_a_process(log: Path) -> None:
    with Uploader("gs://b/runs/tiny", ObserveConfig(tensorboard=BOARD, wandb="vision"), HANG_S, {}):
        until(lambda: len(log.read_text().splitlines()) == 2)
    assert log.read_text().splitlines()[2:] == ["ended", "ended"]


def test_the_trainer_keeps_its_own_signals(log: Path) -> None:
    with Uploader("gs://b/runs/tiny", ObserveConfig(tensorboard=BOARD), HANG_S):
        started(log)
    assert not {signal.SIGTERM, signal.SIGINT} & signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_one_that_was_killed_is_reported(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KILLED", "1")
    with Uploader("gs://b/runs/tiny", ObserveConfig(tensorboard=BOARD), HANG_S):
        started(log)
    assert capsys.readouterr().out == "curves: the last points weren't uploaded: signal 9\n"


def test_without_a_tensorboard_nothing_is_started(log: Path) -> None:
    with Uploader("gs://b/runs/tiny", ObserveConfig()):
        pass
    assert not log.read_text()


def test_one_that_cant_be_started_is_reported(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(log.with_name("absent")))
    with Uploader("gs://b/runs/tiny", ObserveConfig(tensorboard=BOARD)):
        pass
    assert "curves: not uploaded: No such file" in capsys.readouterr().out


def test_one_that_takes_too_long_doesnt_hold_the_trainer_up(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(os.environ, "TAKES", "5")
    with Uploader("gs://b/runs/tiny", ObserveConfig(tensorboard=BOARD), 0.2):
        started(log)
    assert "weren't uploaded within 0.2 s" in capsys.readouterr().out
    assert "ended" not in log.read_text()


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (RuntimeError(), False),
        (OutageError(), False),
        (TakenError(), False),
        (HopelessError(), True),
        (ConfigError("", []), True),
    ],
)
def test_a_trainer_waits_after_a_failure_that_no_start_follows(
    error: Exception, waits: bool, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "TAKES", "1")

    def train() -> None:
        with Uploader("gs://b/runs/tiny", ObserveConfig(tensorboard=BOARD), HANG_S):
            started(log)
            raise error

    with pytest.raises(type(error)):
        train()
    assert ("ended" in log.read_text()) == waits


def test_names_that_vertex_doesnt_have_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError) as caught:
        config.load("tiny.toml", ["observe.tensorboard=boards/1", "observe.experiment=My Team"])
    assert {problem.path for problem in caught.value.problems} == {
        "observe.tensorboard",
        "observe.experiment",
    }
