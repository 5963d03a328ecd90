"""Steps of builds run, in a network of their own, as the build's account."""

from __future__ import annotations

import io
import tarfile
import time
from typing import Any

import pytest
from boxed_front import Boxed, L, P

from tests.limits import HANG_S

pytestmark = pytest.mark.root
BUILDS = f"cloudbuild.googleapis.com/v1/{P}/builds"
IMAGE = f"us-east5-docker.pkg.dev/boxed/images/builder@sha256:{'0' * 64}"


@pytest.fixture(scope="module", autouse=True)
def account(boxed: Boxed) -> str:
    roles = ("roles/logging.logWriter", "roles/artifactregistry.reader", "roles/storage.objectUser")
    email = boxed.account("builder", *roles)
    url = f"artifactregistry.googleapis.com/v1/{L}/repositories?repositoryId=images"
    boxed.done("artifactregistry.googleapis.com/v1", boxed.answer("POST", url, {"format": "DOCKER"}))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        entry = tarfile.TarInfo("input.txt")
        entry.size = 4
        tar.addfile(entry, io.BytesIO(b"text"))
    boxed.upload("source.tar.gz", packed.getvalue())
    return email


def start(boxed: Boxed, email: str, script: str, **more: Any) -> tuple[Any, str]:
    """The operation of a build with one step, and the build's address."""
    body = {
        "steps": [{"id": "one", "name": IMAGE, "entrypoint": "bash", "args": ["-c", script]}],
        "serviceAccount": f"{P}/serviceAccounts/{email}",
        "options": {"logging": "CLOUD_LOGGING_ONLY"},
        **more,
    }
    operation = boxed.answer("POST", BUILDS, body)
    return operation, f"{BUILDS}/{operation['metadata']['build']['id']}"


def test_a_step_reads_the_source_and_leaves_an_artifact_as_the_account(boxed: Boxed, account: str) -> None:
    source = {"storageSource": {"bucket": "raw", "object": "source.tar.gz"}}
    artifacts = {"objects": {"location": "gs://raw/out/", "paths": ["*.txt"]}}
    script = "tr a-z A-Z < input.txt > made.txt; echo done"
    operation, url = start(boxed, account, script, source=source, artifacts=artifacts)
    ended = boxed.done("cloudbuild.googleapis.com/v1", operation)
    assert "error" not in ended, ended
    assert boxed.answer("GET", url)["status"] == "SUCCESS"
    assert boxed.read("out%2Fmade.txt") == b"TEXT"
    entries = boxed.logged(f'resource.type="build" AND resource.labels.build_id="{url.rpartition("/")[2]}"')
    assert 'Step #0 - "one": done' in [entry["textPayload"] for entry in entries]
    requests = [
        request
        for request in boxed.cloud.requests.since(0)["requests"]
        if "out%2Fmade.txt" in request["path"]
    ]
    assert requests[0]["principal"] == account


def test_a_failed_step_fails_the_build(boxed: Boxed, account: str) -> None:
    operation, url = start(boxed, account, "exit 3")
    assert "error" in boxed.done("cloudbuild.googleapis.com/v1", operation)
    described = boxed.answer("GET", url)
    assert (described["status"], described["steps"][0]["status"]) == ("FAILURE", "FAILURE")
    assert "status: 3" in described["failureInfo"]["detail"]


def test_a_cancelled_build_kills_its_step(boxed: Boxed, account: str) -> None:
    operation, url = start(boxed, account, "sleep 600")
    end = time.monotonic() + HANG_S
    while boxed.answer("GET", url)["steps"][0]["status"] != "WORKING":
        assert time.monotonic() < end
        time.sleep(0.05)
    boxed.answer("POST", f"{url}:cancel", {})
    assert "error" in boxed.done("cloudbuild.googleapis.com/v1", operation)
    described = boxed.answer("GET", url)
    assert (described["status"], described["steps"][0]["status"]) == ("CANCELLED", "CANCELLED")
    assert not list((boxed.cloud._config.directory / "sandboxes").iterdir())


def test_a_build_that_takes_too_long_is_ended(boxed: Boxed, account: str) -> None:
    operation, url = start(boxed, account, "sleep 600", timeout="1s")
    boxed.done("cloudbuild.googleapis.com/v1", operation)
    assert boxed.answer("GET", url)["status"] == "TIMEOUT"
