"""The rendered script where it ran before, whole or cut off, or where there is no room."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from infra.layers.tpu.startup import STAGES

from .lab import failed, fingerprint, ready, until
from .storage import BUCKET, client_of
from .test_boot import MakeHost, listed, uploaded

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.prove]


@pytest.mark.parametrize("within", [0, 1])
def test_a_plug_pulled_in_any_stage_leaves_no_trace(
    make_host: MakeHost, data_disk: Path, within: int
) -> None:
    """Pulled as each other stage begins and within those between, or the other way around."""
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
    for number, stage in enumerate(STAGES[1:]):
        host.lab.front.on_status = pull_in(stage, 0.3 * ((number + within) % 2))
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
    job = ("systemctl", "is-active", "tpu-job.service")
    until(lambda: host.run(*job, check=False).strip() == "active", host)
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

    # Nor is the mount taken from those who work on it.
    unit = host.files / "etc/systemd/system/tpu-checkpoints.service"
    unit.write_text(unit.read_text().replace("RestartSec=1", "RestartSec=2"))
    host.run("systemctl", "start", "google-startup-scripts.service")
    stages = {stage["name"]: stage["log_tail"] for stage in host.status()["stages"]}
    assert "an older gcsfuse still runs" in stages["mount-checkpoints"]
    assert "RestartSec=1\n" in unit.read_text()
    mount = host.run("systemctl", "show", "--property=MainPID", "tpu-checkpoints.service").strip()
    assert mount in pid.splitlines()

    # A slice that has nothing to run any more stops running it.
    host.lab.metadata.set("tpu-run", None)
    host.run("systemctl", "start", "google-startup-scripts.service")
    assert host.status()["stages"][-1]["state"] == "skipped"
    assert host.run(*job, check=False).strip() == "inactive"
    assert not (host.root / "etc/systemd/system/tpu-job.service").exists()


# The log's writer is slow with the lines that end a boot: whoever doesn't wait for it loses them.
_SLOW_TEE = """\
#!/bin/bash
[[ $* == */boot.log ]] || exec /usr/bin/tee "$@"
while IFS= read -r line; do
  [[ $line != *"boot failed in"* && $line != *"ready after"* ]] || /usr/bin/sleep 0.5
  printf '%s\\n' "$line"
done | /usr/bin/tee "$@"
"""


def test_a_run_that_fails_after_the_boot_was_ready_leaves_all_that_runs(
    make_host: MakeHost, gcs: str, published: str
) -> None:
    host = make_host(tpu_run="/bin/sleep 1000")
    tee = host.root / "usr/local/bin/tee"
    tee.write_text(_SLOW_TEE)
    tee.chmod(0o755)
    output: list[str] = []
    # Of the boot alone; the job's heartbeat lies beside it.
    host.lab.front.on_status = lambda item: output.append(item["state"]) if "stages" in item else None
    ready(host)
    unit = ("systemctl", "is-active", "google-startup-scripts.service")
    # Else a start would join this one.
    until(lambda: host.run(*unit, check=False).strip() != "activating", host)
    running = ("systemctl", "show", "--property=MainPID", "tpu-job.service", "tpu-checkpoints.service")
    until(lambda: "=0" not in host.run(*running), host)
    pids = host.run(*running)
    assert set(output) == {"booting", "ready"}
    venv = os.readlink(host.files / "opt/tpu/venv")

    # A bundle is published whose interpreter is none.
    bucket = client_of(gcs).bucket(BUCKET)
    good = bucket.blob(f"bundles/manifests/{published}").download_as_text()
    rubbish = b"no archive"
    lines = [
        f"{sha256(rubbish).hexdigest()}  python.tar.gz" if line.endswith("  python.tar.gz") else line
        for line in good.splitlines()
    ]
    bad = "\n".join(lines) + "\n"
    bundle = sha256(bad.encode()).hexdigest()
    bucket.blob(f"bundles/blobs/{sha256(rubbish).hexdigest()}").upload_from_string(rubbish)
    bucket.blob(f"bundles/manifests/{bundle}").upload_from_string(bad)

    def again(state: str, stage: str, last: str) -> None:
        output.clear()
        host.lab.metadata.written.clear()
        host.run("systemctl", "start", "google-startup-scripts.service", check=False)
        status = host.status()
        assert (status["state"], status["stage"]) == (state, stage), host.log()
        assert last in host.log().splitlines()[-1]
        assert [seen["state"] for seen in host.lab.metadata.reports()][-1] == state
        assert host.run(*running) == pids
        assert os.readlink(host.files / "opt/tpu/venv") == venv
        assert "boot" in host.run("ls", "/mnt/checkpoints").split()

    host.lab.metadata.set("tpu-bundle", bundle)
    again("rerun-failed", "python", "boot failed in stage python; run it again with: systemctl")
    assert set(output) == {"rerunning", "rerun-failed"}
    (about,) = client_of(gcs).list_blobs(BUCKET, prefix="boot/")
    assert (about.metadata["state"], about.metadata["stage"]) == ("rerun-failed", "python")
    assert about.metadata["why"]

    # The loader too knows that this is no boot.
    host.lab.metadata.set("tpu-bundle", "0" * 64)
    again("rerun-failed", "script", "boot failed in stage python")  # the loader has no part in that log
    assert set(output) == {"rerun-failed"}

    host.lab.metadata.set("tpu-bundle", published)
    again("ready", "launch", "ready after ")
    assert set(output) == {"rerunning", "ready"}

    # The next boot of the machine is a boot.
    host.power_off()
    host.lab.metadata.set("tpu-bundle", bundle)
    failed(host, "python")


def test_a_boot_on_a_full_disk_fails_and_says_so_until_there_is_room(make_host: MakeHost, gcs: str) -> None:
    host = make_host()
    ready(host)
    host.power_off()
    host.leave_free(0)
    last = failed(host, "bundle")
    more = host.run("dd", "if=/dev/zero", "of=/var/more", "bs=1M", "count=64", check=False)
    assert "No space left on device" in more
    full = "the boot disk is full: 0 MiB of / are free"
    assert full in last["log_tail"]
    assert uploaded(host, "boot/tpu-lab/worker-0.json", "failed")["stages"][-1] == last
    (why,) = (about["why"] for about in listed(gcs, "boot/").values())
    assert why.startswith(full)
    host.power_off()
    host.leave_free(200)
    ready(host)
