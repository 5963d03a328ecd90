"""Small objects of a run in a bucket or a folder, written atomically.

Orbax writes checkpoints directly; their removal passes through here.
"""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from workload.errors import RunError, StoreError
from workload.runs.content import Content, pieces
from workload.runs.errors import MissingObjectError

READ_AT_ONCE = 8  # objects; the client's connections less two

_PIECES = 1024  # that Linux takes in a call, IOV_MAX


class Reader(Protocol):
    """Tree of objects to read; names are relative and use `/`."""

    url: str

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the object's bytes from `start` to before `end` or its own end.

        Raises:
            MissingObjectError: no object has that name.
        """

    def list(self, prefix: str) -> list[str]:
        """List the names that begin with the prefix, sorted."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the bytes of each object whose name begins with the prefix."""


class Store(Reader, Protocol):
    """Tree of objects."""

    def write(self, name: str, content: bytes) -> None:
        """Create or replace an object as a whole."""

    def create(self, name: str, content: Content) -> bool:
        """Create an object as a whole; return False, without a change, if it exists."""

    def delete(self, name: str) -> None:
        """Remove an object, if it exists."""

    def outage(self) -> str:
        """Return the answer of storage in an outage and its duration; empty while it serves."""

    def failed_since(self, moment: float) -> bool:
        """Return True if storage had or has an outage since a monotonic time."""


def open_store(url: str) -> Store:
    """Open a store for `gs://BUCKET/PREFIX` or for a folder."""
    if not url.startswith("gs://"):
        return FolderStore(Path(url).absolute())  # Orbax takes no relative paths
    try:
        from workload.runs.bucket_store import open_bucket
    except ImportError as error:
        fix = "pip install google-cloud-storage"
        raise StoreError(f"{url}: needs {error.name}, which isn't installed\n    fix: {fix}") from None
    return open_bucket(url)


def open_run(url: str) -> Store:
    """Open the store of a begun run.

    Raises:
        RunError: it holds no run.
    """
    store = open_store(url)
    try:
        store.read("config.json")
    except MissingObjectError:
        fix = "name the folder that holds config.json, e.g. gs://BUCKET/runs/RUN"
        raise RunError(f"{store.url}: no run was begun here\n    fix: {fix}") from None
    return store


def copy(source: Store, name: str, target: Store) -> None:
    """Copy an object to `target`, between buckets inside storage.

    Raises:
        MissingObjectError: no object has that name.
    """
    copy_from = getattr(target, "copy_from", None)  # between buckets
    if copy_from and type(source) is type(target):
        copy_from(source, name)
    else:
        target.write(name, source.read(name))


def create_same(store: Store, name: str, content: bytes) -> bool:
    """Create an object as a whole; return False if it exists with the same bytes.

    Raises:
        RunError: it exists with other bytes.
    """
    if store.create(name, content):
        return True
    if store.read(name) != content:
        fix = "stop other writers, then restart under another name"
        raise RunError(f"{store.url}/{name}: exists with other bytes than this start's\n    fix: {fix}")
    return False


def _still(path: Path, descriptor: int) -> bool:
    """Return True if the path still names the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:  # may happen at any moment, so don't check for existence first
        return False


def _write_all(descriptor: int, content: Content) -> None:
    """Write all of an object's pieces, however many a call takes."""
    left = pieces(content)
    while left:
        written = os.writev(descriptor, left[:_PIECES])
        done = 0
        while done < len(left) and len(left[done]) <= written:
            written -= len(left[done])
            done += 1
        left = left[done:]
        if written:
            left[0] = left[0][written:]


class FolderStore:
    """Objects as files below a folder."""

    def __init__(self, root: Path):
        self.url = str(root)
        self._root = root

    def write(self, name: str, content: bytes) -> None:
        """Write beside the name, then rename, so that readers never see a partial object."""
        self._write(name, content, replace=True)

    def create(self, name: str, content: Content) -> bool:
        """See `Store.create`; concurrent processes wait for the single writer."""
        return self._write(name, content, replace=False)

    def _write(self, name: str, content: Content, replace: bool) -> bool:
        path = self._root / name
        part = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            while replace or not path.exists():
                with part.open("ab") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)  # released by the kernel at a kill
                    if not _still(part, file.fileno()):
                        continue  # the previous holder has renamed it
                    if not replace and path.exists():
                        part.unlink()
                        return False
                    file.truncate(0)
                    _write_all(file.fileno(), content)
                    os.fsync(file.fileno())
                    part.replace(path)
                    return True
        except OSError as error:
            fix = "make room, or let this user write there, then restart"
            raise StoreError(f"{path}: can't be written: {error.strerror}\n    fix: {fix}") from error
        return False

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Store.read`."""
        try:
            with (self._root / name).open("rb") as file:
                file.seek(start)
                return file.read(-1 if end is None else end - start)
        except FileNotFoundError:
            raise MissingObjectError(f"{self.url}/{name}: no such object") from None
        except OSError as error:
            fix = "name a folder that this user may read"
            raise StoreError(f"{self.url}/{name}: can't be read: {error.strerror}\n    fix: {fix}") from error

    def list(self, prefix: str) -> list[str]:
        """See `Store.list`."""
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `Store.sizes`."""
        sizes: dict[str, int] = {}
        # `walk` skips a folder that is removed meanwhile; `rglob` raises an error.
        for folder, _, files in os.walk(self._root / prefix.rpartition("/")[0]):
            for path in (Path(folder, file) for file in files):
                name = path.relative_to(self._root).as_posix()
                if name.startswith(prefix) and not name.endswith(".part"):
                    with suppress(FileNotFoundError):  # removed since
                        about = path.stat()
                        if stat.S_ISREG(about.st_mode):
                            sizes[name] = about.st_size
        return sizes

    def delete(self, name: str) -> None:
        """Remove the file and the folders that are empty then."""
        path = self._root / name
        try:
            path.unlink(missing_ok=True)
            for folder in path.parents:
                if folder == self._root:
                    break
                with suppress(FileNotFoundError):  # another thread has removed it
                    folder.rmdir()
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                return
            raise StoreError(f"{path}: can't be removed: {error.strerror}") from error

    def outage(self) -> str:
        """Return an empty string: a disk has no outages."""
        return ""

    def failed_since(self, moment: float) -> bool:
        """See `outage`."""
        return False
