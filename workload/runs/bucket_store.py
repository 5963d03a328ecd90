"""Cloud Storage backend of `store.py`; imported only for buckets, since its client is large."""

import io
from bisect import bisect_right
from itertools import accumulate

import requests
from google.api_core import exceptions as google
from google.api_core.retry import Retry
from google.auth import exceptions as auth
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

from workload.errors import OutageError, StoreError
from workload.runs.content import Content, pieces
from workload.runs.errors import MissingObjectError
from workload.runs.outage import HEALTH, RETRY_AT_MOST_EVERY_S, transient

# Every write is a whole object by the run's only writer: a repetition changes nothing.
_RETRY = Retry(
    predicate=DEFAULT_RETRY._predicate,
    maximum=RETRY_AT_MOST_EVERY_S,
    timeout=60.0,
    on_error=HEALTH.failed,
)
_REFUSED = (google.GoogleAPIError, auth.GoogleAuthError, requests.RequestException)


class _TakenError(Exception):
    """The object exists."""


class _File(io.RawIOBase):
    """Content as a file that the client reads; its pieces are joined a request at a time."""

    def __init__(self, content: Content):
        self._pieces = pieces(content)
        self._ends = list(accumulate(map(len, self._pieces)))
        self.size = self._ends[-1] if self._ends else 0
        self._at = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = origin + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        begin, end = self._at, self.size if size < 0 else min(self.size, self._at + size)
        parts = []
        for n in range(bisect_right(self._ends, begin), len(self._pieces)):
            start = self._ends[n] - len(self._pieces[n])
            if start >= end:
                break
            parts.append(self._pieces[n][max(0, begin - start) : end - start])
        self._at = end
        return b"".join(parts)


def open_bucket(url: str) -> "BucketStore":
    """Open the store for `gs://BUCKET/PREFIX`. Raises StoreError without credentials."""
    bucket, _, prefix = url.removeprefix("gs://").partition("/")
    try:
        try:
            client = storage.Client()
        except OSError:  # a login without a project, which objects don't need
            client = storage.Client(project="none")
        return BucketStore(client, bucket, prefix.strip("/"))
    except auth.GoogleAuthError as error:
        fix = "run on a VM with a service account, or `gcloud auth application-default login`"
        raise StoreError(f"{url}: no credentials: {error}\n    fix: {fix}") from error


class BucketStore:
    """Objects of a Cloud Storage bucket below a prefix."""

    def __init__(self, client: storage.Client, bucket: str, prefix: str):
        self.url = f"gs://{bucket}/{prefix}".rstrip("/")
        self._client, self._bucket = client, client.bucket(bucket)
        self._prefix = f"{prefix}/" if prefix else ""

    def write(self, name: str, content: bytes) -> None:
        """See `Store.write`; retried for a minute."""
        self._upload(name, content)

    def create(self, name: str, content: Content) -> bool:
        """See `Store.create`; retried for a minute.

        If the response to a write is lost, the retry finds the object: False.
        """
        try:
            self._upload(name, content, if_generation_match=0)
        except _TakenError:
            return False
        return True

    def _upload(self, name: str, content: Content, **conditions: int) -> None:
        kind = "application/json" if name.endswith((".json", ".jsonl")) else "application/octet-stream"
        file = _File(content)
        try:
            self._blob(name).upload_from_file(
                file, size=file.size, content_type=kind, retry=_RETRY, checksum="crc32c", **conditions
            )
        except google.PreconditionFailed:
            raise _TakenError from None
        except _REFUSED as error:
            raise self._refused(name, "written", error) from error
        HEALTH.answered()

    def read(self, name: str, start: int = 0, end: int | None = None, generation: int | None = None) -> bytes:
        """See `Store.read`; `generation` selects a version of the object."""
        last = None if end is None else end - 1
        blob = self._bucket.blob(self._prefix + name, generation=generation)
        try:
            content: bytes = blob.download_as_bytes(start=start or None, end=last, retry=_RETRY)
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
        return {name: size_bytes for name, (_, size_bytes) in self.versions(prefix).items()}

    def versions(self, prefix: str) -> dict[str, tuple[int, int]]:
        """Return generation and bytes of each object whose name begins with the prefix."""
        try:
            blobs = self._client.list_blobs(self._bucket, prefix=self._prefix + prefix, retry=_RETRY)
            return {blob.name.removeprefix(self._prefix): (blob.generation, blob.size or 0) for blob in blobs}
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
        """See `Store.outage`; over all requests of this process."""
        return HEALTH.outage()

    def failed_since(self, moment: float) -> bool:
        """See `Store.failed_since`."""
        return HEALTH.last_failure > moment

    def copy_from(self, source: "BucketStore", name: str) -> None:
        """Copy an object of another bucket or prefix, inside storage."""
        token: str | None = None
        try:
            while True:  # a large object between locations or classes takes several calls
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
            fix = "check https://status.cloud.google.com; restart once storage responds"
            return OutageError(f"{where}: storage answers {self.outage() or answer}\n    fix: {fix}")
        fix = "check that the bucket exists and the account may use it"
        return StoreError(f"{where}: {error}\n    fix: {fix}")
