"""Google's batch form: a multipart/mixed body whose parts are whole HTTP requests.

Protocol: https://cloud.google.com/storage/docs/batch. gcsfs and google-cloud-storage delete through it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser

from aiohttp import web

from rehearsal.cloud.core.errors import bad_request

# https://cloud.google.com/storage/docs/batch#overview
MAX_PARTS = 100


@dataclass(frozen=True)
class Part:
    """A request of a batch; its target is a path with query, still percent-encoded."""

    content_id: str
    http_method: str
    target: str
    headers: dict[str, str]
    body: bytes


def parse(content_type: str, body: bytes) -> list[Part]:
    """Parse the requests of a batch; ApiError 400 for a malformed body."""
    message = BytesParser().parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    if not message.is_multipart():
        raise bad_request("Failed to parse batch request, error: the body is not multipart/mixed.")
    parts = [_part(item) for item in message.get_payload() if isinstance(item, Message)]
    if len(parts) > MAX_PARTS:
        raise bad_request(f"The batch request has {len(parts)} calls; at most {MAX_PARTS} are allowed.")
    return parts


def _part(item: Message) -> Part:
    payload = item.get_payload(decode=True)
    if not isinstance(payload, bytes):
        raise bad_request("Failed to parse batch request, error: a part is empty.")
    head, _, body = payload.replace(b"\r\n", b"\n").partition(b"\n\n")
    request_line, _, header_lines = head.lstrip(b"\n").partition(b"\n")
    words = request_line.decode("latin-1").split()
    if len(words) < 2:
        raise bad_request(f"Failed to parse batch request, error: '{request_line!r}' is no request line.")
    headers = dict(BytesParser().parsebytes(header_lines + b"\n\n", headersonly=True).items())
    target = words[1]
    if "://" in target:
        target = "/" + target.split("://", 1)[1].partition("/")[2]
    return Part(item.get("Content-ID", ""), words[0], target, headers, body.strip(b"\n"))


def render(answers: list[tuple[Part, web.Response]]) -> web.Response:
    """Render the multipart answer, in the order of the requests."""
    boundary = f"batch_{uuid.uuid4().hex}"
    chunks: list[bytes] = []
    for part, response in answers:
        body = response.body if isinstance(response.body, bytes) else b""
        chunks.append(f"--{boundary}\r\nContent-Type: application/http\r\n".encode())
        if part.content_id:
            chunks.append(f"Content-ID: <response-{part.content_id.removeprefix('<')}\r\n".encode())
        chunks.append(f"\r\nHTTP/1.1 {response.status} {response.reason}\r\n".encode())
        headers = {name: value for name, value in response.headers.items() if name != "Content-Length"}
        headers["Content-Length"] = str(len(body))
        chunks.extend(f"{name}: {value}\r\n".encode() for name, value in headers.items())
        chunks.append(b"\r\n" + body + b"\r\n")
    chunks.append(f"--{boundary}--\r\n".encode())
    return web.Response(
        body=b"".join(chunks), headers={"Content-Type": f"multipart/mixed; boundary={boundary}"}
    )
