"""What a run reads: files of folders and objects of buckets, each pinned, large ones in pieces.

A file is pinned by its SHA-256, an object by its generation, so that a run's id never covers two contents.
"""

import gzip
import hashlib
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import pyarrow  # type: ignore[import-untyped]
from pyarrow import parquet

from workload.data.sources import LINES, PARQUET, Sources
from workload.errors import DataError, WorkloadError
from workload.preprocess.config import InputConfig
from workload.runs.errors import MissingObjectError

GZIP, ZSTANDARD = (".gz",), (".zst", ".zstd")
_CHUNK_BYTES = 2**20
_DOWNLOAD_BYTES = 2**23  # of an object, at once
BROKEN = (EOFError, zlib.error, pyarrow.ArrowInvalid, OSError)


@dataclass(frozen=True)
class Input:
    """A file or object.

    Attributes:
        name: unlike any other's of the run, and the same wherever its folder lies.
        url: a path, or gs://BUCKET/OBJECT.
        size_bytes: as it is stored.
        version: the SHA-256 of a file's bytes, an object's generation; empty: not known yet.
        changed_ns: when a file was last changed, since the epoch.
    """

    name: str
    url: str
    size_bytes: int
    version: str = ""
    changed_ns: int = 0


@dataclass(frozen=True)
class Piece:
    """An input or a part of one, which a task reads.

    Attributes:
        kind: text, lines or parquet.
        start, end: bytes of lines, row groups of Parquet; up to before `end`; -1: the last one.
        first: number of its first line, from 1, or row, from 0.
        size_bytes: about.
    """

    input: Input
    kind: str
    start: int = 0
    end: int = -1
    first: int = 1
    size_bytes: int = 0


@dataclass(frozen=True)
class Looked:
    """An input once it was looked at: its pieces, or why it can't be read."""

    input: Input
    pieces: tuple[Piece, ...] = ()
    problem: str = ""


def listed(sources: Sequence[str]) -> tuple[list[Input], dict[str, str]]:
    """Every file and object, in the order of their names, and links that lead to no file, with what they are.

    Raises:
        DataError: a source isn't there, or two files have one name.
        StoreError: a bucket can't be listed.
    """
    found: list[Input] = []
    links: dict[str, str] = {}
    if missing := [one for one in sources if not one.startswith("gs://") and not Path(one).exists()]:
        fix = "name existing ones"
        raise DataError(f"input.sources: {', '.join(missing)}: no such file or folder\n    fix: {fix}")
    for source in sources:
        if source.startswith("gs://"):
            found += _objects(source)
            continue
        path, label = Path(source), Path(source).resolve().name
        folder = Sources([path])
        for file in folder.files():
            name = str(PurePosixPath(label, file.relative_to(path).as_posix()))
            about = file.stat()
            found.append(Input(name, str(file.resolve()), about.st_size, changed_ns=about.st_mtime_ns))
        for link, what in folder.links.items():
            links[str(PurePosixPath(label, link.relative_to(path).as_posix()))] = what
    twice = [name for name, times in Counter(one.name for one in found).items() if times > 1]
    if twice:
        fix = "name each source once, and give their folders different names"
        raise DataError(f"input.sources: two files are called {twice[0]}\n    fix: {fix}")
    # As in Hadoop and Spark, names that begin with _ are marks of programs: _SUBMIT, _SUCCESS.
    found = [one for one in found if not PurePosixPath(one.name).name.startswith("_")]
    return sorted(found, key=lambda one: one.name), links


def look(one: Input, config: InputConfig, piece_bytes: int) -> Looked:
    """Pins an input and cuts it where it can be cut; never raises for what is wrong with it."""
    try:
        if not one.version:
            with Path(one.url).open("rb") as file:
                one = replace(one, version=hashlib.file_digest(file, "sha256").hexdigest())
        kind = _kind(one, config) if one.size_bytes else "text"
        if kind == "parquet":
            return Looked(one, tuple(_row_groups(one, piece_bytes)))
        if kind == "lines" and _compression(one.name) is None and one.size_bytes > piece_bytes:
            return Looked(one, tuple(_line_pieces(one, piece_bytes)))
        return Looked(one, (Piece(one, kind, size_bytes=one.size_bytes),))
    except WorkloadError as error:
        return Looked(one, problem=str(error))
    except BROKEN as error:
        return Looked(one, problem=str(unreadable(one, error)))


def opened(one: Input) -> IO[bytes]:
    """The content as it is stored; it can be sought in.

    Raises:
        DataError: it has changed since it was listed.
    """
    if one.url.startswith("gs://"):
        return cast(IO[bytes], io.BufferedReader(_Object(one), _DOWNLOAD_BYTES))
    unchanged(one)
    return Path(one.url).open("rb")


def unchanged(one: Input) -> None:
    """Raises DataError where a file isn't the one any more that was listed."""
    if one.url.startswith("gs://"):
        return
    about = Path(one.url).stat()
    if (about.st_size, about.st_mtime_ns) != (one.size_bytes, one.changed_ns):
        raise _changed(one)


def decompressed(one: Input, file: IO[bytes]) -> IO[bytes]:
    """The text of a file that may be compressed."""
    match _compression(one.name):
        case "gzip":
            return cast(IO[bytes], gzip.open(file))
        case "zstd":
            stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
            return cast(IO[bytes], io.BufferedReader(_Arrow(stream), _CHUNK_BYTES))
    return file


def unreadable(one: Input, error: Exception) -> DataError:
    """What to say of an input that can't be read to its end."""
    reason = getattr(error, "strerror", None) or error
    return DataError(f"{one.url}: can't be read: {reason}\n    fix: get it again, or leave it out")


def _changed(one: Input) -> DataError:
    fix = "run again once nothing writes there"
    return DataError(f"{one.url}: has changed since it was listed\n    fix: {fix}")


def _compression(name: str) -> str | None:
    end = PurePosixPath(name).suffix.lower()
    return "gzip" if end in GZIP else "zstd" if end in ZSTANDARD else None


def _kind(one: Input, config: InputConfig) -> str:
    if config.format != "auto":
        return config.format
    ends = [end.lower() for end in PurePosixPath(one.name).suffixes]
    end = next(iter(ends[-2:-1] if _compression(one.name) else ends[-1:]), "")
    if end in LINES:
        return "lines"
    if end in PARQUET:
        return "parquet"
    return "lines" if end == ".json" and _holds_lines(one, config.field) else "text"


def _holds_lines(one: Input, field: str) -> bool:
    """Whether each line is an object: the first is one, and has the field or isn't alone."""
    with opened(one) as file:
        text = decompressed(one, file)
        first, second = text.readline(_DOWNLOAD_BYTES), text.readline(_DOWNLOAD_BYTES)
    try:
        entry = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and (field in entry or bool(second.strip()))


def _line_pieces(one: Input, piece_bytes: int) -> Iterator[Piece]:
    """Pieces that begin where a line does, each with that line's number."""
    starts, at, lines = [(0, 1)], 0, 0
    with opened(one) as file:
        while chunk := file.read(_CHUNK_BYTES):
            due = starts[-1][0] + piece_bytes - at
            if due < len(chunk):
                place = chunk.find(b"\n", max(0, due)) + 1
                if place and at + place < one.size_bytes:
                    starts.append((at + place, lines + chunk.count(b"\n", 0, place) + 1))
            lines += chunk.count(b"\n")
            at += len(chunk)
    ends = [*(start for start, _ in starts[1:]), one.size_bytes]
    for (start, first), end in zip(starts, ends, strict=True):
        yield Piece(one, "lines", start, end, first, end - start)


def _row_groups(one: Input, piece_bytes: int) -> Iterator[Piece]:
    """Pieces of one row group or more."""
    with opened(one) as file:
        about = parquet.ParquetFile(file).metadata
        start = row = rows = size = 0
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            rows, size = rows + group.num_rows, size + group.total_byte_size
            if size >= piece_bytes or number == about.num_row_groups - 1:
                yield Piece(one, "parquet", start, number + 1, row, size)
                start, row, rows, size = number + 1, row + rows, 0, 0


def _objects(source: str) -> Iterator[Input]:
    bucket, _, prefix = source.removeprefix("gs://").partition("/")
    for name, (generation, size_bytes) in _bucket(bucket).versions(prefix).items():
        if not name.endswith("/"):  # a folder's placeholder
            yield Input(f"{bucket}/{name}", f"gs://{bucket}/{name}", size_bytes, str(generation))


@cache
def _bucket(name: str) -> Any:
    from workload.runs.bucket_store import open_bucket

    return open_bucket(f"gs://{name}")


class _Object(io.RawIOBase):
    """An object of a bucket in the generation that was listed, read in ranges."""

    def __init__(self, one: Input):
        self._one, self._at = one, 0
        self._bucket, _, self._name = one.url.removeprefix("gs://").partition("/")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._one.size_bytes}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._one.size_bytes)
        if end <= self._at:
            return 0
        try:
            raw = _bucket(self._bucket).read(self._name, self._at, end, int(self._one.version))
        except MissingObjectError:
            raise _changed(self._one) from None
        buffer[: len(raw)] = raw
        self._at += len(raw)
        return len(raw)


class _Arrow(io.RawIOBase):
    """A stream of pyarrow's, which has no lines of its own."""

    def __init__(self, stream: Any):
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raw = self._stream.read(len(buffer))
        buffer[: len(raw)] = raw
        return len(raw)
