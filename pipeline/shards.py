"""Comparison of shards with their manifest by sha256, a part at a time, so that no call takes long."""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from infra.google.client import Client, RequestError, about, object_url
from infra.google.failures import Kind
from pipeline.record import Tokens
from settings_schema import foreign
from settings_schema.foreign import ForeignError

MANIFEST, READY = "manifest.json", "_READY"
_AT_ONCE, _CHUNK = 8, 8 << 20
_MOST_BYTES, _MOST_VALUES = 16 << 20, 1 << 20  # of a manifest: 65,536 shards have 13 MB, a few values each
_MOST_NAMED = 5


@dataclass(frozen=True)
class Checked:
    """Result of a comparison.

    Attributes:
        tokens: counts of the shards up to `index`.
        index: of the first shard that hasn't been compared.
        complete: all shards of the manifest have been.
        problems: all that is wrong; empty: nothing.
    """

    tokens: Tokens
    index: int
    complete: bool
    problems: str = ""


class Shards:
    """Shards in a folder of a bucket."""

    def __init__(self, client: Client, bucket: str, folder: str):
        self._client, self._bucket, self._folder = client, bucket, folder
        self._url = f"gs://{bucket}/{folder}"

    def check(self, start: int, before: Tokens | None, spent: Callable[[], bool]) -> Checked:
        """Compare shards from an index on, until all have been or the time is spent, but some in any case.

        Args:
            start: index of the first shard to compare.
            before: counts of the shards before it.
            spent: returns True once the time for this call is over.

        Raises:
            RequestError: an object can't be read.
        """
        try:
            manifest = self._read(MANIFEST)
            if manifest is None or self._read(READY) is None:
                return _wrong([f"{self._url}: {MANIFEST} or {READY} is missing"])
            shards, counts = _parsed(manifest)
        except ForeignError as error:
            return _wrong([f"{self._url}/{MANIFEST}: is no manifest: {error}"])
        if before and start and before.manifest != counts.manifest:
            start = 0  # the manifest has changed since
        size, index = (before.bytes if before and start else 0), start
        while index < len(shards) and (index == start or not spent()):
            part = shards[index : index + _AT_ONCE]
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                read = list(pool.map(lambda shard: self._hashed(shard[0]), part))
            if problems := list(self._problems(part, read)):
                return _wrong(problems)
            size += sum(number for _, number in read)
            index += len(part)
        tokens = replace(counts, shards=index, bytes=size)
        return Checked(tokens, index, complete=index == len(shards))

    def _problems(self, shards: list[tuple[str, str]], read: list[tuple[str, int]]) -> Iterator[str]:
        for (name, sha256), (actual, _) in zip(shards, read, strict=True):
            if not actual:
                yield f"{self._url}/{name} is missing"
            elif actual != sha256:
                changed = f"its sha256 is {actual[:12]}…, the manifest's {sha256[:12]}…"
                yield f"{self._url}/{name} has changed: {changed}"

    def _read(self, name: str) -> bytes | None:
        """Return an object; None if missing. Raises ForeignError if it is too large."""
        content = b""
        for block in self._blocks(name):
            if block is None:
                return None
            content += block
            foreign.require_size(len(content), _MOST_BYTES)
        return content

    def _hashed(self, name: str) -> tuple[str, int]:
        """Return the sha256 and the size of an object; empty for a missing one."""
        digest, size = hashlib.sha256(), 0
        for block in self._blocks(name):
            if block is None:
                return "", 0
            digest.update(block)
            size += len(block)
        return digest.hexdigest(), size

    def _blocks(self, name: str) -> Iterator[bytes | None]:
        """Yield the blocks of an object, or None if it is missing."""
        try:
            with about(f"{self._url}/{name}"):
                yield from self._client.blocks(object_url(self._bucket, f"{self._folder}/{name}"), _CHUNK)
        except RequestError as error:
            if error.failure.kind is not Kind.MISSING:
                raise
            yield None


def _parsed(content: bytes) -> tuple[list[tuple[str, str]], Tokens]:
    """Return the shards' names and sha256, and the counts. Raises ForeignError."""
    if sum(content.count(mark) for mark in (b"[", b"{", b",")) > _MOST_VALUES:
        raise ForeignError("has too many values")  # for the memory of the function
    manifest = foreign.parse(content, _MOST_BYTES)
    listed = manifest.get("shards")
    if not isinstance(listed, list) or not listed:
        raise ForeignError("names no shard")
    shards = []
    for item in listed:
        entry = item if isinstance(item, dict) else {}
        name, sha256 = (
            foreign.text(entry, "file", r"[\w.-]{1,200}"),
            foreign.text(entry, "sha256", "[0-9a-f]{64}"),
        )
        if not name or not sha256:
            raise ForeignError("has a shard without file or sha256")
        shards.append((name, sha256))
    counts = {key: foreign.count(manifest, key) for key in ("documents", "tokens")}
    inputs = foreign.text(manifest, "inputs_sha256", "[0-9a-f]{64}")
    return shards, Tokens(manifest=hashlib.sha256(content).hexdigest(), inputs=inputs, **counts)


def _wrong(problems: list[str]) -> Checked:
    more = len(problems) - _MOST_NAMED
    listed = "; ".join(problems[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return Checked(Tokens(), 0, complete=False, problems=listed)
