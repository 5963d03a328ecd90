"""An object name takes one mutation a second, after a few at once; clients wait and continue."""

from __future__ import annotations

import time

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from storage_front import OWNER, PROJECT, Front, object_path

from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.services.storage.limits import BURST, MutationLimit, by_virtual_clock


def test_more_than_a_burst_is_refused_until_a_second_has_passed(
    front: Front, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [1000.0]
    monkeypatch.setattr(front.limit, "now", lambda: seconds[0])
    front.grant(
        f"projects/_/buckets/{bucket}", "roles/storage.objectUser", f"user:{OWNER}"
    )  # to move objects
    path, content = object_path(bucket, "a"), f"{BURST - 1}".encode()
    before = front.service.blobs.count
    for k in range(BURST):
        assert front.put(bucket, "a", str(k).encode()).status == 200
    for refused in (
        front.put(bucket, "a", b"more"),
        front.request("PATCH", path, {"metadata": {"k": "v"}}),
        front.request("DELETE", path),
        front.request("POST", f"{path}/moveTo/o/b"),
        front.request("POST", f"{path}/compose", {"sourceObjects": [{"name": "a"}]}),
        front.request("POST", f"{path}/rewriteTo/{path}", {}),
    ):
        assert (refused.status, refused.reason) == (429, "rateLimitExceeded")
        assert f"The object {bucket}/a exceeded the rate limit" in refused.json["error"]["message"]
    assert front.read(bucket, "a").body == content
    assert front.put(bucket, "another", b"x").status == 200
    assert front.service.blobs.count == before + 2, "what was refused is kept nowhere"
    seconds[0] += 1
    assert front.request("DELETE", path).status == 204
    assert front.put(bucket, "a", b"too soon").status == 429
    seconds[0] += 1
    assert front.put(bucket, "a", b"again").status == 200


def test_what_fails_costs_nothing(front: Front, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front.limit, "now", lambda: 1000.0)
    front.put(bucket, "a", b"1")
    for _ in range(2 * BURST):
        assert front.put(bucket, "a", b"2", ifGenerationMatch=0).status == 412
    assert front.put(bucket, "a", b"2").status == 200


def test_google_s_client_waits_and_loses_nothing(front: Front, bucket: str, limited: None) -> None:
    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    options = {"api_endpoint": front.url}
    client = storage.Client(project=PROJECT, credentials=credentials, client_options=options)
    blob, begun = client.bucket(bucket).blob("status.json"), front.requests.since(0)["next"]
    start = time.monotonic()
    for k in range(BURST + 2):
        blob.upload_from_string(str(k))
    assert time.monotonic() - start >= 1, "the second after the burst had to be waited for"
    assert front.read(bucket, "status.json").body == str(BURST + 1).encode()
    reasons = [entry["reason"] for entry in front.requests.since(begun)["requests"]]
    assert "rateLimitExceeded" in reasons


def test_what_the_virtual_clock_starts_is_counted_by_it() -> None:
    """A function that is called every virtual minute would write one object too often by the real clock."""
    virtual = [5000.0]
    limit = MutationLimit(lambda: 1000.0, lambda: virtual[0])

    def is_taken() -> bool:
        try:
            limit.spend("b", "a")
        except ApiError:
            return False
        return True

    assert [is_taken() for _ in range(BURST + 1)] == [True] * BURST + [False]
    token = by_virtual_clock.set(True)
    try:
        assert [is_taken() for _ in range(BURST + 1)] == [True] * BURST + [False]
        virtual[0] += 1
        assert is_taken()
    finally:
        by_virtual_clock.reset(token)
    assert not is_taken(), "whoever waits by the real clock still has to"
