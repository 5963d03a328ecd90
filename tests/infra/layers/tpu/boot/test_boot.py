"""The rendered script on a host that really boots."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.layers.tpu.startup import STAGES, script_sha256
from tests.limits import HANG_S

from .lab import Host, failed, ready
from .storage import BUCKET, Fault, client_of

pytestmark = [pytest.mark.root, pytest.mark.slow]

MakeHost = Callable[..., Host]
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def uploaded(host: Host, name: str, state: str) -> dict[str, Any]:
    """Return the status object, once it says `state`, which it must within 10 s."""
    deadline = time.monotonic() + HANG_S
    bucket = client_of(host.lab.front.backend).bucket(BUCKET)
    while True:
        blob = bucket.blob(name)  # a new one each time: it remembers the generation that it read
        result: dict[str, Any] = json.loads(blob.download_as_bytes()) if blob.exists() else {}
        if result.get("state") == state:
            return result
        assert time.monotonic() < deadline, f"{result}\n{host.log()}"
        time.sleep(0.05)


def listed(gcs: str, prefix: str) -> dict[str, dict[str, str]]:
    """Return the metadata of every object in a listing."""
    return {blob.name: blob.metadata for blob in client_of(gcs).list_blobs(BUCKET, prefix=prefix)}


def test_fresh_boot_to_ready(make_host: MakeHost, data_disk: Path, gcs: str) -> None:
    host = make_host(data_disk, tpu_data_disk="c4-us-east5-b", tpu_member="3")
    status = ready(host)
    assert [stage["name"] for stage in status["stages"]] == list(STAGES)
    states = {stage["name"]: stage["state"] for stage in status["stages"]}
    assert (states.pop("launch"), states.pop("code")) == ("skipped", "skipped")
    assert set(states.values()) == {"ok"}
    assert uploaded(host, "boot/tpu-lab/worker-0.json", "ready") == status
    assert listed(gcs, "boot/") == {
        "boot/tpu-lab/worker-0.json": {"state": "ready", "stage": "launch", "instance": "4711"}
    }
    reported = host.lab.metadata.told()
    last = {key: reported[-1][key] for key in ("state", "stage", "boot_id", "why")}
    assert last == {"state": "ready", "stage": "launch", "boot_id": status["boot_id"], "why": ""}
    assert (reported[0]["state"], reported[0]["stage"]) == ("booting", "identity")
    assert abs(reported[-1]["updated_s"] - time.time()) < 60
    # Ten a minute and three a second is what Google allows a machine, whose agent and job write too.
    times = [when for when, _, _ in host.lab.metadata.written]
    assert max(sum(0 <= later - when < 60 for later in times) for when in times) <= 6
    assert max(sum(0 <= later - when < 1 for later in times) for when in times) <= 3

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
        "STEPS_BUCKET": f"{BUCKET}-steps",
        "TPU_NAME": "tpu-lab",
        "TPU_ZONE": "us-east5-b",
        "WORKER_ID": "0",
        "WORKER_COUNT": "1",
        "COORDINATOR_ADDRESS": "10.0.0.2:8476",
        "ACCELERATOR_TYPE": "v6e-16",
        "TPU_MEMBER": "3",
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


def test_changed_content_is_refused(make_host: MakeHost, gcs: str, published: str) -> None:
    bucket = client_of(gcs).bucket(BUCKET)
    lines = bucket.blob(f"bundles/manifests/{published}").download_as_text().splitlines()
    sha256 = next(line.split()[0] for line in lines if line.endswith("  gcsfuse"))
    bucket.blob(f"bundles/blobs/{sha256}").upload_from_string(b"#!/bin/sh\ntouch /owned\n")
    host = make_host()
    assert "gcsfuse: FAILED" in failed(host, "bundle")["log_tail"]
    assert not os.path.lexists(host.root / "opt/tpu/current")
    assert not os.path.lexists(host.root / "opt/tpu/venv")
    assert not (host.root / "owned").exists()


def test_a_manifest_that_names_files_elsewhere_is_refused(
    make_host: MakeHost, gcs: str, published: str
) -> None:
    bucket = client_of(gcs).bucket(BUCKET)
    manifest = bucket.blob(f"bundles/manifests/{published}").download_as_text() + f"{'0' * 64}  a/../../b\n"
    bundle = hashlib.sha256(manifest.encode()).hexdigest()
    bucket.blob(f"bundles/manifests/{bundle}").upload_from_string(manifest)
    host = make_host(tpu_bundle=bundle)
    assert "the manifest has an invalid file name" in failed(host, "bundle")["log_tail"]


@pytest.mark.parametrize("number", [None, "zero", "1", ""])
def test_a_host_without_its_number_stops(make_host: MakeHost, gcs: str, number: str | None) -> None:
    host = make_host(agent_worker_number=number)
    assert "agent-worker-number" in failed(host, "identity")["log_tail"]
    status = uploaded(host, "boot/tpu-lab/worker-unknown-4711.json", "failed")
    assert status["worker"] is None
    (output,) = listed(gcs, "boot/").values()
    assert "agent-worker-number" in output.pop("why")
    assert output == {"state": "failed", "stage": "identity", "instance": "4711"}


def test_keys_that_the_tpus_agent_writes_late_are_waited_for_and_told(make_host: MakeHost, gcs: str) -> None:
    late = ("agent-worker-number", "worker-network-endpoints")
    host = make_host(agent_worker_number=None, worker_network_endpoints=None, tpu_metadata_timeout_s="120")
    host.hurry(
        ("RECORD_EACH_S=10", "RECORD_EACH_S=1"),
        ("GUEST_FROM_S=$((SECONDS + 15))", "GUEST_FROM_S=$((SECONDS + 2))"),
    )
    unknown, known = "boot/tpu-lab/worker-unknown-4711.json", "boot/tpu-lab/worker-0.json"
    seen: dict[str, dict[str, str]] = {}

    def write() -> None:
        for key, value, name in ((late[0], "0", unknown), (late[1], "unknown:unknown:10.0.0.2", known)):
            while f"waiting for {key}" not in listed(gcs, "boot/").get(name, {}).get("why", ""):
                time.sleep(0.1)
            seen[key] = listed(gcs, "boot/")[name]
            while f"waiting for {key}" not in host.lab.metadata.told()[-1]["why"]:
                time.sleep(0.1)
            host.lab.metadata.set(key, value)

    agent = threading.Thread(target=write, daemon=True)
    agent.start()
    assert ready(host)["worker"] == 0
    agent.join(timeout=HANG_S)
    assert not agent.is_alive(), "nothing was waited for"
    assert {(output["state"], output["stage"]) for output in seen.values()} == {("booting", "identity")}
    assert set(listed(gcs, "boot/")) == {known}, "what was told without a number is taken back"


def test_siblings_that_have_no_address_yet_are_waited_for(make_host: MakeHost) -> None:
    host = make_host(tpu_workers="2", tpu_run="/bin/sleep 1000", tpu_metadata_timeout_s="120")

    def write() -> None:
        while "waiting for worker-network-endpoints" not in host.log():
            time.sleep(0.1)
        time.sleep(0.5)
        assert host.status()["stage"] == "identity"
        pair = "unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3"
        host.lab.metadata.set("worker-network-endpoints", pair)

    agent = threading.Thread(target=write, daemon=True)
    agent.start()
    ready(host)
    agent.join(timeout=HANG_S)
    assert not agent.is_alive(), "nothing was waited for"


def test_a_missing_disk_says_what_is_there(make_host: MakeHost) -> None:
    host = make_host(tpu_data_disk="c4-us-east5-b")
    patience = "deadline=$((SECONDS + 60))\n  optional tpu-data-disk"
    host.hurry((patience, patience.replace("60", "2")))
    (host.root / "dev").mkdir(exist_ok=True)
    tail = failed(host, "mount-data")["log_tail"]
    assert "the data disk 'c4-us-east5-b' didn't appear" in tail
    assert "/dev/disk/by-id has:" in tail


def test_refusals_that_pass_are_waited_for(make_host: MakeHost) -> None:
    """A new grant's propagation, a busy server, a status that can't be written."""
    host = make_host()
    faults = [
        Fault(lambda method, path: "bundles%2Fblobs" in path and script_sha256() not in path, 403, 20),
        Fault(lambda method, path: "storageLayout" in path, 403, 2),
        Fault(lambda method, path: "/upload/" in path and "name=boot%2Ftpu-lab%2Fworker" in path, 503, 4),
    ]
    host.lab.front.faults += faults
    status = ready(host)
    assert all(fault.observed == fault.times for fault in faults)
    attempts = {stage["name"]: stage["attempt"] for stage in status["stages"]}
    assert attempts["bundle"] >= 2
    assert attempts["mount-checkpoints"] >= 3
    # Three attempts of the first status fail, one of the second.
    assert host.log().count("status not uploaded") == 1


def test_a_crashed_gcsfuse_comes_back(make_host: MakeHost) -> None:
    host = make_host()
    ready(host)
    host.run("systemctl", "kill", "--signal=KILL", "tpu-checkpoints.service")
    deadline = time.monotonic() + HANG_S
    while "boot" not in host.run("ls", "/mnt/checkpoints", check=False).split():
        assert time.monotonic() < deadline, host.run("systemctl", "status", "tpu-checkpoints", check=False)
        time.sleep(0.2)


def test_the_job_gets_its_words_as_they_are(make_host: MakeHost) -> None:
    words = r"""/usr/bin/printf '[%%s]\n' "a b" '$HOME' '100%%' 'quo"te' 'back\slash' ''"""
    host = make_host(tpu_run=words.replace("%%", "%"))
    ready(host)
    deadline = time.monotonic() + HANG_S
    while "[quo" not in (log := host.run("journalctl", "-u", "tpu-job", "-o", "cat")):
        assert time.monotonic() < deadline, log
        time.sleep(0.2)
    for expected in ("[a b]", "[$HOME]", "[100%]", '[quo"te]', "[back\\slash]", "[]"):
        assert expected in log
    shown = host.run(
        "systemctl", "show", "tpu-job", "-p", "User", "-p", "TimeoutStopUSec", "-p", "KillSignal"
    )
    assert set(shown.split()) == {"User=tpu", "TimeoutStopUSec=28s", "KillSignal=15"}
