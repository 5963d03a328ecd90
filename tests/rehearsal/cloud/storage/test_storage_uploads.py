"""Ways to upload, and what becomes of uploads that break."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
from urllib.parse import urlsplit

import pytest
from storage_front import Front, Reply, object_path

from tests.limits import until

QUANTUM = 256 * 1024


def begin(front: Front, bucket: str, name: str, **query: object) -> str:
    """Start a resumable upload; its session's path with query."""
    reply = front.request(
        "POST",
        f"/upload/storage/v1/b/{bucket}/o",
        {"name": name, "contentType": "x/y", "metadata": {"k": "v"}},
        headers={"Content-Type": "application/json"},
        uploadType="resumable",
        **query,
    )
    assert reply.status == 200, reply.body
    location = reply.headers["Location"]
    assert location.startswith(f"{front.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&")
    return location.removeprefix(front.url)


def send(front: Front, session: str, content: bytes, content_range: str | None) -> Reply:
    headers = {"Content-Range": content_range} if content_range else {}
    return front.request("PUT", session, content, headers=headers)


class TestMultipart:
    def upload(self, front: Front, bucket: str, metadata: dict[str, object], content: bytes) -> Reply:
        body = (
            b"--=b==\r\nContent-Type: application/json\r\n\r\n"
            + json.dumps(metadata).encode()
            + b"\n\r\n--=b==\r\nContent-Type: text/x-python\r\n\r\n"
            + content
            + b"\r\n--=b==--\r\n"
        )
        headers = {"Content-Type": 'multipart/related; boundary="=b=="'}
        return front.request(
            "POST", f"/upload/storage/v1/b/{bucket}/o", body, headers=headers, uploadType="multipart"
        )

    def test_metadata_and_content(self, front: Front, bucket: str) -> None:
        content = os.urandom(3_000_000) + b"\r\n--=b"
        made = self.upload(front, bucket, {"name": "a", "cacheControl": "no-cache"}, content).json
        assert made["contentType"] == "text/x-python"
        assert made["cacheControl"] == "no-cache"
        assert made["md5Hash"] == base64.b64encode(hashlib.md5(content).digest()).decode()
        assert front.read(bucket, "a").body == content

    def test_a_wrong_hash_is_refused_and_leaves_nothing(self, front: Front, bucket: str) -> None:
        before = front.service.blobs.count
        wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
        for declared in ({"md5Hash": wrong}, {"crc32c": "AAAAAA=="}):
            refused = self.upload(front, bucket, {"name": "a", **declared}, b"content")
            assert (refused.status, refused.reason) == (400, "invalid")
        assert front.request("GET", object_path(bucket, "a")).status == 404
        assert front.service.blobs.count == before

    def test_malformed(self, front: Front, bucket: str) -> None:
        path = f"/upload/storage/v1/b/{bucket}/o"
        for content_type, body in (
            ("multipart/related", b"x"),
            ('multipart/related; boundary="B"', b"--B\r\n\r\n{}\r\n--B--\r\n"),
            ('multipart/related; boundary="B"', b"--B\r\n\r\nnot json\r\n--B\r\n\r\nx\r\n--B--\r\n"),
        ):
            headers = {"Content-Type": content_type}
            reply = front.request("POST", path, body, headers=headers, uploadType="multipart", name="a")
            assert reply.status == 400, (content_type, body)


def test_a_declared_hash_of_a_media_upload_is_checked(front: Front, bucket: str) -> None:
    path = f"/upload/storage/v1/b/{bucket}/o"
    for hashes, status in (("crc32c=AAAAAA==", 400), ("md5=mgNkuembtIDdJeHwKEyFVQ==", 200)):
        headers = {"X-Goog-Hash": hashes}
        reply = front.request("POST", path, b"content", headers=headers, uploadType="media", name="a")
        assert reply.status == status, hashes


class TestResumable:
    def test_chunks(self, front: Front, bucket: str) -> None:
        content = os.urandom(2 * QUANTUM + 1000)
        session = begin(front, bucket, "a")
        first = send(front, session, content[:QUANTUM], f"bytes 0-{QUANTUM - 1}/*")
        assert (first.status, first.headers["Range"]) == (308, f"bytes=0-{QUANTUM - 1}")
        assert front.request("GET", object_path(bucket, "a")).status == 404
        total = len(content)
        second = send(front, session, content[QUANTUM:], f"bytes {QUANTUM}-{total - 1}/{total}")
        assert second.status == 200
        assert second.json["contentType"] == "x/y"
        assert second.json["metadata"] == {"k": "v"}
        assert front.read(bucket, "a").body == content
        again = send(front, session, b"", f"bytes */{total}")
        assert again.json == second.json

    def test_a_status_question_does_not_finish_a_partial_upload(self, front: Front, bucket: str) -> None:
        session = begin(front, bucket, "a")
        assert "Range" not in send(front, session, b"", f"bytes */{2 * QUANTUM}").headers
        send(front, session, b"x" * QUANTUM, f"bytes 0-{QUANTUM - 1}/{2 * QUANTUM}")
        status = send(front, session, b"", f"bytes */{2 * QUANTUM}")
        assert (status.status, status.headers["Range"]) == (308, f"bytes=0-{QUANTUM - 1}")
        assert front.request("GET", object_path(bucket, "a")).status == 404

    def test_a_chunk_sent_twice_counts_once(self, front: Front, bucket: str) -> None:
        content = os.urandom(2 * QUANTUM)
        session = begin(front, bucket, "a")
        for _ in range(2):
            send(front, session, content[:QUANTUM], f"bytes 0-{QUANTUM - 1}/*")
        done = send(front, session, content, f"bytes 0-{2 * QUANTUM - 1}/{2 * QUANTUM}")
        assert done.json["size"] == str(2 * QUANTUM)
        assert front.read(bucket, "a").body == content

    def test_a_gap_and_an_odd_chunk_are_refused(self, front: Front, bucket: str) -> None:
        session = begin(front, bucket, "a")
        for first in (1, QUANTUM):
            sent = f"bytes {first}-{first + QUANTUM - 1}/*"
            assert send(front, session, b"x" * QUANTUM, sent).status == 400, sent
        assert send(front, session, b"x" * 1000, "bytes 0-999/*").status == 400

    def test_a_stream_ends_with_its_total_an_empty_object_and_a_body_without_range(
        self, front: Front, bucket: str
    ) -> None:
        session = begin(front, bucket, "a")
        send(front, session, b"x" * QUANTUM, f"bytes 0-{QUANTUM - 1}/*")
        assert send(front, session, b"", f"bytes */{QUANTUM}").json["size"] == str(QUANTUM)
        assert send(front, begin(front, bucket, "e"), b"", "bytes */0").json["size"] == "0"
        assert send(front, begin(front, bucket, "w"), b"whole", None).json["size"] == "5"
        assert front.read(bucket, "e").body == b""

    def test_go_clients_get_their_308_in_a_header(self, front: Front, bucket: str) -> None:
        session = begin(front, bucket, "a")
        headers = {"Content-Range": f"bytes 0-{QUANTUM - 1}/*", "X-GUploader-No-308": "yes"}
        reply = front.request("PUT", session, b"x" * QUANTUM, headers=headers)
        assert (reply.status, reply.headers["X-HTTP-Status-Code-Override"]) == (200, "308")

    def test_cancelled(self, front: Front, bucket: str) -> None:
        before = front.service.blobs.count
        session = begin(front, bucket, "a")
        send(front, session, b"x" * QUANTUM, f"bytes 0-{QUANTUM - 1}/*")
        assert front.request("DELETE", session).status == 499
        assert send(front, session, b"", "bytes */*").status == 404
        assert front.service.blobs.count == before

    def test_a_hash_that_comes_with_the_last_chunk_is_checked(self, front: Front, bucket: str) -> None:
        before = front.service.blobs.count
        for wrong in ("crc32c=AAAAAA==", "md5=AAAAAAAAAAAAAAAAAAAAAA=="):
            session = begin(front, bucket, "a")
            refused = front.request("PUT", session, b"content", headers={"X-Goog-Hash": wrong})
            assert (refused.status, refused.reason) == (400, "invalid")
            assert send(front, session, b"", "bytes */*").status == 404, "nothing is left to resume"
        assert front.request("GET", object_path(bucket, "a")).status == 404
        assert front.service.blobs.count == before

    def test_its_uri_is_a_credential_and_no_other_uri_is(self, front: Front, bucket: str) -> None:
        session = begin(front, bucket, "a")
        bare = {"Authorization": ""}
        expired = {"Authorization": "Bearer ya29.gone"}
        assert front.request("PUT", session, b"content", headers=expired).status == 401
        assert front.request("PUT", session, b"content", headers=bare).json["size"] == "7"
        guessed = session.partition("upload_id=")[0] + "upload_id=guessed"
        assert front.request("PUT", guessed, b"content", headers=bare).status == 404
        media = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=b"
        assert front.request("POST", media, b"x", headers=bare).status == 401
        assert front.request("GET", f"b/{bucket}/o?upload_id=guessed", headers=bare).status == 401

    def test_the_precondition_holds_when_it_finishes(self, front: Front, bucket: str) -> None:
        session = begin(front, bucket, "a", ifGenerationMatch=0)
        front.put(bucket, "a", b"faster")
        assert send(front, session, b"slower", None).status == 412
        assert front.read(bucket, "a").body == b"faster"
        assert (
            front.request(
                "POST",
                f"/upload/storage/v1/b/{bucket}/o",
                {"name": "a"},
                uploadType="resumable",
                ifGenerationMatch=0,
            ).status
            == 412
        )

    def test_a_connection_that_breaks_keeps_what_arrived(self, front: Front, bucket: str) -> None:
        content = os.urandom(2 * QUANTUM)
        session = begin(front, bucket, "a")
        with socket.create_connection(("127.0.0.1", front.port)) as half:
            head = (
                f"PUT {session} HTTP/1.1\r\nHost: {urlsplit(front.url).netloc}\r\n"
                f"Content-Length: {len(content)}\r\n"
                f"Content-Range: bytes 0-{len(content) - 1}/{len(content)}\r\n\r\n"
            )
            half.sendall(head.encode() + content[:300_000])
        for _ in range(100):
            status = send(front, session, b"", f"bytes */{len(content)}")
            if status.headers.get("Range") == "bytes=0-299999":
                break
        assert (status.status, status.headers["Range"]) == (308, "bytes=0-299999")
        rest = send(front, session, content[300_000:], f"bytes 300000-{len(content) - 1}/{len(content)}")
        assert rest.status == 200
        assert front.read(bucket, "a").body == content


def test_a_stalled_upload_stops_nobody(front: Front, bucket: str) -> None:
    front.put(bucket, "a", b"here")
    with socket.create_connection(("127.0.0.1", front.port)) as stalled:
        head = (
            f"POST /upload/storage/v1/b/{bucket}/o?uploadType=media&name=slow HTTP/1.1\r\n"
            f"Host: {urlsplit(front.url).netloc}\r\nContent-Length: 1000000\r\n\r\n"
        )
        stalled.sendall(head.encode() + b"x" * 500_000)
        assert front.put(bucket, "b", b"quick").status == 200
        assert front.read(bucket, "a").body == b"here"
    assert front.request("GET", object_path(bucket, "slow")).status == 404


def test_a_lost_connection_is_no_crash_of_ours(front: Front, bucket: str) -> None:
    before = front.requests.since(0)["next"]
    with socket.create_connection(("127.0.0.1", front.port)) as broken:
        head = (
            f"POST /upload/storage/v1/b/{bucket}/o?uploadType=media&name=half HTTP/1.1\r\n"
            f"Host: {urlsplit(front.url).netloc}\r\nContent-Length: 1000000\r\n\r\n"
        )
        broken.sendall(head.encode() + b"x" * 500_000)

    def reasons() -> list[str]:
        requests = front.requests.since(before)["requests"]
        return [request["reason"] for request in requests if "name=half" in request["path"]]

    assert until(reasons) == ["connection-lost"]


@pytest.mark.parametrize("kind", ["", "simple"])
def test_an_unknown_protocol_is_refused(front: Front, bucket: str, kind: str) -> None:
    reply = front.request("POST", f"/upload/storage/v1/b/{bucket}/o", b"x", uploadType=kind, name="a")
    assert reply.status == 400
