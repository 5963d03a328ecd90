"""The rendered script on a host that really boots."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.tpu.startup import STAGES, render

from .lab import Host
from .storage import BUCKET, Fault, client_of

pytestmark = pytest.mark.root

MakeHost = Callable[..., Host]
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def uploaded(host: Host, name: str, state: str) -> dict[str, Any]:
    """The status object, once it says `state`, which it must within 10 s."""
    deadline = time.monotonic() + 10
    bucket = client_of(host.lab.front.backend).bucket(BUCKET)
    while True:
        blob = bucket.blob(name)  # a new one each time: it remembers the generation that it read
        found: dict[str, Any] = json.loads(blob.download_as_bytes()) if blob.exists() else {}
        if found.get("state") == state:
            return found
        assert time.monotonic() < deadline, f"{found}\n{host.log()}"
        time.sleep(0.05)


def ready(host: Host) -> dict[str, Any]:
    host.boot()
    status = host.wait("ready", "failed")
    assert status["state"] == "ready", host.log()
    return status


def failed(host: Host, stage: str) -> dict[str, Any]:
    """Boot to a failure in `stage`; returns that stage's entry."""
    host.boot()
    status = host.wait("ready", "failed")
    assert (status["state"], status["stage"]) == ("failed", stage), host.log()
    last: dict[str, Any] = status["stages"][-1]
    assert (last["name"], last["state"]) == (stage, "failed")
    return last


def fingerprint(host: Host) -> dict[str, str]:
    """What a boot leaves on the disk: every file below these paths, by content."""
    found = {}
    tops = ["opt/tpu", "etc/tpu", "etc/systemd/system", "etc/profile.d/tpu.sh", "etc/environment"]
    for top in tops:
        root = host.root / top
        for path in [root, *root.rglob("*")] if root.is_dir() else [root]:
            name = str(path.relative_to(host.root))
            if path.is_symlink():
                found[name] = f"-> {os.readlink(path)}"
            # Two files of uv's hold the time of the installation.
            elif (
                path.is_file() and path.name not in {"uv_cache.json", "RECORD"} and "__pycache__" not in name
            ):
                found[name] = f"{path.stat().st_mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return found


def test_fresh_boot_to_ready(make_host: MakeHost, data_disk: Path, gcs: str) -> None:
    host = make_host(data_disk, tpu_data_disk="c4-us-east5-b")
    status = ready(host)
    assert [stage["name"] for stage in status["stages"]] == list(STAGES)
    states = {stage["name"]: stage["state"] for stage in status["stages"]}
    assert states.pop("launch") == "skipped"
    assert set(states.values()) == {"ok"}
    assert uploaded(host, "boot/tpu-lab/worker-0.json", "ready") == status

    assert (host.files / "mnt/data/tokens.bin").stat().st_size == 8192
    assert "Read-only file system" in host.run("touch", "/mnt/data/x", check=False)
    host.run(*AS_NOBODY, "bash", "-c", "echo hello >/mnt/checkpoints/note && touch /opt/training/mine")
    assert client_of(gcs).bucket(BUCKET).blob("note").download_as_bytes() == b"hello\n"
    # Another host's write is seen at once, where the name was looked for before.
    assert "No such file" in host.run("cat", "/mnt/checkpoints/other", check=False)
    client_of(gcs).bucket(BUCKET).blob("other").upload_from_string(b"from worker 3")
    assert host.run("cat", "/mnt/checkpoints/other") == "from worker 3"

    expected = {
        "DATA_DIR": "/mnt/data",
        "CHECKPOINT_DIR": "/mnt/checkpoints",
        "CHECKPOINT_BUCKET": BUCKET,
        "TPU_NAME": "tpu-lab",
        "TPU_ZONE": "us-east5-b",
        "WORKER_ID": "0",
        "WORKER_COUNT": "1",
        "COORDINATOR_ADDRESS": "10.0.0.2:8476",
        "ACCELERATOR_TYPE": "v6e-16",
    }
    login = host.run(
        "env", "-i", "bash", "--login", "-c", "env; python -c 'import workload; print(workload)'"
    )
    assert expected.items() <= dict(line.split("=", 1) for line in login.splitlines() if "=" in line).items()
    assert "/opt/tpu/venv/lib/" in login
    for file in ("etc/tpu/environment", "etc/environment"):
        lines = (host.root / file).read_text().splitlines()
        read = dict(line.split("=", 1) for line in lines if "=" in line)
        assert expected.items() <= read.items()
        assert read["PATH"].strip('"').startswith("/opt/tpu/venv/bin:")


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
    pid = host.run("systemctl", "show", "--property=MainPID", "tpu-job.service", "tpu-checkpoints.service")
    host.run("systemctl", "start", "google-startup-scripts.service")
    assert host.status()["state"] == "ready"
    again = host.run("systemctl", "show", "--property=MainPID", "tpu-job.service", "tpu-checkpoints.service")
    assert again == pid
    assert "=0" not in pid

    # A slice that has nothing to run any more stops running it.
    host.lab.metadata.set("tpu-run", None)
    host.run("systemctl", "start", "google-startup-scripts.service")
    assert host.status()["stages"][-1]["state"] == "skipped"
    assert host.run("systemctl", "is-active", "tpu-job.service", check=False).strip() == "inactive"
    assert not (host.root / "etc/systemd/system/tpu-job.service").exists()


@pytest.mark.parametrize("path", ["gcsfuse", "manifest"])
def test_changed_content_is_refused(make_host: MakeHost, gcs: str, published: str, path: str) -> None:
    bucket = client_of(gcs).bucket(BUCKET)
    manifest = bucket.blob(f"bundles/manifests/{published}")
    lines = manifest.download_as_text().splitlines()
    if path == "manifest":
        manifest.upload_from_string("\n".join(lines[1:]) + "\n")
        expected = "the manifest's content isn't what its name says"
    else:
        sha256 = next(line.split()[0] for line in lines if line.endswith(f"  {path}"))
        bucket.blob(f"bundles/blobs/{sha256}").upload_from_string(b"#!/bin/sh\ntouch /owned\n")
        expected = f"{path}: FAILED"
    host = make_host()
    assert expected in failed(host, "bundle")["log_tail"]
    assert not os.path.lexists(host.root / "opt/tpu/current")
    assert not os.path.lexists(host.root / "opt/tpu/venv")
    assert not (host.root / "owned").exists()


def test_a_bundle_that_was_never_published_says_what_to_do(make_host: MakeHost) -> None:
    host = make_host(tpu_bundle="0" * 64)
    assert "run 'make publish'" in failed(host, "bundle")["log_tail"]


@pytest.mark.parametrize("number", [None, "zero", "1", ""])
def test_a_host_without_its_number_stops(make_host: MakeHost, gcs: str, number: str | None) -> None:
    host = make_host(agent_worker_number=number)
    assert "agent-worker-number" in failed(host, "identity")["log_tail"]
    status = uploaded(host, "boot/tpu-lab/worker-unknown-4711.json", "failed")
    assert status["worker"] is None
    names = {blob.name for blob in client_of(gcs).list_blobs(BUCKET, prefix="boot/")}
    assert names == {"boot/tpu-lab/worker-unknown-4711.json"}


def test_a_missing_disk_says_what_is_there(make_host: MakeHost) -> None:
    host = make_host(tpu_data_disk="c4-us-east5-b")
    patience = "deadline=$((SECONDS + 60))\n  optional tpu-data-disk"
    assert patience in render()
    (host.root / "boot-script").write_text(render().replace(patience, patience.replace("60", "2")))
    (host.root / "dev").mkdir(exist_ok=True)
    tail = failed(host, "mount-data")["log_tail"]
    assert "the data disk 'c4-us-east5-b' didn't appear" in tail
    assert "/dev/disk/by-id has:" in tail


def test_refusals_that_pass_are_waited_for(make_host: MakeHost) -> None:
    """A new grant's propagation, a busy server, a status that can't be written."""
    host = make_host()
    faults = [
        Fault(lambda method, path: "bundles%2Fmanifests" in path, 403, 3),
        Fault(lambda method, path: "bundles%2Fblobs" in path, 503, 2),
        Fault(lambda method, path: "storageLayout" in path, 403, 2),
        Fault(lambda method, path: "/upload/" in path and "name=boot%2Ftpu-lab%2Fworker" in path, 503, 4),
    ]
    host.lab.front.faults += faults
    status = ready(host)
    assert all(fault.observed == fault.times for fault in faults)
    attempts = {stage["name"]: stage["attempt"] for stage in status["stages"]}
    assert attempts["bundle"] >= 4
    assert attempts["mount-checkpoints"] >= 3
    # Three attempts of the first status fail, one of the second.
    assert host.log().count("status not uploaded") == 1


def test_a_crashed_gcsfuse_comes_back(make_host: MakeHost) -> None:
    host = make_host()
    ready(host)
    host.run("systemctl", "kill", "--signal=KILL", "tpu-checkpoints.service")
    deadline = time.monotonic() + 20
    while "boot" not in host.run("ls", "/mnt/checkpoints", check=False).split():
        assert time.monotonic() < deadline, host.run("systemctl", "status", "tpu-checkpoints", check=False)
        time.sleep(0.2)


def test_the_job_gets_its_words_as_they_are(make_host: MakeHost) -> None:
    words = r"""/usr/bin/printf '[%%s]\n' "a b" '$HOME' '100%%' 'quo"te' 'back\slash' ''"""
    host = make_host(tpu_run=words.replace("%%", "%"))
    ready(host)
    deadline = time.monotonic() + 20
    while "[quo" not in (log := host.run("journalctl", "-u", "tpu-job", "-o", "cat")):
        assert time.monotonic() < deadline, log
        time.sleep(0.2)
    for expected in ("[a b]", "[$HOME]", "[100%]", '[quo"te]', "[back\\slash]", "[]"):
        assert expected in log
    shown = host.run(
        "systemctl", "show", "tpu-job", "-p", "User", "-p", "TimeoutStopUSec", "-p", "KillSignal"
    )
    assert set(shown.split()) == {"User=tpu", "TimeoutStopUSec=28s", "KillSignal=15"}


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
