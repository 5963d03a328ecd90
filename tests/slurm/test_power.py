"""The program that slurmctld calls, as slurmctld calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm import boot, power

JOBS = '{"jobs":[{"job_id":2,"nodes":"tpu-0-w[0-1]"}],"all_nodes":"tpu-0-w[0-1]"}'


def call(folder: Path, *words: str, jobs: str | None = None) -> subprocess.CompletedProcess[str]:
    """Call it with Python alone: no site, no environment, no folder of this project."""
    variables = {"SLURM_CONF": "/etc/slurm/slurm.conf"}
    if jobs is not None:
        (folder / "jobs").write_text(jobs)
        variables["SLURM_RESUME_FILE"] = str(folder / "jobs")
    line = [sys.executable, "-I", "-S", str(Path(power.__file__)), *words]
    return subprocess.run(line, env=variables, cwd="/", capture_output=True, text=True, check=False)


def recorded(folder: Path) -> dict[str, object]:
    (file,) = folder.glob("*.json")
    parsed: dict[str, object] = json.loads(file.read_text())
    return parsed


def test_a_request_names_hosts_and_jobs(tmp_path: Path) -> None:
    done = call(tmp_path, str(tmp_path), "resume", "tpu-0-w[0-1]", jobs=JOBS)
    assert (done.returncode, done.stderr) == (0, "")
    known = recorded(tmp_path)
    assert (known["verb"], known["hosts"]) == ("resume", "tpu-0-w[0-1]")
    assert known["jobs"] == [{"job": 2, "hosts": "tpu-0-w[0-1]"}]
    assert not [*tmp_path.glob("*.new")]


@pytest.mark.parametrize("jobs", ["", "[", "[1]", '{"jobs":[{"job_id":"x"}]}', '{"jobs":null}', "\x00"])
def test_a_file_of_jobs_that_cant_be_read_loses_no_request(tmp_path: Path, jobs: str) -> None:
    assert call(tmp_path, str(tmp_path), "suspend", "tpu-0-w0", jobs=jobs).returncode == 0
    assert recorded(tmp_path)["jobs"] == []


def test_it_is_within_a_second_since_it_loads_next_to_nothing(tmp_path: Path) -> None:
    line = [sys.executable, "-I", "-S", "-X", "importtime", str(Path(power.__file__)), str(tmp_path)]
    printed = subprocess.run([*line, "resume", "a"], capture_output=True, text=True, check=True).stderr
    loaded = {row.rpartition("|")[2].strip().partition(".")[0] for row in printed.splitlines()[1:]}
    assert recorded(tmp_path)
    assert {"json", "os"} <= loaded <= {*sys.stdlib_module_names, "encodings", "zipimport"}
    assert not loaded & {"asyncio", "http", "logging", "socket", "ssl", "subprocess", "typing", "urllib"}
    assert len(printed.splitlines()) < 100


def test_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda file: done.append("fsync") or fsync(file))
    monkeypatch.setattr(os, "rename", lambda a, b: done.append("rename") or rename(a, b))
    assert power.main([str(tmp_path), "resume", "tpu-0-w0"]) == 0
    assert done == ["fsync", "rename", "fsync"]


def test_a_folder_that_is_gone_is_told_to_slurmctld(tmp_path: Path) -> None:
    done = call(tmp_path, f"{tmp_path}/none", "resume", "tpu-0-w0")
    assert done.returncode == 1
    assert "resume of tpu-0-w0 isn't recorded" in done.stderr
    assert "Traceback" not in done.stderr
    assert call(tmp_path, "resume").returncode == 2


def test_the_programs_of_slurm_conf_call_it() -> None:
    assert set(boot._VERBS.values()) == set(power.VERBS)
