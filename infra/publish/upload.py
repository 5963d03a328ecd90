"""Puts files into the bucket: what isn't there yet, in parallel; a bundle's manifest last."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import requests
from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, PreconditionFailed
from google.auth.exceptions import GoogleAuthError
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

from infra.publish.bundle import Bundle
from infra.publish.errors import PublishError
from infra.slices.names import BLOBS, bundle_blob, bundle_manifest

__all__ = ["Upload", "create", "create_all", "require_bucket", "storage_errors", "upload"]

_PARALLEL = 8
NO_BUCKET = "bring up the storage layer first: tpu up ENV storage"


@dataclass(frozen=True)
class Upload:
    """Result of an upload."""

    uploaded: int
    uploaded_bytes: int
    already_there: int


def upload(bundle: Bundle, bucket_name: str, progress: Callable[[int, int], None]) -> Upload:
    """Upload what of `bundle` the bucket lacks; `progress` gets bytes done and to do. Raises PublishError."""
    with storage_errors(bucket_name, NO_BUCKET):
        return _upload(bundle, storage.Client(project="none").bucket(bucket_name), progress)


def require_bucket(name: str) -> None:
    """Raise PublishError unless the bucket is there and this login may list it: a bundle takes minutes."""
    with storage_errors(name, NO_BUCKET):
        list(storage.Client(project="none").bucket(name).list_blobs(max_results=1))


@contextlib.contextmanager
def storage_errors(bucket: str, fix: str, role: str = "roles/storage.objectUser") -> Iterator[None]:
    """Turn errors of Cloud Storage into PublishError.

    Args:
        bucket: its name.
        fix: next step where it isn't there.
        role: needed to write into it.
    """
    try:
        yield
    except NotFound as error:
        raise PublishError(f"there is no bucket '{bucket}': {fix}") from error
    except Forbidden as error:
        raise PublishError(f"gs://{bucket}: {error.message}: you need {role} on the bucket") from error
    except GoogleAuthError as error:
        raise PublishError(
            f"no Google credentials ({error}): gcloud auth application-default login"
        ) from error
    except (GoogleAPIError, requests.RequestException) as error:
        raise PublishError(f"gs://{bucket}: {error}") from error


def create(blob: storage.Blob, content: Path | bytes) -> bool:
    """Create an object; False where it is there. Objects of these names are complete, or aren't there."""
    more = {"content_type": "application/octet-stream", "if_generation_match": 0, "retry": DEFAULT_RETRY}
    try:
        if isinstance(content, bytes):
            blob.upload_from_string(content, **more)
        else:
            blob.upload_from_filename(str(content), **more)
    except PreconditionFailed:
        return False
    return True


def create_all(
    files: Sequence[tuple[storage.Blob, Path, int]], progress: Callable[[int], None]
) -> list[storage.Blob]:
    """Create objects in parallel, of (object, content, bytes); return those that were there.

    `progress` gets the bytes done.
    """
    done, existing = 0, []
    progress(done)
    with ThreadPoolExecutor(_PARALLEL) as pool:
        # The largest first, so that the end of the upload isn't one long tail.
        running = {
            pool.submit(create, blob, path): (blob, size_bytes)
            for blob, path, size_bytes in sorted(files, key=lambda file: -file[2])
        }
        try:
            for future in as_completed(running):
                blob, size_bytes = running[future]
                if not future.result():
                    existing.append(blob)
                done += size_bytes
                progress(done)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return existing


def _upload(bundle: Bundle, bucket: storage.Bucket, progress: Callable[[int, int], None]) -> Upload:
    present = {
        blob.name.removeprefix(BLOBS): blob.size
        for blob in bucket.list_blobs(prefix=BLOBS, fields="items(name,size),nextPageToken")
    }
    blobs = {file.sha256: file for file in bundle.files}
    for sha256, file in blobs.items():
        if sha256 in present and present[sha256] != file.size_bytes:
            raise PublishError(
                f"gs://{bucket.name}/{bundle_blob(sha256)} has {present[sha256]} bytes, {file.path} has "
                f"{file.size_bytes}: someone overwrote it; find out who, delete it and publish again"
            )
    missing = [file for sha256, file in blobs.items() if sha256 not in present]
    total = sum(file.size_bytes for file in missing)
    files = [(bucket.blob(bundle_blob(file.sha256)), file.source, file.size_bytes) for file in missing]
    create_all(files, lambda done: progress(done, total))
    create(bucket.blob(bundle_manifest(bundle.id)), bundle.manifest)
    return Upload(len(missing), total, len(blobs) - len(missing))
