"""The few lines of metadata that find the script in the bucket, and what they say where they can't."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from infra.layers.tpu.startup import IN_BUNDLE, render, script_sha256
from tests.limits import HANG_S

from .lab import Host, failed, ready
from .storage import BUCKET, Fault, client_of

pytestmark = [pytest.mark.root, pytest.mark.slow]

MakeHost = Callable[..., Host]
STATUS = "boot/tpu-lab/worker-0.json"


def listed(gcs: str, name: str = STATUS) -> dict[str, str]:
    """Return the metadata of a status object in a listing."""
    (blob,) = client_of(gcs).list_blobs(BUCKET, prefix=name)
    return dict(blob.metadata)


def until(host: Host, what: str) -> None:
    """Wait until the loader has told of something."""
    deadline = time.monotonic() + HANG_S
    while not any(what in output["why"] for output in host.lab.metadata.told()):
        assert time.monotonic() < deadline, host.lab.metadata.told()
        time.sleep(0.05)


def test_the_script_that_runs_is_the_published_one_and_is_kept(make_host: MakeHost, published: str) -> None:
    host = make_host()
    ready(host)
    stored = host.root / "opt/tpu/bundles" / published / IN_BUNDLE
    assert stored.read_text() == render()
    first = [path for _, path in host.lab.front.requests if script_sha256() in path]
    assert len(first) == 1, "fetched once: the bundle's stage finds it there"
    host.power_off()

    # What the disk has isn't asked of the bucket, as where that is slow; and what it holds no longer, is.
    refused = Fault(lambda method, path: "bundles%2F" in path, 503, 1000)
    host.lab.front.faults.append(refused)
    ready(host)
    assert refused.observed == 0
    host.power_off()
    host.lab.front.faults.clear()
    stored.write_text("#!/bin/sh\ntouch /owned\n")
    ready(host)
    assert stored.read_text() == render()
    assert not (host.root / "owned").exists()


def test_a_refusal_that_passes_is_waited_for_and_told(make_host: MakeHost) -> None:
    host = make_host()
    faults = [
        Fault(lambda method, path: "bundles%2Fmanifests" in path, 403, 1),
        Fault(lambda method, path: script_sha256() in path, 503, 3),  # the first, and curl's own tries
    ]
    host.lab.front.faults += faults
    ready(host)
    assert [fault.observed for fault in faults] == [1, 3]
    waited = [output for output in host.lab.metadata.told() if output["stage"] == "script"]
    assert [output["state"] for output in waited] == ["booting"] * 2
    assert ["HTTP 403" in waited[0]["why"], "HTTP 503" in waited[1]["why"]] == [True, True]


def test_what_was_never_published_fails_at_once_and_says_what_to_do(make_host: MakeHost, gcs: str) -> None:
    host = make_host(tpu_bundle="0" * 64)
    last = failed(host, "script")
    assert len([path for _, path in host.lab.front.requests if "bundles%2F" in path]) == 1, "asked for once"
    assert last["log_tail"] == f"there is no gs://{BUCKET}/bundles/manifests/{'0' * 64}: run 'tpu publish'"
    until(host, "run 'tpu publish'")
    status: dict[str, Any] = host.status()
    (reported,) = host.lab.metadata.told()
    assert (reported["state"], reported["stage"], reported["why"]) == ("failed", "script", last["log_tail"])
    assert reported["boot_id"] == status["boot_id"]
    assert abs(reported["updated_s"] - time.time()) < 60
    deadline = time.monotonic() + HANG_S
    while not list(client_of(gcs).list_blobs(BUCKET, prefix=STATUS)):
        assert time.monotonic() < deadline, "no status in the bucket"
        time.sleep(0.05)
    assert listed(gcs) == {"state": "failed", "stage": "script", "instance": "4711", "why": last["log_tail"]}
    blob = client_of(gcs).bucket(BUCKET).blob(STATUS)
    assert blob.content_type in (None, "application/json")
    assert json.loads(blob.download_as_bytes()) == status
    assert "stage script: there is no" in host.run("journalctl", "--unit=google-startup-scripts.service")


@pytest.mark.parametrize("what", ["manifest", "script"])
def test_other_content_than_was_promised_never_runs(
    make_host: MakeHost, gcs: str, published: str, what: str
) -> None:
    bucket = client_of(gcs).bucket(BUCKET)
    name = {"manifest": f"manifests/{published}", "script": f"blobs/{script_sha256()}"}[what]
    bucket.blob(f"bundles/{name}").upload_from_string(b"#!/bin/sh\ntouch /owned\n")
    host = make_host()
    assert failed(host, "script")["log_tail"] == f"gs://{BUCKET}/bundles/{name} doesn't match its sha256"
    assert not (host.root / "owned").exists()
    assert not list((host.root / "opt/tpu").rglob(IN_BUNDLE))


def test_a_bundle_that_is_older_than_the_loader_says_so(
    make_host: MakeHost, gcs: str, published: str
) -> None:
    bucket = client_of(gcs).bucket(BUCKET)
    lines = bucket.blob(f"bundles/manifests/{published}").download_as_text().splitlines(keepends=True)
    old = "".join(line for line in lines if IN_BUNDLE not in line)
    assert old
    bundle = hashlib.sha256(old.encode()).hexdigest()
    bucket.blob(f"bundles/manifests/{bundle}").upload_from_string(old)
    # Nor does this host know its number: it must not overwrite the status of one that does.
    host = make_host(tpu_bundle=bundle, agent_worker_number=None)
    assert failed(host, "script")["log_tail"] == f"bundle {bundle} has no {IN_BUNDLE}: run 'tpu publish'"
    assert host.status()["worker"] is None
    deadline = time.monotonic() + HANG_S
    while not (result := [blob.name for blob in client_of(gcs).list_blobs(BUCKET, prefix="boot/")]):
        assert time.monotonic() < deadline, "no status in the bucket"
        time.sleep(0.05)
    assert result == ["boot/tpu-lab/worker-unknown-4711.json"]


def test_a_host_that_may_write_nothing_says_so_in_its_journal_and_boots(make_host: MakeHost) -> None:
    host = make_host(enable_guest_attributes=None)
    fault = Fault(lambda method, path: "bundles%2Fmanifests" in path, 403, 1)
    host.lab.front.faults.append(fault)
    ready(host)
    assert fault.observed == 1
    assert "guest attribute tpu/boot not written (HTTP 403)" in host.log()
    output = host.run("journalctl", "--unit=google-startup-scripts.service", "--output=cat")
    assert "guest attribute tpu/boot not written\n" in output, "the loader's own"
    assert host.lab.metadata.written == []
