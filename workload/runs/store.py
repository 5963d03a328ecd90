"""Small objects of a run, in a bucket or in a folder: whole or not there.

Checkpoints don't pass through here, orbax writes them; retiring one does.
"""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from workload.errors import RunError, StoreError
from workload.runs.errors import MissingObjectError


class Store(Protocol):
    """A tree of objects; names are relative and use `/`."""

    url: str

    def write(self, name: str, content: bytes) -> None:
        """Creates or replaces an object as a whole."""

    def create(self, name: str, content: bytes) -> bool:
        """Creates an object as a whole; False, and nothing is changed, where there is one already."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The object's content from `start` to before `end`, less where it ends before.

        Raises:
            MissingObjectError: there is none of that name.
        """

    def list(self, prefix: str) -> list[str]:
        """Names that begin with the prefix, sorted."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of each object whose name begins with the prefix."""

    def delete(self, name: str) -> None:
        """Removes an object; one that isn't there is removed already."""

    def outage(self) -> str:
        """What storage answers everybody and for how long it has; empty while it serves."""

    def failed_since(self, moment: float) -> bool:
        """Whether it had an outage, or still has, since a monotonic time."""


def open_store(url: str) -> Store:
    """A store for `gs://BUCKET/PREFIX` or for a folder."""
    if not url.startswith("gs://"):
        return FolderStore(Path(url))
    try:
        from workload.runs.bucket_store import open_bucket
    except ImportError as error:
        fix = "pip install 'tpu-workload[bucket]'"
        raise StoreError(f"{url}: needs {error.name}, which isn't installed\n    fix: {fix}") from None
    return open_bucket(url)


def open_run(url: str) -> Store:
    """The store of a run that was begun.

    Raises:
        RunError: there is none.
    """
    store = open_store(url)
    try:
        store.read("config.json")
    except MissingObjectError:
        fix = "name the folder that holds config.json, e.g. gs://BUCKET/runs/RUN"
        raise RunError(f"{store.url}: no run was begun here\n    fix: {fix}") from None
    return store


def copy(source: Store, name: str, target: Store) -> None:
    """Creates or replaces an object of `target`, between buckets without bringing it here.

    Raises:
        MissingObjectError: there is none of that name.
    """
    take = getattr(target, "take", None)  # of a bucket, from a bucket
    if take and type(source) is type(target):
        take(source, name)
    else:
        target.write(name, source.read(name))


def create_same(store: Store, name: str, content: bytes) -> bool:
    """Creates an object as a whole; False where it is there already, with the same bytes.

    Raises:
        RunError: it is there with other bytes.
    """
    if store.create(name, content):
        return True
    if store.read(name) != content:
        fix = "see what else writes there, then start again under another name"
        raise RunError(f"{store.url}/{name}: is there with other bytes than this start makes\n    fix: {fix}")
    return False


def _still(path: Path, descriptor: int) -> bool:
    """Whether an open file is what a path names now."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:  # and it may go at any moment: asking first whether it is there asks too early
        return False


class FolderStore:
    """Objects as files below a folder."""

    def __init__(self, root: Path):
        self.url = str(root)
        self._root = root

    def write(self, name: str, content: bytes) -> None:
        """Writes beside the name, then renames, so that a reader never sees half."""
        self._write(name, content, replace=True)

    def create(self, name: str, content: bytes) -> bool:
        """See `Store.create`; of several processes at once one writes, the others wait for it."""
        return self._write(name, content, replace=False)

    def _write(self, name: str, content: bytes, replace: bool) -> bool:
        path = self._root / name
        part = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            while replace or not path.exists():
                with part.open("ab") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)  # which the kernel gives back if we are killed
                    if not _still(part, file.fileno()):
                        continue  # whoever held it before has renamed it
                    if not replace and path.exists():
                        part.unlink()
                        return False
                    file.truncate(0)
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                    part.replace(path)
                    return True
        except OSError as error:
            fix = "make room, or let this user write there, then start again"
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
        found: dict[str, int] = {}
        # `walk` passes over a folder that is removed meanwhile; `rglob` ends with an error.
        for folder, _, files in os.walk(self._root / prefix.rpartition("/")[0]):
            for path in (Path(folder, file) for file in files):
                name = path.relative_to(self._root).as_posix()
                if name.startswith(prefix) and not name.endswith(".part"):
                    with suppress(FileNotFoundError):  # removed since
                        about = path.stat()
                        if stat.S_ISREG(about.st_mode):
                            found[name] = about.st_size
        return found

    def delete(self, name: str) -> None:
        """Removes the file and the folders that it leaves empty."""
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
        """None: a disk refuses, or waits."""
        return ""

    def failed_since(self, moment: float) -> bool:
        """See `outage`."""
        return False
