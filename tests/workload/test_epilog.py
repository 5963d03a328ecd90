"""The chips of a host after a job: what holds them ends, and libtpu's files are gone."""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.layers.slurm import conf
from tests.infra.layers.slurm.cluster import settings
from tests.infra.layers.slurm.test_slurm_conf import REACHED, lines
from tests.limits import HANG_S, until
from workload.host.slurmd import epilog, install

_HOLDS = "import sys, time; held = open(sys.argv[1]); time.sleep(600)"


@pytest.fixture(name="holder")
def _holder(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A process with an open file, which stands for a chip."""
    (tmp_path / "vfio").mkdir()
    chip = tmp_path / "vfio/0"
    chip.touch()
    process = subprocess.Popen([sys.executable, "-c", _HOLDS, str(chip)], start_new_session=True)
    until(lambda: epilog.holders([str(chip)]) == [process.pid])
    return process


def test_what_holds_chips_after_a_job_ends_and_the_lock_is_gone(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    lock, logs = tmp_path / "libtpu_lockfile", tmp_path / "tpu_logs"
    lock.touch(0o644)
    logs.mkdir()
    (logs / "tpu_driver.INFO").touch()
    (tmp_path / "other").touch()
    assert epilog.free([f"{tmp_path}/vfio/"], [str(lock), str(logs), f"{tmp_path}/none"], HANG_S) == []
    assert holder.wait(HANG_S) == -9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "vfio"]


def test_processes_that_end_during_the_scan_are_passed_over(
    tmp_path: Path, holder: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    listed = os.listdir

    def scan(path: str) -> list[str]:
        if path == "/proc":
            return ["999999999", *listed(path)]
        if path == "/proc/999999999/fd":
            ended.append(path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", scan)
    assert epilog.holders([f"{tmp_path}/vfio/"]) == [holder.pid]
    assert ended
    holder.kill()
    holder.wait(HANG_S)


def test_a_process_that_does_not_end_fails_the_epilog(
    tmp_path: Path, holder: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[int] = []
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "kill", lambda pid, _: signals.append(pid))
            patched.setattr(time, "sleep", lambda _: None)
            assert epilog.free([f"{tmp_path}/vfio/"], [], 0.5) == [holder.pid] == [*set(signals)]
    finally:
        holder.kill()
        holder.wait(HANG_S)


def test_slurmd_runs_the_installed_program_which_needs_no_package(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    install.epilog(tmp_path)
    file = tmp_path / epilog.FILE.lstrip("/")
    assert file.stat().st_mode & 0o111
    pattern = lines(conf.files(settings(), REACHED)[conf.SLURM])["Epilog"]
    assert fnmatch.fnmatch(epilog.FILE, pattern)
    assert fnmatch.fnmatch("/usr/bin/true", pattern), "hosts of an earlier bundle have this one alone"
    words = file.read_text().split("exec ")[1].split()
    subprocess.run([*words[:-1], "-c", f"import runpy; runpy.run_path({words[-1]!r})"], check=True)
