"""A streaming reader of the two parts of a multipart/related upload: JSON metadata, then the content.

Cloud Storage takes bodies that MIME libraries refuse: gcsfs ends its lines with LF alone, gsutil quotes its
boundary with single quotes (RFC 2046 knows neither), so this reads them itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import StreamReader

from rehearsal.cloud.core.errors import ApiError, JsonObject, bad_request

_BOUNDARY = re.compile(r"""boundary=(?:"([^"]+)"|'([^']+)'|([^;\s]+))""")
_MAX_METADATA_BYTES = 1 << 20


class RelatedParts:
    """Call `metadata` once, then iterate over `content`. ApiError 400 where the body is malformed."""

    def __init__(self, content_type: str, stream: StreamReader) -> None:
        match = _BOUNDARY.search(content_type)
        if not content_type.startswith("multipart/") or match is None:
            raise _malformed("its Content-Type names no boundary")
        self._delimiter = b"--" + next(group for group in match.groups() if group).encode()
        self._stream = stream
        self._buffer = bytearray()
        self._newline = b"\r\n"
        self.content_type: str | None = None

    async def metadata(self) -> JsonObject:
        """Return the JSON of the first part; afterwards `content_type` is that of the second."""
        await self._fill_until(self._delimiter)
        first_line = await self._take_until(b"\n")
        self._newline = b"\r\n" if first_line.endswith(b"\r") else b"\n"
        await self._headers()
        text = await self._take_until(self._newline + self._delimiter)
        await self._take_until(b"\n")
        self.content_type = (await self._headers()).get("content-type")
        try:
            body: Any = json.loads(text) if text.strip() else {}
        except ValueError as error:
            raise _malformed(f"its metadata is not JSON ({error})") from None
        if not isinstance(body, dict):
            raise _malformed("its metadata is not a JSON object")
        return body

    async def content(self) -> AsyncIterator[bytes]:
        """Return the second part's bytes, as they arrive."""
        end = self._newline + self._delimiter
        while True:
            at = self._buffer.find(end)
            if at >= 0:
                yield bytes(self._buffer[:at])
                break
            safe = len(self._buffer) - len(end) + 1  # the delimiter may have arrived in part
            if safe > 0:
                yield bytes(self._buffer[:safe])
                del self._buffer[:safe]
            await self._fill()
        async for _ in self._stream.iter_any():  # what follows the last delimiter means nothing
            pass

    async def _headers(self) -> dict[str, str]:
        headers = {}
        while line := (await self._take_until(b"\n")).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return headers

    async def _take_until(self, mark: bytes) -> bytes:
        at = await self._fill_until(mark)
        taken = bytes(self._buffer[:at])
        del self._buffer[: at + len(mark)]
        return taken

    async def _fill_until(self, mark: bytes) -> int:
        while (at := self._buffer.find(mark)) < 0:
            if len(self._buffer) > _MAX_METADATA_BYTES:
                raise _malformed(f"its metadata is longer than {_MAX_METADATA_BYTES} bytes")
            await self._fill()
        return at

    async def _fill(self) -> None:
        piece = await self._stream.readany()
        if not piece:
            raise _malformed("it ends before its last delimiter")
        self._buffer += piece


def _malformed(why: str) -> ApiError:
    return bad_request(f"Malformed multipart body: {why}.")
