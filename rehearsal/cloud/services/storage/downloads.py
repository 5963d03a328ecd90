"""storage.objects.get with alt=media, and XML-API reads: ranges and hashes."""

from __future__ import annotations

import re
from datetime import datetime
from email.utils import format_datetime

from aiohttp import web

from rehearsal.cloud.core.errors import ApiError, NotEmulatedError
from rehearsal.cloud.services.storage.blobs import BlobStore
from rehearsal.cloud.services.storage.versions import Version

_RANGE = re.compile(r"bytes=(?:(?P<first>\d+)-(?P<last>\d*)|-(?P<suffix>\d+))")


async def send(request: web.Request, version: Version, blobs: BlobStore) -> web.StreamResponse:
    """Answer the request with the content, or only its headers for HEAD."""
    headers = _headers(version)
    encoding = version.fields.get("contentEncoding")
    if encoding == "gzip" and "gzip" not in request.headers.get("Accept-Encoding", ""):
        raise NotEmulatedError("Unpacking of an object with the content encoding gzip")
    size = version.blob.size
    start, end = 0, size
    status = 200
    if encoding:
        headers["Content-Encoding"] = encoding
    desired = byte_range(request.headers.get("Range"), size)
    if desired is not None:
        start, end = desired
        status = 206
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    headers["Content-Length"] = str(end - start)
    response = web.StreamResponse(status=status, headers=headers)
    if version.blob.md5:
        response.headers.add("X-Goog-Hash", f"md5={version.blob.md5}")
    blobs.retain(version.blob)  # the object may be deleted while it is read
    try:
        await response.prepare(request)
        if request.method != "HEAD":
            async for chunk in blobs.read(version.blob, start, end):
                await response.write(chunk)
    finally:
        blobs.release(version.blob)
    await response.write_eof()
    return response


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """[start, end) of a Range header; None for the whole object, as for headers that are not understood.

    ApiError 416 if the range begins behind the end.
    """
    match = _RANGE.fullmatch(header or "")
    if match is None:
        return None
    if match["suffix"] is not None:
        start, end = max(0, size - int(match["suffix"])), size
    else:
        start = int(match["first"])
        end = min(size, int(match["last"]) + 1) if match["last"] else size
        if match["last"] and int(match["last"]) < start:
            return None
    if start >= size:
        raise ApiError(
            416, "OUT_OF_RANGE", "Request range not satisfiable", reason="requestedRangeNotSatisfiable"
        )
    return start, end


def _headers(version: Version) -> dict[str, str]:
    fields = version.fields
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Type": fields.get("contentType", "application/octet-stream"),
        "ETag": f'"{version.etag}"',
        "Last-Modified": format_datetime(datetime.fromisoformat(version.updated), usegmt=True),
        "Cache-Control": fields.get("cacheControl", "private, max-age=0"),
        "X-Goog-Generation": str(version.generation),
        "X-Goog-Metageneration": str(version.metageneration),
        "X-Goog-Hash": f"crc32c={version.blob.crc32c}",
        "X-Goog-Storage-Class": version.storage_class,
        "X-Goog-Stored-Content-Encoding": fields.get("contentEncoding", "identity"),
        "X-Goog-Stored-Content-Length": str(version.blob.size),
    }
    for key, header in (
        ("contentDisposition", "Content-Disposition"),
        ("contentLanguage", "Content-Language"),
    ):
        if key in fields:
            headers[header] = fields[key]
    return headers | {f"X-Goog-Meta-{key}": value for key, value in fields.get("metadata", {}).items()}
