"""The rendered script on a host that really boots."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.layers.tpu.startup import STAGES

from .lab import Host, ready, until
from .storage import BUCKET, client_of

pytestmark = [pytest.mark.root, pytest.mark.slow]

MakeHost = Callable[..., Host]
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def uploaded(host: Host, name: str, state: str) -> dict[str, Any]:
    """Return the status object once it has this state."""
    bucket = client_of(host.lab.front.backend).bucket(BUCKET)

    def read() -> dict[str, Any] | None:
        blob = bucket.blob(name)  # a new one each time: it remembers the generation that it read
        result: dict[str, Any] = json.loads(blob.download_as_bytes()) if blob.exists() else {}
        return result if result.get("state") == state else None

    status: dict[str, Any] = until(read, host)
    return status


def listed(gcs: str, prefix: str) -> dict[str, dict[str, str]]:
    """Return the metadata of every object in a listing."""
    return {blob.name: blob.metadata for blob in client_of(gcs).list_blobs(BUCKET, prefix=prefix)}


def test_fresh_boot_to_ready(make_host: MakeHost, data_disk: Path, gcs: str) -> None:
    host = make_host(data_disk, tpu_data_disk="c4-us-east5-b", tpu_member="3")
    status = ready(host)
    assert [stage["name"] for stage in status["stages"]] == list(STAGES)
    states = {stage["name"]: stage["state"] for stage in status["stages"]}
    assert {states.pop(stage) for stage in ("launch", "code", "image")} == {"skipped"}
    assert set(states.values()) == {"ok"}
    assert uploaded(host, "boot/tpu-lab/worker-0.json", "ready") == status
    assert listed(gcs, "boot/") == {
        "boot/tpu-lab/worker-0.json": {"state": "ready", "stage": "launch", "instance": "4711"}
    }
    reported = host.lab.metadata.reports()
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
        "CHECKPOINT_URL": f"gs://{BUCKET}",
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


@pytest.mark.prove  # the unit says Restart=always: test_stages
def test_a_crashed_gcsfuse_comes_back(make_host: MakeHost) -> None:
    host = make_host()
    ready(host)
    host.run("systemctl", "kill", "--signal=KILL", "tpu-checkpoints.service")
    until(lambda: "boot" in host.run("ls", "/mnt/checkpoints", check=False).split(), host)
