"""A user's own files in the checkpoint bucket, below data/NAME/: text, tokens, weights."""
# mypy: allow-untyped-calls

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
from google.cloud import storage

from infra.errors import Problem, listed
from infra.layers.storage.names import DATA
from infra.publish.errors import OwnFilesError, PublishError
from infra.publish.upload import NO_BUCKET, Upload, create_all, require_bucket, storage_errors

_BLOCK = 1 << 22
_MOST_NAMED = 20  # problems in a message


@dataclass(frozen=True)
class File:
    """File to upload; `name`: relative, with `/`."""

    path: Path
    name: str
    size_bytes: int


def url(bucket: str, name: str) -> str:
    """Return the URL of the folder for data of a name."""
    return f"gs://{bucket}/{DATA}/{name}"


def gather(sources: Sequence[Path], skip_hidden: bool = False) -> list[File]:
    """Return files, sorted by name: a folder's by their paths in it, of several sources below its name.

    Raises:
        OwnFilesError: lists what can't be uploaded; nothing is left out silently.
    """
    problems: list[Problem] = []
    files: dict[str, File] = {}
    for source in sources:
        paths = list(_below(source, skip_hidden, problems))
        if not paths and not problems:
            problems.append(_problem(source, "holds no file", "name a folder that holds some"))
        for path in paths:
            name = path.relative_to(source).as_posix() if path != source else path.name
            if len(sources) > 1 and path != source:
                name = f"{source.resolve().name}/{name}"
            if name in files:
                fix = "rename one, or upload them under two names"
                problems.append(_problem(path, f"has the name of {files[name].path}: {name}", fix))
            files[name] = File(path, name, path.stat().st_size)
    if problems:
        more = [f"and {len(problems) - _MOST_NAMED} more"] if len(problems) > _MOST_NAMED else []
        raise OwnFilesError(listed("the files to upload", [*problems[:_MOST_NAMED], *more]))
    return sorted(files.values(), key=lambda file: file.name)


def _problem(path: Path, rule: str, fix: str) -> Problem:
    return Problem("SOURCE", str(path), rule, fix)


def _below(source: Path, skip_hidden: bool, problems: list[Problem]) -> Iterator[Path]:
    """Yield a source's files; append what can't be uploaded to `problems`."""
    if not source.is_dir():
        yield from _usable([source], problems)
        return

    def unreadable(error: OSError) -> None:
        fix = "let this user read it"
        problems.append(_problem(Path(error.filename), f"can't be read: {error.strerror}", fix))

    for parent, folders, names in os.walk(source, onerror=unreadable):
        hidden = sorted(name for name in [*folders, *names] if name.startswith("."))
        if not skip_hidden:
            rule, fix = "is hidden", "remove it, or leave hidden files out by --skip-hidden"
            problems += [_problem(Path(parent, name), rule, fix) for name in hidden]
        for link in [name for name in folders if name not in hidden and Path(parent, name).is_symlink()]:
            fix = "name the folder that it links to as a source"
            problems.append(_problem(Path(parent, link), "links to a folder", fix))
        folders[:] = sorted(set(folders) - set(hidden))
        yield from _usable([Path(parent, name) for name in sorted(set(names) - set(hidden))], problems)


def _usable(paths: Iterable[Path], problems: list[Problem]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            problems.append(_problem(path, "no such file or folder", "correct the path, or remove the link"))
        elif not path.is_file() or not os.access(path, os.R_OK):
            problems.append(_problem(path, "isn't a file that this user can read", "remove it, or chmod u+r"))
        elif not path.name.isprintable():
            fix = "rename it"
            problems.append(_problem(path, "has control characters, or no UTF-8, in its name", fix))
        elif not path.stat().st_size:
            problems.append(_problem(path, "is empty", "remove it, or write it anew"))
        else:
            yield path


def missing(files: Sequence[File], bucket_name: str, name: str) -> list[File]:
    """Return the files that the bucket lacks below the folder of a name.

    Raises:
        PublishError: an object of a file's name has other bytes, or the bucket can't be read.
    """
    require_bucket(bucket_name)
    with storage_errors(bucket_name, NO_BUCKET):
        bucket = storage.Client(project="none").bucket(bucket_name)
        prefix, fields = f"{DATA}/{name}/", "items(name,size,crc32c),nextPageToken"
        blobs = bucket.list_blobs(prefix=prefix, fields=fields)
        present = {blob.name.removeprefix(prefix): blob for blob in blobs}
    pairs = [(file, present[file.name]) for file in files if file.name in present]
    _require_same(pairs, bucket_name)
    return [file for file in files if file.name not in present]


def put(files: Sequence[File], bucket_name: str, name: str, progress: Callable[[int], None]) -> Upload:
    """Create the objects of files that `missing` returned; `progress` gets the bytes done.

    Raises:
        PublishError: the bucket can't be written, or another writer created an object with other bytes.
    """
    with storage_errors(bucket_name, NO_BUCKET):
        bucket = storage.Client(project="none").bucket(bucket_name)
        by_name = {f"{DATA}/{name}/{file.name}": file for file in files}
        blobs = [(bucket.blob(object_), file.path, file.size_bytes) for object_, file in by_name.items()]
        existing = create_all(blobs, progress)
        for blob in existing:  # by a request whose answer was lost, or by somebody else
            blob.reload()
    _require_same([(by_name[blob.name], blob) for blob in existing], bucket_name)
    total = sum(file.size_bytes for file in files)
    return Upload(len(files) - len(existing), total, len(existing))


def _require_same(pairs: Sequence[tuple[File, storage.Blob]], bucket_name: str) -> None:
    others = [
        f"gs://{bucket_name}/{blob.name} has other bytes than {file.path}"
        for file, blob in pairs
        if blob.size != file.size_bytes or blob.crc32c != _crc32c(file.path)
    ]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise PublishError(
            f"{others[0]}{more}\n    fix: upload under another name by --to NAME; runs may read the old bytes"
        )


def _crc32c(path: Path) -> str:
    """Return the checksum of a file as objects have it.

    https://cloud.google.com/storage/docs/json_api/v1/objects
    """
    checksum = google_crc32c.Checksum()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            checksum.update(block)
    return base64.b64encode(checksum.digest()).decode()
