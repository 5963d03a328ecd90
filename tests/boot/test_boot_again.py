"""The rendered script where it ran before, whole or cut off."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.tpu.startup import STAGES

from .lab import Host, fingerprint, ready

pytestmark = [pytest.mark.root, pytest.mark.slow]

MakeHost = Callable[..., Host]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plug_pulled_in_any_stage_leaves_no_trace(make_host: MakeHost, data_disk: Path) -> None:
    """Pulled once as each stage begins and once within it; the end is that of a clean boot."""
    attributes = {"tpu_data_disk": "disk", "tpu_run": "/bin/sleep 1000"}
    host = make_host(data_disk, **attributes)
    reached: list[str] = []

    def pull_in(stage: str, delay_s: float) -> Callable[[dict[str, Any]], None]:
        def on_status(status: dict[str, Any]) -> None:
            if status["stage"] == stage and status["state"] == "booting" and stage not in reached:
                time.sleep(delay_s)
                reached.append(stage)
                os.kill(host.init, 9)

        return on_status

    # identity has no address yet when it begins: its status is first seen with network.
    for delay_s in (0.0, 0.3):
        reached.clear()
        for stage in STAGES[1:]:
            host.lab.front.on_status = pull_in(stage, delay_s)
            host.boot()
            host.ended()
        assert reached == list(STAGES[1:])
    host.lab.front.on_status = None
    ready(host)
    survived = fingerprint(host)
    host.power_off()
    for path in ("opt/tpu", "etc/tpu"):
        host.wipe(path)
    ready(host)
    assert fingerprint(host) == survived


def test_a_second_boot_finds_everything_done(make_host: MakeHost, data_disk: Path) -> None:
    host = make_host(data_disk, tpu_data_disk="disk", tpu_run="/bin/sleep 1000")
    (host.root / "etc/environment").write_text('EDITOR=vi\nPATH="/custom/bin:/usr/bin"\n')
    ready(host)
    (host.files / "opt/training/model.py").write_text("mine")
    before = fingerprint(host)
    host.power_off()
    host.lab.front.requests.clear()
    status = ready(host)
    assert fingerprint(host) == before
    assert not [path for _, path in host.lab.front.requests if "bundles%2F" in path]
    assert (host.files / "opt/training/model.py").read_text() == "mine"
    environment = (host.root / "etc/environment").read_text()
    assert environment.startswith("EDITOR=vi\n")
    assert 'PATH="/opt/tpu/venv/bin:/custom/bin:/usr/bin"' in environment
    assert "tpu-job.service: /bin/sleep 1000" in status["stages"][-1]["log_tail"]

    # Once more in the same boot: mounts and the running job stay as they are.
    deadline = time.monotonic() + 20
    while host.run("systemctl", "is-active", "tpu-job.service", check=False).strip() != "active":
        assert time.monotonic() < deadline, host.run("systemctl", "status", "tpu-job", check=False)
        time.sleep(0.2)
    pid = host.run("systemctl", "show", "--property=MainPID", "tpu-job.service", "tpu-checkpoints.service")
    host.run("systemctl", "start", "google-startup-scripts.service")
    assert host.status()["state"] == "ready"
    again = host.run("systemctl", "show", "--property=MainPID", "tpu-job.service", "tpu-checkpoints.service")
    assert again == pid
    assert "=0" not in pid

    # A job that runs is never ended for another, but somebody may be waiting for that.
    assert "older job" not in host.status()["stages"][-1]["log_tail"]
    host.lab.metadata.set("tpu-run", "/bin/sleep 2000")
    host.run("systemctl", "start", "google-startup-scripts.service")
    assert "an older job still runs" in host.status()["stages"][-1]["log_tail"]
    assert "sleep 1000" in host.run("ps", "-C", "sleep", "-o", "args=")

    # A slice that has nothing to run any more stops running it.
    host.lab.metadata.set("tpu-run", None)
    host.run("systemctl", "start", "google-startup-scripts.service")
    assert host.status()["stages"][-1]["state"] == "skipped"
    assert host.run("systemctl", "is-active", "tpu-job.service", check=False).strip() == "inactive"
    assert not (host.root / "etc/systemd/system/tpu-job.service").exists()


def test_a_job_that_failed_too_often_is_started_again(make_host: MakeHost) -> None:
    host = make_host(tpu_run="/usr/bin/test -e /opt/training/mended")
    ready(host)
    for _ in range(21):
        host.run("systemctl", "restart", "tpu-job.service", check=False)
    assert "repeated too quickly" in host.run("journalctl", "--unit=tpu-job.service")
    (host.files / "opt/training/mended").touch()
    host.run("systemctl", "start", "google-startup-scripts.service")
    assert host.status()["state"] == "ready"
    deadline = time.monotonic() + 20
    while host.run("systemctl", "is-active", "tpu-job.service", check=False).strip() != "inactive":
        assert time.monotonic() < deadline, host.run("systemctl", "status", "tpu-job", check=False)
        time.sleep(0.2)
