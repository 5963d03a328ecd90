"""storage.objects.insert: media, multipart and resumable uploads, streamed through.

Protocol: https://cloud.google.com/storage/docs/uploads-downloads and
https://cloud.google.com/storage/docs/performing-resumable-uploads.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from urllib.parse import quote

from aiohttp import web

from rehearsal.cloud.core.errors import ApiError, JsonObject, bad_request
from rehearsal.cloud.core.service import Answer, Call
from rehearsal.cloud.services.storage import encryption
from rehearsal.cloud.services.storage.blobs import Blob, BlobWriter
from rehearsal.cloud.services.storage.conditions import Conditions
from rehearsal.cloud.services.storage.multipart import RelatedParts
from rehearsal.cloud.services.storage.resources import (
    base_url,
    check_name,
    object_body,
    refuse_acls,
    settable,
    storage_class,
)
from rehearsal.cloud.services.storage.store import Store
from rehearsal.cloud.services.storage.versions import Version

_QUANTUM_BYTES = 256 * 1024
_KEPT_SESSIONS = 1000
_CONTENT_RANGE = re.compile(r"bytes (?:(?P<first>\d+)-(?P<last>\d+|\*)|\*)/(?P<total>\d+|\*)")


@dataclass(frozen=True)
class _Intent:
    """A client's declaration of the object that it is going to send."""

    bucket: str
    name: str
    fields: JsonObject
    storage_class: str | None
    hashes: list[tuple[str, str]]
    conditions: Conditions
    principal: str


@dataclass
class _Session:
    """A resumable upload, whose content flows into a blob."""

    intent: _Intent
    writer: BlobWriter
    finished: Version | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Uploads:
    """Uploads; a resumable one is a session until it is finished, refused or cancelled."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions: dict[str, _Session] = {}
        self._finished: deque[str] = deque()

    async def insert(self, call: Call) -> Answer:
        """storage.objects.insert, by the upload protocol that the request names."""
        upload_id = call.raw.query.get("upload_id")
        if upload_id is not None:
            return await self._continue(call, upload_id)
        refuse_acls(call)
        kind = call.raw.query.get("uploadType")
        if kind == "media":
            intent = self._intent(call, {})
            content_type = call.raw.headers.get("Content-Type")
            if content_type:
                intent.fields.setdefault("contentType", content_type)
            version = await self._store_whole(intent, _pieces(call.raw))
        elif kind == "multipart":
            version = await self._multipart(call)
        elif kind == "resumable":
            return await self._begin(call)
        else:
            raise bad_request(f"Invalid uploadType: {kind!r}; it must be media, multipart or resumable.")
        return object_body(version, call)

    def _intent(self, call: Call, body: JsonObject) -> _Intent:
        bucket = call.path["bucket"]
        name = call.query.get("name") or body.get("name") or ""
        check_name(name, call.raw.raw_path)
        fields = settable(body)
        if call.query.get("contentEncoding"):
            fields["contentEncoding"] = call.query["contentEncoding"]
        named = call.query.get("kmsKeyName") or body.get("kmsKeyName")
        declared = [("md5", body.get("md5Hash", "")), ("crc32c", body.get("crc32c", ""))]
        intent = _Intent(
            bucket=bucket,
            name=name,
            fields=fields,
            storage_class=storage_class(body),
            hashes=[*declared, *_declared(call.raw)],
            conditions=Conditions.of(call),
            principal=call.principal,
        )
        # Asked before the content flows, to refuse early, and again when the object is made.
        self._authorize(intent)
        fields |= encryption.for_new(self._store, call, bucket, named)
        return intent

    def _authorize(self, intent: _Intent) -> None:
        self._store.require_write(intent.principal, intent.bucket, intent.name)
        intent.conditions.check(self._store.objects(intent.bucket).live(intent.name))

    def _finish(self, intent: _Intent, blob: Blob, hashes: Iterable[tuple[str, str]] = ()) -> Version:
        try:
            _verify([*intent.hashes, *hashes], blob)
            self._authorize(intent)
        except ApiError:
            self._store.blobs.release(blob)
            raise
        objects = self._store.objects(intent.bucket)
        return objects.write(intent.name, blob, intent.fields, intent.storage_class)

    async def _store_whole(self, intent: _Intent, pieces: AsyncIterator[bytes]) -> Version:
        blob = await self._store.blobs.put(pieces)
        return self._finish(intent, blob)

    async def _multipart(self, call: Call) -> Version:
        parts = RelatedParts(call.raw.headers.get("Content-Type", ""), call.raw.content)
        intent = self._intent(call, await parts.metadata())
        if parts.content_type:
            intent.fields.setdefault("contentType", parts.content_type)
        return await self._store_whole(intent, parts.content())

    async def _begin(self, call: Call) -> web.Response:
        body = call.body
        if body is None:
            text = await call.raw.text()
            try:
                body = json.loads(text) if text else {}
            except ValueError:
                raise bad_request("Parse Error: a resumable upload starts with a JSON body.") from None
        intent = self._intent(call, body)
        content_type = call.raw.headers.get("X-Upload-Content-Type")
        if content_type:
            intent.fields.setdefault("contentType", content_type)
        upload_id = secrets.token_urlsafe(48)
        self._sessions[upload_id] = _Session(intent, self._store.blobs.writer())
        path = f"/upload/storage/v1/b/{intent.bucket}/o"
        query = f"uploadType=resumable&name={quote(intent.name, safe='')}&upload_id={upload_id}"
        headers = {"Location": f"{base_url(call)}{path}?{query}", "X-GUploader-UploadID": upload_id}
        return web.Response(status=200, headers=headers)

    async def _continue(self, call: Call, upload_id: str) -> Answer:
        session = self._sessions.get(upload_id)
        if session is None:
            raise ApiError(404, "NOT_FOUND", "The resumable upload does not exist or was cancelled.")
        if call.raw.method == "DELETE":
            self._sessions.pop(upload_id).writer.discard()
            return web.Response(status=499, reason="Client Closed Request")
        async with session.lock:
            if session.finished is None:
                if not await self._receive(session, call):
                    return _incomplete(call, session.writer.size)
                try:
                    blob = await session.writer.finish()
                    session.finished = self._finish(session.intent, blob, _declared(call.raw))
                except ApiError:  # what came was refused: nothing to resume
                    del self._sessions[upload_id]
                    raise
                self._remember(upload_id)
            return object_body(session.finished, call)

    def _remember(self, upload_id: str) -> None:
        """Keep the newest finished sessions, for clients whose last answer got lost."""
        self._finished.append(upload_id)
        if len(self._finished) > _KEPT_SESSIONS:
            self._sessions.pop(self._finished.popleft(), None)

    async def _receive(self, session: _Session, call: Call) -> bool:
        """Store this request's bytes; return True if they complete the upload."""
        first, last, total = _content_range(call.raw)
        writer = session.writer
        if first is None:  # a question for the state, or the end of a stream whose last chunk is in
            return total is not None and total == writer.size
        if first > writer.size:
            raise bad_request(f"Invalid request: byte {first} before byte {writer.size} was received.")
        skip = writer.size - first  # sent again after an answer that got lost
        size = 0
        async for piece in _pieces(call.raw):
            size += len(piece)
            fresh = piece[skip:] if skip else piece
            skip = max(0, skip - len(piece))
            if fresh:
                await writer.write(fresh)
        if last is not None and size != last - first + 1:
            raise bad_request(f"Invalid request: Content-Range says {last - first + 1} bytes, {size} came.")
        if last is None or writer.size == total:
            return True
        if size % _QUANTUM_BYTES:
            raise bad_request(
                f"Invalid request: a chunk that is not the last must be n × {_QUANTUM_BYTES} bytes."
            )
        return False


def _content_range(request: web.Request) -> tuple[int | None, int | None, int | None]:
    """(first, last, total): no first: a status request; no last: all that is left; no total: unknown yet."""
    text = request.headers.get("Content-Range")
    if text is None:
        return 0, None, None
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        raise bad_request(f"Failed to parse Content-Range header: {text!r}")
    first, last, total = (match[name] for name in ("first", "last", "total"))
    return (
        None if first is None else int(first),
        None if last in (None, "*") else int(last),
        None if total == "*" else int(total),
    )


def _incomplete(call: Call, received: int) -> web.Response:
    """Return 308; for Go clients, whose HTTP library would follow it, 200 with the status in a header."""
    headers = {"Range": f"bytes=0-{received - 1}"} if received else {}
    if call.raw.headers.get("X-GUploader-No-308"):
        return web.Response(status=200, headers=headers | {"X-HTTP-Status-Code-Override": "308"})
    return web.Response(status=308, reason="Resume Incomplete", headers=headers)


def _declared(request: web.Request) -> list[tuple[str, str]]:
    """(kind, hash) of the headers: of a whole upload, or of a resumable one at its beginning or end."""
    listed = [part.strip() for text in request.headers.getall("X-Goog-Hash", []) for part in text.split(",")]
    listed += [f"md5={text}" for text in request.headers.getall("Content-MD5", [])]
    return [(kind, value) for kind, _, value in (part.partition("=") for part in listed)]


def _verify(hashes: Iterable[tuple[str, str]], blob: Blob) -> None:
    """ApiError 400 if a declared hash is not that of the content."""
    for kind, declared in hashes:
        shown, actual = {"md5": ("MD5 hash", blob.md5), "crc32c": ("CRC32C", blob.crc32c)}.get(kind, ("", ""))
        if shown and declared and declared != actual:
            raise bad_request(f'Provided {shown} "{declared}" doesn\'t match calculated {shown} "{actual}".')


async def _pieces(request: web.Request) -> AsyncIterator[bytes]:
    async for piece in request.content.iter_any():
        yield piece
