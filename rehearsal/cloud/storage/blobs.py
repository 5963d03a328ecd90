"""The bytes of objects, kept by fake-gcs-server as immutable blobs.

An object's metadata (generations, preconditions, versions) is ours; what fake-gcs-server stores is
content: it hashes what it takes, reads ranges and concatenates. A blob never changes, so any number of
object generations can share one, and a copy or a rename moves no bytes.

fake-gcs-server holds one lock over its whole store while it reads the body of a *media* upload; a client
that stalls would stop every reader. Blobs are therefore sent as *multipart* uploads, whose body it reads
first and stores afterwards.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from rehearsal.cloud.service import ApiError
from rehearsal.errors import RehearsalError

CHUNK_BYTES = 1 << 20
_BUCKET = "blobs"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Blob:
    """Immutable content. Hashes are base64, as the JSON API shows them; a composed blob has no MD5."""

    id: str
    size: int
    crc32c: str
    md5: str | None


class BlobStore:
    """A fake-gcs-server process and the blobs in it, counted by reference.

    `put` and `compose` return a blob with one reference; `retain` and `release` count further ones. At zero
    the content is deleted.
    """

    def __init__(
        self, root: Path, blame: Callable[[str, str], None], program: str = "fake-gcs-server"
    ) -> None:
        self._root = root
        self._blame = blame
        self._program = program
        self._references: dict[str, int] = {}
        self._deletions: set[asyncio.Task[None]] = set()
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._base = ""

    async def start(self, timeout_s: float = 20.0) -> None:
        """Start the process on a free loopback port and wait until it answers."""
        port = _free_port()
        self._root.mkdir(parents=True, exist_ok=True)
        log = (self._root / "fake-gcs-server.log").open("wb")
        with log:
            # setpriv: the process must not outlive us, however we end.
            self._process = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "KILL", "--", self._program),
                *("-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-log-level", "warn"),
                *("-backend", "filesystem", "-filesystem-root", str(self._root / "content")),
                *("-public-host", "storage.googleapis.com"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._base = f"http://127.0.0.1:{port}"
        # No limit on connections: an unfinished resumable upload keeps one open.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            read_bufsize=CHUNK_BYTES,
            auto_decompress=False,
        )
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_until_healthy()
                async with self._session.post(f"{self._base}/storage/v1/b", json={"name": _BUCKET}) as answer:
                    answer.raise_for_status()
        except (TimeoutError, aiohttp.ClientError) as error:
            await self.close()
            tail = (self._root / "fake-gcs-server.log").read_text(errors="replace")[-2000:]
            raise RehearsalError(
                f"{self._program} did not answer on {self._base} within {timeout_s} s: {error!r}\n{tail}",
                "make setup builds it; make doctor says whether it is found",
            ) from error
        self._watch = asyncio.create_task(self._notice_its_end())

    async def _notice_its_end(self) -> None:
        assert self._process is not None
        status = await self._process.wait()
        self._blame("fake-gcs-server", f"ended with status {status}; its log is in {self._root}")

    async def _wait_until_healthy(self) -> None:
        assert self._session is not None
        assert self._process is not None
        while True:
            if self._process.returncode is not None:
                raise TimeoutError(f"exited with status {self._process.returncode}")
            with suppress(aiohttp.ClientConnectionError):
                async with self._session.get(f"{self._base}/_internal/healthcheck") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End the process. Its files stay under `root`, which belongs to the caller."""
        if self._watch is not None:
            self._watch.cancel()
        for task in self._deletions:
            task.cancel()
        await asyncio.gather(*self._deletions, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def put(self, chunks: AsyncIterator[bytes]) -> Blob:
        """Store what the iterator yields. If the iterator raises, nothing is stored and the error passes."""
        blob_id = secrets.token_hex(16)
        boundary = secrets.token_hex(16)
        failure: Exception | None = None

        async def body() -> AsyncIterator[bytes]:
            nonlocal failure
            part = f"--{boundary}\r\nContent-Type: "
            yield f"{part}application/json\r\n\r\n{json.dumps({'name': blob_id})}\r\n".encode()
            yield f"{part}application/octet-stream\r\n\r\n".encode()
            try:
                async for chunk in chunks:
                    yield chunk
            except Exception as error:
                failure = error
                raise
            yield f"\r\n--{boundary}--\r\n".encode()

        try:
            stored = await self._json(
                "POST",
                f"/upload/storage/v1/b/{_BUCKET}/o?uploadType=multipart",
                data=body(),
                headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            )
        except ApiError:
            if failure is not None:
                raise failure from None
            raise
        self._references[blob_id] = 1
        return Blob(blob_id, int(stored["size"]), stored["crc32c"], stored["md5Hash"])

    async def compose(self, blobs: list[Blob]) -> Blob:
        """Concatenate at most 32 blobs into a new one; like Google's, it has no MD5."""
        blob_id = secrets.token_hex(16)
        stored = await self._json(
            "POST",
            f"/storage/v1/b/{_BUCKET}/o/{blob_id}/compose",
            json={"sourceObjects": [{"name": blob.id} for blob in blobs], "destination": {}},
        )
        self._references[blob_id] = 1
        return Blob(blob_id, int(stored["size"]), stored["crc32c"], None)

    async def read(self, blob: Blob, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield bytes [start, end) in pieces of at most 1 MiB; the caller holds a reference meanwhile."""
        end = blob.size if end is None else end
        if start >= end:
            return
        assert self._session is not None
        try:
            async with self._session.get(
                f"{self._base}/download/storage/v1/b/{_BUCKET}/o/{blob.id}",
                headers={"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "gzip"},
            ) as answer:
                if answer.status not in (200, 206):
                    raise _unavailable(f"reading a blob answered {answer.status}")
                async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                    yield chunk
        except aiohttp.ClientError as error:
            raise _unavailable(repr(error)) from error

    def retain(self, blob: Blob) -> None:
        """Count one more reference."""
        self._references[blob.id] += 1

    def release(self, blob: Blob) -> None:
        """Drop one reference; the last one deletes the content in the background."""
        self._references[blob.id] -= 1
        if self._references[blob.id] == 0:
            del self._references[blob.id]
            task = asyncio.ensure_future(self._delete(blob.id))
            self._deletions.add(task)
            task.add_done_callback(self._deletions.discard)

    @property
    def count(self) -> int:
        """How many blobs somebody still refers to."""
        return len(self._references)

    async def _delete(self, blob_id: str) -> None:
        try:
            await self._json("DELETE", f"/storage/v1/b/{_BUCKET}/o/{blob_id}")
        except ApiError as error:
            _log.warning("blob %s stays behind: %s", blob_id, error)

    async def _json(self, http_method: str, path: str, **arguments: object) -> dict[str, str]:
        assert self._session is not None
        try:
            async with self._session.request(http_method, self._base + path, **arguments) as answer:  # type: ignore[arg-type]
                text = await answer.text()
        except aiohttp.ClientError as error:
            raise _unavailable(repr(error)) from error
        if answer.status != 200:
            raise _unavailable(f"{http_method} {path} answered {answer.status}: {text[:200]}")
        return json.loads(text) or {}


def _unavailable(why: str) -> ApiError:
    """503, which every storage client retries."""
    return ApiError(503, "UNAVAILABLE", f"fake-gcs-server: {why}", reason="backendError")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
