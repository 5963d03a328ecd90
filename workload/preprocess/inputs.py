"""Inputs of a run: files of folders and objects of buckets, each pinned, large ones in pieces.

A file is pinned by its SHA-256, an object by its generation, so that a run's id never covers two contents.
"""

import gzip
import hashlib
import io
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import pyarrow  # type: ignore[import-untyped]
from pyarrow import parquet

from workload.data.sources import LINES, PARQUET, Sources, holds_lines, suffix
from workload.errors import DataError, WorkloadError
from workload.preprocess.config import InputConfig
from workload.runs.errors import MissingObjectError

GZIP, ZSTANDARD = (".gz",), (".zst", ".zstd")
COMPRESSED = GZIP + ZSTANDARD
_CHUNK_BYTES = 2**20
_DOWNLOAD_BYTES = 2**23  # of an object, at once
BROKEN = (EOFError, zlib.error, pyarrow.ArrowInvalid, OSError)


@dataclass(frozen=True)
class Input:
    """A file or object.

    Attributes:
        name: unique in the run, and independent of the folder's place.
        url: a path, or gs://BUCKET/OBJECT.
        size_bytes: as stored.
        version: SHA-256 of a file's bytes, or an object's generation; empty: not known yet.
        changed_ns: modification time of a file, since the epoch.
    """

    name: str
    url: str
    size_bytes: int
    version: str = ""
    changed_ns: int = 0


@dataclass(frozen=True)
class Piece:
    """An input or a part of it, read by one task.

    Attributes:
        kind: text, lines or parquet.
        start, end: bytes of lines, row groups of Parquet; `end` is exclusive; -1: the last one.
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
    """An input after inspection: its pieces, or its problem."""

    input: Input
    pieces: tuple[Piece, ...] = ()
    problem: str = ""


def listed(sources: Sequence[str]) -> tuple[list[Input], dict[str, str]]:
    """Return every file and object, sorted by name, and descriptions of links that lead to no file.

    Raises:
        DataError: a source is missing, or two files have one name.
        StoreError: a bucket can't be listed.
    """
    inputs: list[Input] = []
    links: dict[str, str] = {}
    if missing := [s for s in sources if not s.startswith("gs://") and not Path(s).exists()]:
        fix = "name existing ones"
        raise DataError(f"input.sources: {', '.join(missing)}: no such file or folder\n    fix: {fix}")
    for source in sources:
        if source.startswith("gs://"):
            inputs += _objects(source)
            continue
        path, label = Path(source), Path(source).resolve().name
        folder = Sources([path])
        for file in folder.files():
            name = str(PurePosixPath(label, file.relative_to(path).as_posix()))
            about = file.stat()
            inputs.append(Input(name, str(file.resolve()), about.st_size, changed_ns=about.st_mtime_ns))
        for link, kind in folder.links.items():
            links[str(PurePosixPath(label, link.relative_to(path).as_posix()))] = kind
    twice = [name for name, times in Counter(item.name for item in inputs).items() if times > 1]
    if twice:
        fix = "name each source once, and give their folders different names"
        raise DataError(f"input.sources: two files are called {twice[0]}\n    fix: {fix}")
    # As in Hadoop and Spark, names with a leading _ are markers: _SUBMIT, _SUCCESS; hidden ones have a dot.
    inputs = [item for item in inputs if not PurePosixPath(item.name).name.startswith("_")]
    return sorted(inputs, key=lambda item: item.name), links


def look(item: Input, config: InputConfig, piece_bytes: int) -> Looked:
    """Pin an input and cut it into pieces; returns its problem instead of raising."""
    try:
        if not item.version:
            with Path(item.url).open("rb") as file:
                item = replace(item, version=hashlib.file_digest(file, "sha256").hexdigest())
        kind = _kind(item, config) if item.size_bytes else "text"
        if kind == "parquet":
            return Looked(item, tuple(_row_groups(item, piece_bytes)))
        if kind == "lines" and _compression(item.name) is None and item.size_bytes > piece_bytes:
            return Looked(item, tuple(_line_pieces(item, piece_bytes)))
        return Looked(item, (Piece(item, kind, size_bytes=item.size_bytes),))
    except WorkloadError as error:
        return Looked(item, problem=str(error))
    except BROKEN as error:
        return Looked(item, problem=str(unreadable(item, error)))


def opened(item: Input) -> IO[bytes]:
    """Open the stored content; seekable.

    Raises:
        DataError: it has changed since it was listed.
    """
    if item.url.startswith("gs://"):
        return cast(IO[bytes], io.BufferedReader(_Object(item), _DOWNLOAD_BYTES))
    unchanged(item)
    return Path(item.url).open("rb")


def unchanged(item: Input) -> None:
    """Raise DataError if a file has changed since it was listed."""
    if item.url.startswith("gs://"):
        return
    about = Path(item.url).stat()
    if (about.st_size, about.st_mtime_ns) != (item.size_bytes, item.changed_ns):
        raise _changed(item)


def decompressed(item: Input, file: IO[bytes]) -> IO[bytes]:
    """Wrap a file with its decompression, if any."""
    match _compression(item.name):
        case "gzip":
            return cast(IO[bytes], gzip.open(file))
        case "zstd":
            stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
            return cast(IO[bytes], io.BufferedReader(_Arrow(stream), _CHUNK_BYTES))
    return file


def unreadable(item: Input, error: Exception) -> DataError:
    """Return the error for an input that can't be read to its end."""
    reason = getattr(error, "strerror", None) or error
    fix = "get it again, or leave it out"
    if "too much memory for decoding" in str(error):  # Zstandard's, of a window above 128 MiB
        name = item.url.rpartition("/")[2]
        fix = f"pack it anew with a window up to 128 MiB: zstd -dc --long=31 {name} | zstd --long=27 -o NAME"
    return DataError(f"{item.url}: can't be read: {reason}\n    fix: {fix}")


def _changed(item: Input) -> DataError:
    fix = "run again once nothing writes there"
    return DataError(f"{item.url}: has changed since it was listed\n    fix: {fix}")


def _compression(name: str) -> str | None:
    end = PurePosixPath(name).suffix.lower()
    return "gzip" if end in GZIP else "zstd" if end in ZSTANDARD else None


def _kind(item: Input, config: InputConfig) -> str:
    if config.format != "auto":
        return config.format
    end = suffix(PurePosixPath(item.name), COMPRESSED)
    if end in LINES:
        return "lines"
    if end in PARQUET:
        return "parquet"
    return "lines" if end == ".json" and _holds_lines(item, config.field) else "text"


def _holds_lines(item: Input, field: str) -> bool:
    with opened(item) as file:
        return holds_lines(decompressed(item, file), field, _DOWNLOAD_BYTES)


def _line_pieces(item: Input, piece_bytes: int) -> Iterator[Piece]:
    """Yield pieces that begin with a line, each with that line's number."""
    starts, at, lines = [(0, 1)], 0, 0
    with opened(item) as file:
        while chunk := file.read(_CHUNK_BYTES):
            due = starts[-1][0] + piece_bytes - at
            if due < len(chunk):
                place = chunk.find(b"\n", max(0, due)) + 1
                if place and at + place < item.size_bytes:
                    starts.append((at + place, lines + chunk.count(b"\n", 0, place) + 1))
            lines += chunk.count(b"\n")
            at += len(chunk)
    ends = [*(start for start, _ in starts[1:]), item.size_bytes]
    for (start, first), end in zip(starts, ends, strict=True):
        yield Piece(item, "lines", start, end, first, end - start)


def _row_groups(item: Input, piece_bytes: int) -> Iterator[Piece]:
    """Yield pieces of one row group or more."""
    with opened(item) as file:
        about = parquet.ParquetFile(file).metadata
        start = row = rows = size = 0
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            rows, size = rows + group.num_rows, size + group.total_byte_size
            if size >= piece_bytes or number == about.num_row_groups - 1:
                yield Piece(item, "parquet", start, number + 1, row, size)
                start, row, rows, size = number + 1, row + rows, 0, 0


def _objects(source: str) -> Iterator[Input]:
    bucket, _, prefix = source.removeprefix("gs://").partition("/")
    for name, (generation, size_bytes) in _bucket(bucket).versions(prefix).items():
        hidden = any(part.startswith(".") for part in name.removeprefix(prefix).split("/"))
        if not hidden and not name.endswith("/"):  # a folder's placeholder
            yield Input(f"{bucket}/{name}", f"gs://{bucket}/{name}", size_bytes, str(generation))


@cache
def _bucket(name: str) -> Any:
    from workload.runs.bucket_store import open_bucket

    return open_bucket(f"gs://{name}")


class _Object(io.RawIOBase):
    """An object of a bucket in the generation listed, read in ranges."""

    def __init__(self, item: Input):
        self._input, self._at = item, 0
        self._bucket, _, self._name = item.url.removeprefix("gs://").partition("/")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._input.size_bytes}[whence]
        )
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._input.size_bytes)
        if end <= self._at:
            return 0
        try:
            raw = _bucket(self._bucket).read(self._name, self._at, end, int(self._input.version))
        except MissingObjectError:
            raise _changed(self._input) from None
        buffer[: len(raw)] = raw
        self._at += len(raw)
        return len(raw)


class _Arrow(io.RawIOBase):
    """A stream of pyarrow's, which lacks lines."""

    def __init__(self, stream: Any):
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raw = self._stream.read(len(buffer))
        buffer[: len(raw)] = raw
        return len(raw)
