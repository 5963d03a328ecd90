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

import requests
from google.api_core import exceptions as google
from google.api_core.retry import Retry
from google.auth import exceptions as auth
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

from workload.errors import OutageError, RunError, StoreError
from workload.runs.outage import HEALTH, RETRY_AT_MOST_EVERY_S, transient

# Every write here is a whole object by the run's only writer: sending it twice changes nothing.
_RETRY = Retry(
    predicate=DEFAULT_RETRY._predicate,
    maximum=RETRY_AT_MOST_EVERY_S,
    timeout=60.0,
    on_error=HEALTH.failed,
)
_REFUSED = (google.GoogleAPIError, auth.GoogleAuthError, requests.RequestException)


class MissingObjectError(StoreError):
    """No object of that name."""


class _TakenError(Exception):
    """There is an object of that name already."""


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
    bucket, _, prefix = url.removeprefix("gs://").partition("/")
    try:
        try:
            client = storage.Client()
        except OSError:  # a login that belongs to no project, which objects don't ask for
            client = storage.Client(project="none")
        return BucketStore(client, bucket, prefix.strip("/"))
    except auth.GoogleAuthError as error:
        fix = "run on a VM with a service account, or `gcloud auth application-default login`"
        raise StoreError(f"{url}: no credentials: {error}\n    fix: {fix}") from error


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
    if isinstance(source, BucketStore) and isinstance(target, BucketStore):
        target.take(source, name)
    else:
        target.write(name, source.read(name))


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
                    if not part.exists() or not os.path.samefile(part, file.fileno()):
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


class BucketStore:
    """Objects of a Cloud Storage bucket below a prefix."""

    def __init__(self, client: storage.Client, bucket: str, prefix: str):
        self.url = f"gs://{bucket}/{prefix}".rstrip("/")
        self._client, self._bucket = client, client.bucket(bucket)
        self._prefix = f"{prefix}/" if prefix else ""

    def write(self, name: str, content: bytes) -> None:
        """See `Store.write`; retried for a minute."""
        self._upload(name, content)

    def create(self, name: str, content: bytes) -> bool:
        """See `Store.create`; retried for a minute.

        Where the answer to a write is lost, the object is there at the retry: False.
        """
        try:
            self._upload(name, content, if_generation_match=0)
        except _TakenError:
            return False
        return True

    def _upload(self, name: str, content: bytes, **conditions: int) -> None:
        kind = "application/json" if name.endswith((".json", ".jsonl")) else "application/octet-stream"
        try:
            self._blob(name).upload_from_string(
                content, content_type=kind, retry=_RETRY, checksum="crc32c", **conditions
            )
        except google.PreconditionFailed:
            raise _TakenError from None
        except _REFUSED as error:
            raise self._refused(name, "written", error) from error
        HEALTH.answered()

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Store.read`."""
        last = None if end is None else end - 1
        try:
            content: bytes = self._blob(name).download_as_bytes(start=start or None, end=last, retry=_RETRY)
        except google.NotFound:
            raise MissingObjectError(f"{self.url}/{name}: no such object") from None
        except google.RequestRangeNotSatisfiable:  # it ends before `start`
            return b""
        except _REFUSED as error:
            raise self._refused(name, "read", error) from error
        HEALTH.answered()
        return content

    def list(self, prefix: str) -> list[str]:
        """See `Store.list`."""
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """See `Store.sizes`."""
        try:
            blobs = self._client.list_blobs(self._bucket, prefix=self._prefix + prefix, retry=_RETRY)
            return {blob.name.removeprefix(self._prefix): blob.size or 0 for blob in blobs}
        except _REFUSED as error:
            raise self._refused(prefix, "listed", error) from error

    def delete(self, name: str) -> None:
        """See `Store.delete`."""
        try:
            self._blob(name).delete(retry=_RETRY)
        except google.NotFound:
            return
        except _REFUSED as error:
            raise self._refused(name, "removed", error) from error

    def outage(self) -> str:
        """See `Store.outage`; of all that this process asks of Cloud Storage."""
        return HEALTH.outage()

    def failed_since(self, moment: float) -> bool:
        """See `Store.failed_since`."""
        return HEALTH.last_failure > moment

    def take(self, source: "BucketStore", name: str) -> None:
        """Copies an object of another bucket, or below another prefix, inside storage."""
        token: str | None = None
        try:
            while True:  # a large object between unlike buckets takes several calls
                token, *_ = self._blob(name).rewrite(source._blob(name), token=token, retry=_RETRY)
                if token is None:
                    return
        except google.NotFound:
            raise MissingObjectError(f"{source.url}/{name}: no such object") from None
        except _REFUSED as error:
            raise self._refused(name, f"copied from {source.url}", error) from error

    def _blob(self, name: str) -> storage.Blob:
        return self._bucket.blob(self._prefix + name)

    def _refused(self, name: str, verb: str, error: Exception) -> StoreError:
        where = f"{self.url}/{name}: can't be {verb}"
        if answer := transient(error):
            fix = "look at https://status.cloud.google.com; once storage answers, start again"
            return OutageError(f"{where}: storage answers {self.outage() or answer}\n    fix: {fix}")
        fix = "check that the account may use the bucket, and that the bucket is there"
        return StoreError(f"{where}: {error}\n    fix: {fix}")
