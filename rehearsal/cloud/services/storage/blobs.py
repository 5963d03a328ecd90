"""The bytes of objects: immutable files, which any number of object generations share.

An object's metadata (generations, preconditions, versions) is elsewhere. Because a blob never changes, a
copy or a rename moves no bytes, and a reader is never disturbed by a writer.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import google_crc32c

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Blob:
    """Immutable content. Hashes are base64, as the JSON API shows them; a composed blob has no MD5."""

    id: str
    size: int
    crc32c: str
    md5: str | None


class BlobWriter:
    """A writer of one blob; end it by `finish` or `discard`.

    A thread hashes and stores a full piece while the next one arrives, so that neither a slow disk nor a
    hash holds up other requests; at most two pieces are in memory.
    """

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._id = secrets.token_hex(16)
        self._file = store.path(self._id).open("wb", buffering=0)
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc32c = 0
        self._piece = bytearray()
        self._storing: asyncio.Future[None] | None = None
        self.size = 0

    async def write(self, data: bytes) -> None:
        """Append; `size` counts it from now on, even if the caller is cancelled while it is stored."""
        self._piece += data
        self.size += len(data)
        if len(self._piece) >= CHUNK_BYTES:
            await self._settle()
            full, self._piece = bytes(self._piece), bytearray()
            self._storing = asyncio.ensure_future(asyncio.to_thread(self._append, full))

    async def finish(self) -> Blob:
        """Return the blob, with one reference."""
        await self._settle()
        self._append(bytes(self._piece))
        self._file.close()
        hashes = self._crc32c.to_bytes(4, "big"), self._md5.digest()
        blob = Blob(self._id, self.size, *(base64.b64encode(digest).decode() for digest in hashes))
        self._store.add(blob)
        return blob

    def discard(self) -> None:
        """Delete the content written so far."""
        self._file.close()
        self._store.path(self._id).unlink(missing_ok=True)

    async def _settle(self) -> None:
        if self._storing is not None:
            await asyncio.shield(self._storing)

    def _append(self, data: bytes) -> None:
        self._md5.update(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        while data:  # a raw file may take less than it is given
            data = data[self._file.write(data) :]


class BlobStore:
    """Blobs under `root`, counted by reference; a blob's content goes with its last reference.

    A finished writer and `compose` return a blob with one reference; `retain` and `release` count the others.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._references: dict[str, int] = {}

    def path(self, blob_id: str) -> Path:
        """Return the path of the content."""
        return self._root / blob_id

    def writer(self) -> BlobWriter:
        """Return a writer of a new blob."""
        self._root.mkdir(parents=True, exist_ok=True)
        return BlobWriter(self)

    async def put(self, pieces: AsyncIterator[bytes]) -> Blob:
        """Store what the iterator yields. If the iterator raises, nothing is stored and the error passes."""
        writer = self.writer()
        try:
            async for piece in pieces:
                await writer.write(piece)
            return await writer.finish()
        except BaseException:
            writer.discard()
            raise

    async def compose(self, blobs: list[Blob]) -> Blob:
        """Concatenate blobs into a new one; like Google's, it has no MD5."""

        async def pieces() -> AsyncIterator[bytes]:
            for blob in blobs:
                async for piece in self.read(blob):
                    yield piece

        return replace(await self.put(pieces()), md5=None)

    async def read(self, blob: Blob, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield bytes [start, end) in pieces of at most 1 MiB; the caller holds a reference meanwhile."""
        left = (blob.size if end is None else end) - start
        with self.path(blob.id).open("rb", buffering=0) as file:
            file.seek(start)
            while left > 0:
                piece = await asyncio.to_thread(file.read, min(left, CHUNK_BYTES))
                if not piece:
                    raise EOFError(f"blob {blob.id} is shorter than its {blob.size} bytes")
                left -= len(piece)
                yield piece

    def add(self, blob: Blob) -> None:
        """Count the first reference."""
        self._references[blob.id] = 1

    def retain(self, blob: Blob) -> None:
        """Count one more reference."""
        self._references[blob.id] += 1

    def release(self, blob: Blob) -> None:
        """Drop one reference; the last one deletes the content."""
        self._references[blob.id] -= 1
        if self._references[blob.id] == 0:
            del self._references[blob.id]
            self.path(blob.id).unlink()

    @property
    def count(self) -> int:
        """The number of blobs with references."""
        return len(self._references)
