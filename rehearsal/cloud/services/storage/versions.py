"""The content of a bucket: generations of objects, and the rules of their life.

A name has at most one live generation; in a versioned bucket the older ones stay as noncurrent. All of it is
plain memory, so that a precondition and the change that it guards happen in one step of the event loop.
"""

from __future__ import annotations

import base64
from bisect import bisect_left, insort
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.world import Clock
from rehearsal.cloud.services.storage.blobs import Blob, BlobStore
from rehearsal.cloud.services.storage.limits import MutationLimit


@dataclass(frozen=True)
class Version:
    """A generation of an object. `fields` are those that a client may set (contentType, metadata, …)."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    blob: Blob
    fields: JsonObject
    storage_class: str
    created: str
    updated: str
    storage_class_updated: str
    component_count: int | None = None
    deleted: str | None = None

    @property
    def etag(self) -> str:
        """Base64 of a protobuf {1: generation, 2: metageneration}, as Cloud Storage's etags decode."""
        return etag(self.generation, self.metageneration)


def etag(*numbers: int) -> str:
    """Base64 of a protobuf message with these varints as fields 1, 2, …"""
    encoded = bytearray()
    for index, number in enumerate(numbers, start=1):
        encoded.append(index << 3)
        while number > 0x7F:
            encoded.append(number & 0x7F | 0x80)
            number >>= 7
        encoded.append(number)
    return base64.b64encode(bytes(encoded)).decode()


class _Names:
    """Generations by name, oldest first, with the names in the order in which Cloud Storage lists them."""

    def __init__(self) -> None:
        self.by_name: dict[str, list[Version]] = {}
        self.ordered: list[str] = []

    def add(self, version: Version) -> None:
        if version.name not in self.by_name:
            insort(self.ordered, version.name)
        self.by_name.setdefault(version.name, []).append(version)

    def remove(self, version: Version) -> None:
        left = [kept for kept in self.by_name[version.name] if kept.generation != version.generation]
        if left:
            self.by_name[version.name] = left
        else:
            del self.by_name[version.name]
            del self.ordered[bisect_left(self.ordered, version.name)]

    def rename(self, source: str, target: str) -> None:
        """Give every name that begins with `source` the beginning `target`."""
        for name in [name for name in self.ordered if name.startswith(source)]:
            new = target + name[len(source) :]
            self.by_name[new] = [replace(version, name=new) for version in self.by_name.pop(name)]
        self.ordered = sorted(self.by_name)

    def find(self, name: str, generation: int | None = None) -> Version | None:
        for version in reversed(self.by_name.get(name, ())):
            if generation is None or version.generation == generation:
                return version
        return None


@dataclass
class Objects:
    """The objects of one bucket. `config` is the bucket's API body and is read anew at every change."""

    bucket: str
    config: Callable[[], JsonObject]
    blobs: BlobStore
    clock: Clock
    next_generation: Callable[[], int]
    limit: MutationLimit = field(default_factory=MutationLimit)
    finalized: Callable[[Version], None] = lambda version: None  # gets every new generation
    folders: dict[str, str] = field(default_factory=dict)  # → when it was made, RFC 3339
    _live: _Names = field(default_factory=_Names)
    _noncurrent: _Names = field(default_factory=_Names)

    def live(self, name: str) -> Version | None:
        """Return the live generation."""
        return self._live.find(name)

    def get(self, name: str, generation: int | None = None) -> Version | None:
        """Return the live generation, or the given one, live or noncurrent."""
        if generation is None:
            return self._live.find(name)
        return self._live.find(name, generation) or self._noncurrent.find(name, generation)

    @property
    def empty(self) -> bool:
        """No generation is left, live or noncurrent, and no folder."""
        return not (self._live.ordered or self._noncurrent.ordered or self.folders)

    @property
    def hierarchical(self) -> bool:
        """True if the bucket has folders."""
        return bool(self.config().get("hierarchicalNamespace", {}).get("enabled"))

    def add_folders(self, name: str) -> None:
        """Make those of the folders that lead to this name which are missing."""
        for end in (at for at, letter in enumerate(name, start=1) if letter == "/"):
            self.folders.setdefault(name[:end], self.clock.rfc3339())

    def rename_folder(self, source: str, target: str) -> None:
        """Move a folder with the folders and live objects in it, which keep their generations."""
        self._live.rename(source, target)
        self.folders = {
            target + name[len(source) :] if name.startswith(source) else name: made
            for name, made in self.folders.items()
        }

    def write(
        self,
        name: str,
        blob: Blob,
        fields: JsonObject,
        storage_class: str | None = None,
        component_count: int | None = None,
    ) -> Version:
        """Make a new live generation of it, taking over the caller's reference to the blob, even to fail."""
        try:
            self._displace(name)
        except ApiError:
            self.blobs.release(blob)
            raise
        if self.hierarchical:
            self.add_folders(name)
        now = self.clock.rfc3339()
        version = Version(
            bucket=self.bucket,
            name=name,
            generation=self.next_generation(),
            metageneration=1,
            blob=blob,
            fields=fields,
            storage_class=storage_class or self.config().get("storageClass", "STANDARD"),
            created=now,
            updated=now,
            storage_class_updated=now,
            component_count=component_count,
        )
        self._live.add(version)
        self.finalized(version)
        return version

    def annotate(self, version: Version, fields: JsonObject) -> Version:
        """Replace a generation's settable fields: its metageneration goes up, its content stays."""
        self.limit.spend(self.bucket, version.name)
        changed = replace(
            version,
            fields=fields,
            metageneration=version.metageneration + 1,
            updated=self.clock.rfc3339(),
        )
        names = self._live if self._live.find(version.name, version.generation) else self._noncurrent
        generations = names.by_name[version.name]
        generations[[item.generation for item in generations].index(version.generation)] = changed
        return changed

    def delete(self, version: Version, *, for_good: bool) -> None:
        """Delete one generation. Unless `for_good`, a versioned bucket keeps the live one as noncurrent."""
        if self._live.find(version.name, version.generation) is None:
            self._noncurrent.remove(version)
            self.blobs.release(version.blob)
        else:
            self.limit.spend(self.bucket, version.name)
            self._live.remove(version)
            self._retire(version, keep=self._versioned and not for_good)

    def move(self, version: Version, name: str) -> Version:
        """Give a live object another name, in one step; the source leaves no noncurrent generation."""
        self.limit.spend(self.bucket, version.name)
        self.blobs.retain(version.blob)
        moved = self.write(name, version.blob, version.fields, version.storage_class, version.component_count)
        self._live.remove(version)
        self._retire(version, keep=self._versioned)
        return moved

    def discard(self) -> None:
        """Release the content of every generation."""
        for names in (self._live, self._noncurrent):
            for generations in names.by_name.values():
                for version in generations:
                    self.blobs.release(version.blob)
        self._live, self._noncurrent = _Names(), _Names()

    def scan(
        self, prefix: str, start: str, *, versions: bool, folders: bool = False
    ) -> Generator[tuple[str, list[Version]], str | None, None]:
        """Names from `start` on with this prefix, in order, each with its generations, oldest first; those of
        folders, where they are wanted, with none.

        A consumer may `send` a name to resume from there instead of the next one.
        """
        sources = [self._noncurrent, self._live] if versions else [self._live]
        if folders:
            sources.append(_Names())
            sources[-1].ordered = sorted(self.folders)
        at = max(prefix, start)
        while True:
            candidates = []
            for source in sources:
                index = bisect_left(source.ordered, at)
                if index < len(source.ordered):
                    candidates.append(source.ordered[index])
            if not candidates or not min(candidates).startswith(prefix):
                return
            name = min(candidates)
            generations = [version for source in sources for version in source.by_name.get(name, ())]
            jump = yield name, generations
            at = jump or name + "\0"

    @property
    def _versioned(self) -> bool:
        return bool(self.config().get("versioning", {}).get("enabled"))

    def _displace(self, name: str) -> None:
        current = self._live.find(name)
        self.limit.spend(self.bucket, name)
        if current is not None:
            self._live.remove(current)
            self._retire(current, keep=self._versioned)

    def _retire(self, version: Version, *, keep: bool) -> None:
        if keep:
            self._noncurrent.add(replace(version, deleted=self.clock.rfc3339()))
        else:
            self.blobs.release(version.blob)


def later(rfc3339: str, seconds: int) -> str:
    """Return an RFC 3339 UTC time so many seconds later, in the same notation (microseconds, `Z`)."""
    moment = datetime.fromisoformat(rfc3339).astimezone(UTC) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
