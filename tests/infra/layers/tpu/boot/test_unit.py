"""A slice's `run` as a systemd unit."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from workload.host.__main__ import main
from workload.host.errors import RunError
from workload.host.unit import job_unit


def command_of(run: str) -> str:
    lines = [line for line in job_unit(run).splitlines() if line.startswith("ExecStart=")]
    assert len(lines) == 1
    return lines[0].removeprefix("ExecStart=")


@pytest.mark.parametrize(
    ("run", "command"),
    [
        ("train tiny.toml", '/opt/tpu/venv/bin/workload "train" "tiny.toml"'),
        ("train", '/opt/tpu/venv/bin/workload "train"'),
        ("/opt/training/start --steps=5", '/opt/training/start "--steps=5"'),
        ("train 'two words'", '/opt/tpu/venv/bin/workload "train" "two words"'),
        ("train '50% of $HOME'", '/opt/tpu/venv/bin/workload "train" "50%% of $$HOME"'),
        (
            r"""train 'say "hi"' back\\slash""",
            r'/opt/tpu/venv/bin/workload "train" "say \"hi\"" "back\\slash"',
        ),
        ("./start.sh --fast", '/opt/training/start.sh "--fast"'),
        ("python train.py", '/opt/tpu/venv/bin/python "train.py"'),
        ("bash -c 'exit $X'", '/bin/bash "-c" "exit $$X"'),
        ("train ''", '/opt/tpu/venv/bin/workload "train" ""'),
        ("train ; rm -rf /", '/opt/tpu/venv/bin/workload "train" ";" "rm" "-rf" "/"'),
        ("train -- @cmd +x", '/opt/tpu/venv/bin/workload "train" "--" "@cmd" "+x"'),
    ],
)
def test_words_reach_the_program_as_they_are(run: str, command: str) -> None:
    assert command_of(run) == command


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("train 'open", "close the quote"),
        ("Train x", "begin with a subcommand"),
        ("start", "begin with a subcommand"),
        ("./../start", "begin with a subcommand"),
        ("/opt/training/../start", "begin with a subcommand"),
        ("FOO=1 train tiny.toml", "begin with a subcommand"),
        ("train \u2028 tiny.toml", "control character"),
        ("train\ttiny.toml", "control character"),
        (f"train {'x' * 2000}", "2000 at most"),
        ("-rf /", "begin with a subcommand"),
        ("$(reboot)", "begin with a subcommand"),
        ("/bin/sh;reboot", "begin with a subcommand"),
        ("/opt/%n/start", "begin with a subcommand"),
        ("train 'a\nExecStartPre=/bin/reboot'", "control character"),
        ("train \x1b[2J", "control character"),
    ],
)
def test_what_can_not_be_a_service_is_refused(run: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        job_unit(run)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "tpu-job.service"
    # Its programs are there on hosts only.
    unit.write_text(job_unit("/bin/true '%n' '$X'").replace("/opt/tpu/venv/bin/python", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_job_is_stopped_within_the_notice_of_a_preemption() -> None:
    lines = job_unit("train").splitlines()
    assert "KillSignal=SIGTERM" in lines
    assert "TimeoutStopSec=28" in lines
    assert (
        "ExecStartPre=/opt/tpu/venv/bin/python -m workload.host barrier --phase job"
        " --environment /run/tpu-job/environment"
    ) in lines


def test_settings_that_cannot_work_are_not_started_again() -> None:
    lines = job_unit("train x.toml").splitlines()
    assert {"Restart=on-failure", "RestartSec=5", "RestartPreventExitStatus=2"} <= set(lines)
    assert {"StartLimitIntervalSec=3600", "StartLimitBurst=20"} <= set(lines)


def test_what_the_barrier_finds_out_comes_after_what_the_boot_knew() -> None:
    """The later file wins, and a slice alone has none."""
    lines = job_unit("train").splitlines()
    files = [line for line in lines if line.startswith("EnvironmentFile=")]
    assert files == ["EnvironmentFile=/etc/tpu/environment", "EnvironmentFile=-/run/tpu-job/environment"]
    assert "RuntimeDirectory=tpu-job" in lines


@pytest.mark.parametrize(
    ("run", "status", "message"), [("train", 0, "[Service]"), ("Train", 1, "tpu:slices run:")]
)
def test_the_command_line(
    run: str, status: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(run))
    assert main(["unit"]) == status
    assert message in "".join(capsys.readouterr())


def test_variables_are_the_services_and_secrets_are_read_before_its_program() -> None:
    lines = job_unit("python x.py", {"A": 'a "b" \\ 50% $HOME', "TPU_SECRETS": "hf@latest:HF"}).splitlines()
    assert 'Environment="A=a \\"b\\" \\\\ 50%% $HOME"' in lines
    assert 'Environment="TPU_SECRETS=hf@latest:HF"' in lines
    (command,) = [line for line in lines if line.startswith("ExecStart=")]
    assert command == 'ExecStart=/opt/tpu/venv/bin/workload secrets -- /opt/tpu/venv/bin/python "x.py"'
    assert job_unit("python x.py", {"A": "1"}).count("workload secrets") == 0


def test_the_boot_passes_the_variables_of_the_metadata_a_line_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("python x.py"))
    assert main(["unit", "--variables", "A=1=2\nB=\u2028"]) == 0
    assert 'Environment="A=1=2"\nEnvironment="B=\u2028"\n' in capsys.readouterr().out
