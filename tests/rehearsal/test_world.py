"""Worlds for real: what works inside, that nothing leads out, and that nothing is left of them afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.__main__ import main
from rehearsal.world import person, sweep
from rehearsal.world.layout import Layout, State
from tests.limits import HANG_S

pytestmark = [pytest.mark.root, pytest.mark.slow]
COMMAND = [sys.executable, "-m", "cli", "rehearsal"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, for the control socket's sake; whatever a failed test left is taken away."""
    with tempfile.TemporaryDirectory(prefix="world-") as name:
        root = Path(name) / "w"
        yield root
        if root.exists():
            subprocess.run([*COMMAND, "down", "--dir", str(root)], capture_output=True, check=False)


def rehearsal(*words: str, timeout_s: float = HANG_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
    )


def traces(root: Path) -> list[str]:
    """Return all leftovers of a world: processes, mounts, loop devices, control groups, files."""
    result = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(root) in words and str(os.getpid()) != entry.parent.name and "rehearsal" in words:
            result.append(f"process {entry.parent.name}: {words}")
    result += [
        f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(root) in line
    ]
    result += [f"loop device {device}" for device in sweep.loop_devices(root)]
    group = Layout(root).cgroup_name
    result += [f"control group {m / group}" for m in sweep.cgroup_mounts() if (m / group).exists()]
    if root.exists():
        result.append(f"folder {root}")
    return result


def gone(root: Path, within_s: float = HANG_S) -> list[str]:
    """Return the leftovers after a while; empty is clean."""
    end = time.monotonic() + within_s
    while (left := traces(root)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def _as_in_front() -> None:
    """Tests that a shell started in the background would hand on an ignored SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start_shell(root: Path, line: str = "sleep 300") -> subprocess.Popen[bytes]:
    """A fresh world with a command running inside, in a process group of its own as a terminal has it."""
    child = subprocess.Popen(
        [*COMMAND, "shell", "--dir", str(root), "-c", line],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_as_in_front,
    )
    end = time.monotonic() + HANG_S
    while True:
        state = State.load(Layout(root).state)
        if state and state.alive:
            return child
        assert child.poll() is None, "the world didn't come up"
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_world_is_real_inside_and_closed_to_the_outside(folder: Path) -> None:
    settings = Path("Pulumi.dev.yaml").read_bytes()
    made = rehearsal("up", "--dir", str(folder))
    assert made.returncode == 0, made.stdout + made.stderr

    status = rehearsal("status", "--dir", str(folder))
    assert status.returncode == 0, status.stderr
    assert "no TPU nodes" in status.stdout
    assert "0 refused" in status.stdout

    # Google's name, TLS that the system's trust store accepts, and an answer in Google's form; a login in the
    # files that Google's own library looks for; the fleet's way to a host and the control socket, as in
    # docs/concepts/rehearsal.md; no way out; the user's own files stay.
    login = (
        "import google.auth, google.auth.transport.requests as t; c, p = google.auth.default(); "
        "c.refresh(t.Request()); print(p, bool(c.token))"
    )
    control, *_ = re.findall(
        r"^    (curl (?:.+\\\n)*.+)$", Path("docs/concepts/rehearsal.md").read_text("utf-8"), re.MULTILINE
    )
    lines = [
        "curl -sS https://storage.googleapis.com/storage/v1/b | tr -d '\\n'; echo",
        f'python -c "{login}"',
        "grep fleet:ssh Pulumi.dev.yaml; echo $TPU_LOCK",
        f"{control}; echo",
        "ip route show default; ip -br link | grep -v -E '^(lo|tpu0) '; getent hosts example.com",
        "curl -sS -o /dev/null --connect-timeout 3 https://1.1.1.1 || echo fenced",
        "echo 'config: {}' > Pulumi.dev.yaml; echo $PULUMI_BACKEND_URL; exit 7",
    ]
    output = rehearsal("shell", "--dir", str(folder), "-c", "\n".join(lines))
    assert output.returncode == 7, output.stderr
    refused, who, ssh, lock, unknown, *rest = output.stdout.splitlines()
    assert json.loads(refused)["error"]["code"] == 401
    assert (who, ssh, lock) == ("my-project True", f"  fleet:ssh: {person.SSH}", "cpu")
    assert json.loads(unknown) == {"error": "The resource 'tpu-dev' was not found"}
    assert rest == ["fenced", f"file://{folder}/stacks"]
    assert Path("Pulumi.dev.yaml").read_bytes() == settings

    # Nobody but the project's owner may create a secret. gcloud is in no package registry.
    create = (
        "gcloud services enable secretmanager.googleapis.com || exit 1\n"
        "until printf %s VALUE | gcloud secrets create hf-token --data-file=-; do sleep 1; done"  # API lag
    )
    for account, status in (("ml-engineer", 1), ("owner", 0)) if shutil.which("gcloud") else ():
        result = rehearsal("shell", "--dir", str(folder), "--as", account, "-c", create)
        assert result.returncode == status, result.stderr

    again = rehearsal("up", "--dir", str(folder))
    assert again.returncode == 3
    assert "is up" in again.stderr
    ended = rehearsal("down", "--dir", str(folder))
    assert ended.returncode == 0, ended.stderr
    assert gone(folder) == []


# SIGTERM and SIGINT: see the scenario that is interrupted.
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGHUP, marks=pytest.mark.prove)])
def test_the_command_that_owns_a_world_dies(folder: Path, number: signal.Signals) -> None:
    child = start_shell(folder)
    os.kill(child.pid, number)
    child.wait(HANG_S)
    assert gone(folder) == []


@pytest.mark.prove
@pytest.mark.parametrize("after_s", [0.5, 1.3])
def test_a_world_that_is_still_being_made(folder: Path, after_s: float) -> None:
    child = subprocess.Popen(
        [*COMMAND, "shell", "--dir", str(folder), "-c", "sleep 300"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(after_s)
    child.send_signal(signal.SIGTERM)
    child.wait(HANG_S)
    assert gone(folder) == []


@pytest.mark.prove
def test_impatience_while_it_cleans_up_leaves_nothing_either(folder: Path) -> None:
    child = start_shell(folder)
    for _ in range(20):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGINT)
        time.sleep(0.05)
    assert child.wait(HANG_S) == 130
    assert gone(folder) == []


@pytest.mark.parametrize(
    "to_all", [True, pytest.param(False, marks=pytest.mark.prove)], ids=["Ctrl+C", "SIGTERM"]
)
def test_a_scenario_that_is_interrupted_still_writes_its_report(
    folder: Path, tmp_path: Path, to_all: bool
) -> None:
    scenario = tmp_path / "sleepy.py"
    scenario.write_text(
        '"""Sleep."""\n\n'
        "from rehearsal.scenario import steps as step\n"
        "from rehearsal.scenario.scenario import Scenario\n\n"
        'SCENARIO = Scenario(steps=(step.command("sleep 100"),))\n'
    )
    report = tmp_path / "report"
    command = [*COMMAND, "run", str(scenario), "--dir", str(folder), "--report", str(report)]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, start_new_session=True, preexec_fn=_as_in_front
    )
    end = time.monotonic() + HANG_S
    while not list(report.glob("logs/*")):
        assert child.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT) if to_all else child.terminate()
    assert child.wait(HANG_S) == 130
    assert json.loads((report / "record.json").read_text())["verdict"] == "interrupted"
    assert (report / "index.html").exists()
    assert gone(folder) == []


@pytest.mark.prove
@pytest.mark.parametrize("victim", ["supervisor_pid", "init_pid"])
def test_the_kernel_ends_a_world_whose_supervisor_or_init_dies(folder: Path, victim: str) -> None:
    child = start_shell(folder)
    state = State.load(Layout(folder).state)
    assert state is not None
    os.kill(getattr(state, victim), signal.SIGKILL)
    child.wait(HANG_S)
    assert gone(folder) == []


def test_down_sweeps_a_kept_world_that_was_killed_and_whose_state_cannot_be_read(folder: Path) -> None:
    assert rehearsal("up", "--dir", str(folder)).returncode == 0
    state = State.load(Layout(folder).state)
    assert state is not None
    os.kill(state.supervisor_pid, signal.SIGKILL)
    status = rehearsal("status", "--dir", str(folder))
    assert status.returncode == 3
    assert "no world is up" in status.stderr
    Layout(folder).state.write_text("[")
    status = rehearsal("status", "--dir", str(folder))
    assert status.returncode == 3
    assert f"fix: tpu rehearsal down --dir {folder}" in status.stderr
    assert rehearsal("down", "--dir", str(folder)).returncode == 0
    assert gone(folder) == []


@pytest.mark.prove
def test_down_ends_a_living_world_whose_state_cannot_be_read(folder: Path) -> None:
    assert rehearsal("up", "--dir", str(folder)).returncode == 0
    Layout(folder).state.write_text("[")
    assert rehearsal("down", "--dir", str(folder)).returncode == 0
    assert gone(folder) == []


def test_two_commands_do_not_share_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    Layout(folder).marker.touch()
    with subprocess.Popen(
        ["flock", "--no-fork", folder, "sh", "-c", "echo; exec sleep 600"], stdout=-1
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        for command in ("up", "down"):
            assert main(["rehearsal", command, "--dir", str(folder)]) == 3
            assert "another command is at work" in capsys.readouterr().err
        other.kill()
    assert main(["rehearsal", "down", "--dir", str(folder)]) == 0
    assert traces(folder) == []


@pytest.mark.prove
def test_down_ends_the_world_of_a_shell_and_the_folder_is_free_again(folder: Path) -> None:
    child = start_shell(folder)
    assert rehearsal("down", "--dir", str(folder)).returncode == 0
    child.wait(HANG_S)
    assert gone(folder) == []
    Layout(folder).claim()
    Layout(folder).release()
    folder.rmdir()


def test_a_sweep_spares_whom_it_cannot_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path / "w")
    group = tmp_path / layout.cgroup_name
    group.mkdir()
    (group / "cgroup.procs").write_text("0\n7\n")
    killed: list[int] = []
    monkeypatch.setattr(sweep, "cgroup_mounts", lambda: iter([tmp_path]))
    monkeypatch.setattr("os.kill", lambda pid, number: killed.append(pid))
    (left,) = sweep.sweep(layout, patience_s=-1)
    assert left.startswith(f"control group {group}: ")
    assert killed == [7]


def test_read_only_control_groups_are_refused_with_a_fix(folder: Path) -> None:
    mounts = " ".join(str(mount) for mount in sweep.cgroup_mounts())
    script = f'for m in {mounts}; do mount -o remount,bind,ro $m || exit 9; done; exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *COMMAND, "up", "--dir", str(folder)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 3
    assert "control groups can't be made in /sys/fs/cgroup" in refused.stderr
    assert "fix: run outside of a container" in refused.stderr
    assert gone(folder, 0) == []


def test_a_folder_with_other_files_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("precious")
    for command in ("up", "down"):
        assert main(["rehearsal", command, "--dir", str(folder)]) == 3
        assert "not a world" in capsys.readouterr().err
    assert (folder / "thesis.txt").read_text() == "precious"
    Layout(folder).release()
    (folder / "thesis.txt").unlink()
    folder.rmdir()
