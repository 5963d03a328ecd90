"""Behaviours of objects, through the real front door."""

from __future__ import annotations

import base64
import gzip
import hashlib
import threading
from typing import Any

import pytest
from storage_front import OWNER, Front, object_path


@pytest.fixture
def versioned(front: Front, new_bucket: Any) -> str:
    return str(new_bucket(versioning={"enabled": True}))


def generations(front: Front, bucket: str, **query: Any) -> list[tuple[str, bool]]:
    """(content, live?) of every generation, oldest first."""
    items = front.request("GET", f"b/{bucket}/o", versions=True, **query).json.get("items", [])
    return [
        (
            front.read(bucket, item["name"], generation=item["generation"]).body.decode(),
            "timeDeleted" not in item,
        )
        for item in items
    ]


def test_an_upload_answers_with_the_resource(front: Front, bucket: str) -> None:
    content = b"print('hello')\n"
    made = front.put(bucket, "scripts/train.py", content).json
    assert made["size"] == "15"
    assert made["crc32c"] == "GU/h4g=="  # recorded from the official provider
    assert made["md5Hash"] == base64.b64encode(hashlib.md5(content).digest()).decode()
    assert made["metageneration"] == "1"
    assert made["id"] == f"{bucket}/scripts/train.py/{made['generation']}"
    assert made["selfLink"] == f"https://www.googleapis.com/storage/v1/b/{bucket}/o/scripts%2Ftrain.py"
    assert front.request("GET", object_path(bucket, "scripts/train.py")).json == made
    assert front.read(bucket, "scripts/train.py").body == content


def test_a_read_carries_hashes_and_generation(front: Front, bucket: str) -> None:
    made = front.put(bucket, "a", b"0123456789").json
    reply = front.read(bucket, "a")
    hashes = ",".join(reply.headers.get_all("X-Goog-Hash"))
    assert f"crc32c={made['crc32c']}" in hashes
    assert f"md5={made['md5Hash']}" in hashes
    assert reply.headers["X-Goog-Generation"] == made["generation"]
    assert reply.headers["X-Goog-Metageneration"] == "1"
    assert reply.headers["X-Goog-Stored-Content-Length"] == "10"


@pytest.mark.parametrize(
    ("wanted", "status", "content"),
    [
        ("bytes=0-3", 206, b"0123"),
        ("bytes=4-", 206, b"456789"),
        ("bytes=-3", 206, b"789"),
        ("bytes=8-100", 206, b"89"),
        ("bytes=7-3", 200, b"0123456789"),
        ("lines=1-2", 200, b"0123456789"),
        ("bytes=10-", 416, None),
    ],
)
def test_ranges(front: Front, bucket: str, wanted: str, status: int, content: bytes | None) -> None:
    front.put(bucket, "a", b"0123456789")
    reply = front.read(bucket, "a", headers={"Range": wanted})
    assert reply.status == status
    if content is not None:
        assert reply.body == content


def test_every_door_to_the_content(front: Front, bucket: str) -> None:
    front.put(bucket, "dir/a b", b"content")
    for path in (
        f"/storage/v1/{object_path(bucket, 'dir/a b')}?alt=media",
        f"/download/storage/v1/{object_path(bucket, 'dir/a b')}?alt=media",
        f"/{bucket}/dir/a%20b",
    ):
        assert front.request("GET", path).body == b"content", path
    head = front.request("HEAD", f"/{bucket}/dir/a%20b")
    assert head.status == 200
    assert head.headers["Content-Length"] == "7"
    assert head.body == b""


def test_gzip_is_for_those_who_take_it(front: Front, bucket: str) -> None:
    packed = gzip.compress(b"text" * 1000)
    made = front.put(bucket, "a", packed, contentEncoding="gzip").json
    assert made["contentEncoding"] == "gzip"
    assert front.read(bucket, "a").status == 501
    raw = front.read(bucket, "a", headers={"Accept-Encoding": "gzip"})
    assert raw.body == packed
    assert raw.headers["Content-Encoding"] == "gzip"


class TestPreconditions:
    def test_a_write_against_a_known_generation(self, front: Front, bucket: str) -> None:
        first = front.put(bucket, "a", b"1").json["generation"]
        second = front.put(bucket, "a", b"2", ifGenerationMatch=first).json["generation"]
        assert int(second) > int(first)
        assert front.put(bucket, "a", b"3", ifGenerationMatch=first).status == 412
        assert front.put(bucket, "b", b"3", ifGenerationMatch=first).status == 412

    def test_reads(self, front: Front, bucket: str) -> None:
        generation = front.put(bucket, "a", b"1").json["generation"]
        path = object_path(bucket, "a")
        assert front.request("GET", path, ifGenerationMatch=generation).status == 200
        assert front.request("GET", path, ifGenerationMatch=1).status == 412
        assert front.request("GET", path, ifMetagenerationMatch=2).status == 412
        unchanged = front.request("GET", path, ifGenerationNotMatch=generation)
        assert (unchanged.status, unchanged.body) == (304, b"")
        assert front.read(bucket, "a", ifGenerationNotMatch=generation).status == 304
        assert front.request("GET", object_path(bucket, "none"), ifGenerationMatch=5).status == 404

    def test_delete(self, front: Front, bucket: str) -> None:
        generation = front.put(bucket, "a", b"1").json["generation"]
        path = object_path(bucket, "a")
        assert front.request("DELETE", path, ifGenerationMatch=1).status == 412
        assert front.request("DELETE", path, ifGenerationMatch=generation).status == 204
        assert front.request("DELETE", path).status == 404

    def test_patch(self, front: Front, bucket: str) -> None:
        front.put(bucket, "a", b"1")
        path = object_path(bucket, "a")
        assert front.request("PATCH", path, {"metadata": {"k": "v"}}, ifMetagenerationMatch=1).status == 200
        assert front.request("PATCH", path, {"metadata": {"k": "w"}}, ifMetagenerationMatch=1).status == 412

    def test_one_of_many_racing_creators_wins(self, front: Front, bucket: str) -> None:
        statuses: list[int] = []

        def create(k: int) -> None:
            statuses.append(front.put(bucket, "lock", str(k).encode(), ifGenerationMatch=0).status)

        racers = [threading.Thread(target=create, args=(k,)) for k in range(12)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert sorted(statuses) == [200] + [412] * 11


class TestMetadata:
    def test_patch_merges_and_null_removes(self, front: Front, bucket: str) -> None:
        front.put(bucket, "a", b"1")
        path = object_path(bucket, "a")
        first = front.request("PATCH", path, {"contentType": "x/y", "metadata": {"a": "1", "b": "2"}}).json
        assert first["metageneration"] == "2"
        assert first["metadata"] == {"a": "1", "b": "2"}
        second = front.request("PATCH", path, {"contentType": None, "metadata": {"a": None, "c": "3"}}).json
        assert second["metadata"] == {"b": "2", "c": "3"}
        assert "contentType" not in second
        assert second["generation"] == first["generation"]
        assert second["metageneration"] == "3"
        assert second["etag"] != first["etag"]

    def test_update_replaces(self, front: Front, bucket: str) -> None:
        front.put(bucket, "a", b"1")
        path = object_path(bucket, "a")
        front.request("PATCH", path, {"cacheControl": "no-cache", "metadata": {"a": "1"}})
        assert front.request("PUT", path, {"metadata": {}}, ifMetagenerationMatch=1).status == 412
        updated = front.request("PUT", path, {"metadata": {"z": "26"}}).json
        assert updated["metadata"] == {"z": "26"}
        assert "cacheControl" not in updated

    def test_metadata_comes_with_the_content(self, front: Front, bucket: str) -> None:
        front.put(bucket, "a", b"1")
        front.request("PATCH", object_path(bucket, "a"), {"contentType": "text/x", "metadata": {"rev": "7"}})
        reply = front.read(bucket, "a")
        assert reply.headers["Content-Type"] == "text/x"
        assert reply.headers["X-Goog-Meta-rev"] == "7"

    def test_what_is_not_emulated_is_refused(self, front: Front, bucket: str) -> None:
        front.put(bucket, "a", b"1")
        retention = {"mode": "Locked", "retainUntilTime": "2030-01-01T00:00:00Z"}
        refused = front.request("PATCH", object_path(bucket, "a"), {"retention": retention})
        assert refused.status == 501
        assert "retention" in refused.json["error"]["message"]
        assert front.put(bucket, "b", b"1", predefinedAcl="publicRead").status == 501


class TestVersions:
    def test_overwriting_keeps_the_older_generation(self, front: Front, versioned: str) -> None:
        for content in (b"1", b"2", b"3"):
            front.put(versioned, "a", content)
        assert generations(front, versioned) == [("1", False), ("2", False), ("3", True)]
        assert front.request("GET", f"b/{versioned}/o").json["items"][0]["size"] == "1"
        assert len(front.request("GET", f"b/{versioned}/o").json["items"]) == 1

    def test_deleting_without_a_generation_archives(self, front: Front, versioned: str) -> None:
        made = front.put(versioned, "a", b"1").json
        assert front.request("DELETE", object_path(versioned, "a")).status == 204
        assert front.request("GET", object_path(versioned, "a")).status == 404
        assert generations(front, versioned) == [("1", False)]
        assert front.put(versioned, "a", b"2", ifGenerationMatch=0).status == 200
        front.request("DELETE", object_path(versioned, "a"), generation=made["generation"])
        assert generations(front, versioned) == [("2", True)]

    def test_deleting_the_live_generation_by_number_is_for_good(self, front: Front, versioned: str) -> None:
        first = front.put(versioned, "a", b"1").json
        second = front.put(versioned, "a", b"2").json
        front.request("DELETE", object_path(versioned, "a"), generation=second["generation"])
        assert front.request("GET", object_path(versioned, "a")).status == 404
        assert generations(front, versioned) == [("1", False)]
        assert front.read(versioned, "a", generation=first["generation"]).body == b"1"

    def test_generation_zero_names_none(self, front: Front, versioned: str) -> None:
        front.put(versioned, "a", b"1")
        assert front.request("DELETE", object_path(versioned, "a"), generation=0).status == 204
        assert generations(front, versioned) == [("1", False)]


def test_blobs_go_with_their_last_generation(front: Front, bucket: str) -> None:
    before = front.service.blobs.count
    front.put(bucket, "a", b"1")
    front.request("POST", f"{object_path(bucket, 'a')}/rewriteTo/{object_path(bucket, 'b')}", {})
    assert front.service.blobs.count == before + 1
    front.request("DELETE", object_path(bucket, "a"))
    assert front.read(bucket, "b").body == b"1"
    front.request("DELETE", object_path(bucket, "b"))
    assert front.service.blobs.count == before


class TestCopies:
    def test_rewrite_keeps_or_replaces_metadata(self, front: Front, bucket: str) -> None:
        front.put(bucket, "a", b"content")
        front.request("PATCH", object_path(bucket, "a"), {"contentType": "x/y", "metadata": {"k": "v"}})
        path = f"{object_path(bucket, 'a')}/rewriteTo/{object_path(bucket, 'dir/b')}"
        stored = front.request("POST", path, {}).json
        assert (stored["done"], stored["objectSize"]) == (True, "7")
        assert stored["resource"]["metadata"] == {"k": "v"}
        assert stored["resource"]["metageneration"] == "1"
        replaced = front.request("POST", path, {"contentType": "p/q"}).json["resource"]
        assert replaced["contentType"] == "p/q"
        assert "metadata" not in replaced
        assert front.read(bucket, "dir/b").body == b"content"

    def test_preconditions_of_both_ends(self, front: Front, bucket: str) -> None:
        source = front.put(bucket, "a", b"1").json["generation"]
        path = f"{object_path(bucket, 'a')}/copyTo/{object_path(bucket, 'b')}"
        assert front.request("POST", path, {}, ifSourceGenerationMatch=1).status == 412
        first = front.request("POST", path, {}, ifGenerationMatch=0, ifSourceGenerationMatch=source)
        assert first.status == 200
        assert front.request("POST", path, {}, ifGenerationMatch=0).status == 412

    def test_an_old_generation_can_be_brought_back(self, front: Front, versioned: str) -> None:
        first = front.put(versioned, "a", b"1").json["generation"]
        front.put(versioned, "a", b"2")
        path = f"{object_path(versioned, 'a')}/rewriteTo/{object_path(versioned, 'a')}"
        front.request("POST", path, {}, sourceGeneration=first)
        assert generations(front, versioned) == [("1", False), ("2", False), ("1", True)]

    def test_move(self, front: Front, bucket: str) -> None:
        front.grant(f"projects/_/buckets/{bucket}", "roles/storage.objectUser", f"user:{OWNER}")
        made = front.put(bucket, "a", b"1").json
        front.put(bucket, "taken", b"2")
        path = f"{object_path(bucket, 'a')}/moveTo/o/"
        assert front.request("POST", path + "taken", ifGenerationMatch=0).status == 412
        assert front.request("POST", path + "b", ifSourceGenerationMatch=1).status == 412
        assert front.request("POST", path + "b%0A").status == 400
        moved = front.request("POST", path + "b", ifSourceGenerationMatch=made["generation"]).json
        assert moved["name"] == "b"
        assert front.request("GET", object_path(bucket, "a")).status == 404
        assert front.read(bucket, "b").body == b"1"
        assert front.request("POST", path + "c").status == 404

    def test_compose(self, front: Front, bucket: str) -> None:
        parts = [front.put(bucket, f"part{k}", bytes([65 + k]) * 1000).json for k in range(4)]
        sources = [{"name": part["name"], "generation": part["generation"]} for part in parts]
        body = {"sourceObjects": sources, "destination": {"contentType": "x/y"}}
        made = front.request("POST", f"{object_path(bucket, 'whole')}/compose", body).json
        assert made["componentCount"] == 4
        assert "md5Hash" not in made
        assert made["contentType"] == "x/y"
        content = front.read(bucket, "whole").body
        assert content == b"A" * 1000 + b"B" * 1000 + b"C" * 1000 + b"D" * 1000
        assert made["crc32c"] == front.put(bucket, "same", content).json["crc32c"]

    def test_compose_refusals(self, front: Front, bucket: str) -> None:
        front.put(bucket, "a", b"1")
        path = f"{object_path(bucket, 'whole')}/compose"
        missing = front.request("POST", path, {"sourceObjects": [{"name": "none"}]})
        assert missing.status == 404
        stale = {"name": "a", "objectPreconditions": {"ifGenerationMatch": "1"}}
        assert front.request("POST", path, {"sourceObjects": [stale]}).status == 412
        assert front.request("POST", path, {"sourceObjects": [{"name": "a"}] * 33}).status == 400


def test_errors_are_in_google_s_form(front: Front, bucket: str) -> None:
    missing = front.request("GET", object_path(bucket, "none"))
    assert (missing.status, missing.reason) == (404, "notFound")
    assert missing.json["error"]["message"] == f"No such object: {bucket}/none"
    absent = front.request("GET", "b/no-such-bucket/o")
    assert absent.json["error"]["message"] == "The specified bucket does not exist."


class TestEtags:
    @pytest.mark.parametrize("which", ["bucket", "object"])
    def test_they_come_in_a_header_and_are_preconditions(self, front: Front, bucket: str, which: str) -> None:
        front.put(bucket, "a", b"1")
        path = f"b/{bucket}" if which == "bucket" else object_path(bucket, "a")
        etag = front.request("GET", path).headers["ETag"]
        change = {"labels": {"k": "v"}} if which == "bucket" else {"metadata": {"k": "v"}}
        assert front.request("GET", path, headers={"If-None-Match": etag}).status == 304
        assert front.request("GET", path, headers={"If-Match": f'"{etag}"'}).status == 200
        assert front.request("GET", path, headers={"If-Match": "stale"}).status == 412
        assert front.request("PATCH", path, change, headers={"If-Match": "stale"}).status == 412
        changed = front.request("PATCH", path, change, headers={"If-Match": f"stale, {etag}"})
        assert changed.status == 200
        assert changed.headers["ETag"] == changed.json["etag"] != etag
        assert front.request("DELETE", path, headers={"If-Match": etag}).status == 412

    def test_of_content_and_of_what_is_not_there(self, front: Front, bucket: str) -> None:
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=a"
        assert front.request("POST", path, b"1", headers={"If-Match": "*"}).status == 412
        assert front.request("POST", path, b"1", headers={"If-None-Match": "*"}).status == 200
        assert front.request("POST", path, b"2", headers={"If-None-Match": "*"}).status == 412
        etag = front.read(bucket, "a").headers["ETag"]
        assert front.read(bucket, "a", headers={"If-None-Match": etag}).status == 304


@pytest.mark.parametrize(
    "name", ["%FF", "a%80b", ".well-known/acme-challenge/x", ".", "..", "x" * 1025, "line%0Afeed"]
)
def test_names_that_google_refuses(front: Front, bucket: str, name: str) -> None:
    upload = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
    assert front.request("POST", upload, b"x").status == 400
    front.put(bucket, "a", b"x")
    copy = f"{object_path(bucket, 'a')}/rewriteTo/b/{bucket}/o/{name.replace('/', '%2F')}"
    assert front.request("POST", copy, {}).status == 400
    items = front.request("GET", f"b/{bucket}/o").json["items"]
    assert [item["name"] for item in items] == ["a"]


def test_a_replacement_character_and_a_surrogate(front: Front, bucket: str) -> None:
    assert front.put(bucket, "a\ufffdb", b"x").json["name"] == "a\ufffdb"
    begun = front.request("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=resumable", {"name": "\ud800"})
    assert begun.status == 400


def test_metadata_has_limits(front: Front, bucket: str) -> None:
    front.put(bucket, "a", b"1")
    path = object_path(bucket, "a")
    half = "x" * 4095
    assert front.request("PATCH", path, {"metadata": {"a": half}}).status == 200
    assert front.request("PATCH", path, {"metadata": {"b": half}}).status == 200, "8 KiB altogether"
    assert front.request("PATCH", path, {"metadata": {"b": half + "x"}}).status == 400
    assert front.request("PATCH", path, {"customTime": "2026-01-02T00:00:00Z"}).status == 200
    for earlier in ("2026-01-02T00:30:00+01:00", None):
        assert front.request("PATCH", path, {"customTime": earlier}).status == 400
    assert front.request("PATCH", path, {"customTime": "2026-01-03T00:00:00Z"}).status == 200


@pytest.mark.parametrize(
    ("method", "path", "host"),
    [
        ("PUT", "/{bucket}/a", None),
        ("DELETE", "/{bucket}/a", None),
        ("GET", "/{bucket}", None),
        ("GET", "/{bucket}?prefix=a", None),
        ("POST", "/{bucket}/a?uploads", None),
        ("GET", "/a", "{bucket}.storage.googleapis.com"),
        ("GET", "/{bucket}/a?X-Goog-Signature=00", None),
        ("DELETE", "/storage/v1/b/{bucket}/notificationConfigs/1", None),
        ("POST", "/storage/v1/b/{bucket}/managedFolders", None),
        ("GET", "/storage/v1/b/{bucket}/acl", None),
        ("GET", "/storage/v1/b/{bucket}?softDeleted=true&generation=1", None),
        ("GET", "/storage/v1/b?project=wire-test&softDeleted=true", None),
        ("GET", "/storage/v1/b/{bucket}/o?softDeleted=true", None),
        ("POST", "{one}/restore?generation=1", None),
        ("GET", "/storage/v1/b/{bucket}/o?filter=contexts.a:*", None),
        ("GET", "/storage/v1/b/{bucket}/o?matchGlob=a*&delimiter=/", None),
        ("POST", "/upload/storage/v1/b/{bucket}/o?uploadType=media&name=b&predefinedAcl=publicRead", None),
        ("POST", "{one}/copyTo/b/{bucket}/o/c?destinationPredefinedAcl=publicRead", None),
        ("POST", "{one}/compose?destinationPredefinedAcl=publicRead", None),
        ("PATCH", "/storage/v1/b/{bucket}?predefinedAcl=publicRead", None),
    ],
)
def test_what_is_not_emulated_says_so(
    front: Front, bucket: str, method: str, path: str, host: str | None
) -> None:
    front.put(bucket, "a", b"1")
    headers = {"X-Test-Host": host.format(bucket=bucket)} if host else {}
    body = b"" if method in ("PUT", "POST") else None
    item = f"/storage/v1/b/{bucket}/o/a"
    reply = front.request(method, path.format(bucket=bucket, one=item), body, headers=headers)
    assert (reply.status, reply.reason) == (501, "notImplemented"), reply.body
    assert "not emulated" in reply.json["error"]["message"]
