"""Shards: each holds one range of a stream in one safetensors file, which is complete or absent.

    resid_post.12   T x D        bfloat16  for each point kept, its tensors of all tokens
    tokens          T            int32     their ids
    positions       T            int32     their positions in their documents
    offsets         N+1          int64     begin of each document, and end of the last one
    samples         N            int64     each document's number in the source
    id_bytes, id_offsets                   the documents' names, as in a stream
    mean/resid_post.12           float64   over all tokens
    deviations/resid_post.12     float64   sums of squared deviations from the mean

The header records its origin. Every tensor is contiguous, so a document's is one range of bytes.
"""

import difflib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from workload.activations.statistics import Moments
from workload.data.ragged import unpack_ids
from workload.errors import DataError
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store

VERSION = 1
SUFFIX = ".safetensors"
OF_SHARDS = "shard_offsets"  # of an index: first document of each shard, and end of the last one
CHANGED = "isn't what was written"
MEND = "remove it, and start the extraction again: it makes missing shards"
HEADER = "shard"  # the only key: several would be written in arbitrary order
_FIRST_READ = 2**16  # bytes; holds the header of nearly every shard
_PIECE = 2**23  # bytes read at once of a shard that is read whole; a multiple of every number's size
_MOST_HEADER = 2**27
try:
    from ml_dtypes import bfloat16 as _bfloat16
except ImportError:  # NumPy alone has no bfloat16
    _bfloat16 = None  # type: ignore[assignment,misc,unused-ignore]

_DTYPES = {
    "BF16": np.dtype(np.uint16 if _bfloat16 is None else _bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
}
KINDS = {dtype.name: kind for kind, dtype in _DTYPES.items()}  # by NumPy's name of the dtype


@dataclass(frozen=True)
class About:
    """Origin of a shard.

    Attributes:
        worker: number of the stream; names the folder.
        number: of the shard in the worker's folder, from 1.
        shards: of the whole stream.
        stream_sha256: the stream's identity.
        run_sha256: of the run's config.json: model, points, arithmetic, packing.
        points: kept, in the order of the computation.
        sha256: of each tensor's bytes.
        version: of the layout.
    """

    worker: int
    number: int
    shards: int
    stream_sha256: str
    run_sha256: str
    points: tuple[str, ...]
    sha256: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION


def index(worker: int) -> str:
    """Return the path of the index of a worker's documents: a file without points, in its shards' order."""
    return f"indices/tpu_{worker}{SUFFIX}"


def folder(worker: int) -> str:
    """Return the folder of a worker's shards below their run."""
    return f"activations/tpu_{worker}/"


def name(worker: int, number: int) -> str:
    """Return the path of a shard below its run."""
    return f"{folder(worker)}shard_{number:04}{SUFFIX}"


@dataclass(frozen=True)
class _Place:
    kind: str  # of _DTYPES
    shape: tuple[int, ...]
    begin: int  # in the file
    end: int

    def array(self, raw: bytes | memoryview, bits: bool = False) -> NDArray[Any]:
        """View bytes as a flat array; bfloat16 as float32 if `ml_dtypes` isn't installed, or as its bits."""
        values = np.frombuffer(raw, np.uint16 if bits and self.kind == "BF16" else _DTYPES[self.kind])
        if bits:
            return values
        if self.kind == "BF16" and _bfloat16 is None:
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values


class Shard:
    """A shard being read: header and documents at once, tensors in pieces."""

    def __init__(self, store: Store, name: str, first_read: int = _FIRST_READ):
        """Read header and documents, `first_read` bytes at first.

        Raises:
            DataError: the shard is missing, damaged, or of another version.
        """
        self._store, self._name = store, name
        self.held: dict[str, NDArray[Any]] | None = None  # tensors read whole, while it is iterated over
        self._holding = threading.Lock()
        try:
            raw = self._head = store.read(name, 0, first_read)  # not requested again
            size = int.from_bytes(raw[:8], "little")
            if len(raw) < 8 or size > _MOST_HEADER:
                raise ValueError("has no header")
            if size + 8 > len(raw):
                raw = self._head = raw + store.read(name, len(raw), size + 8)
            header = json.loads(raw[8 : size + 8])
            about = json.loads(header.pop("__metadata__")[HEADER])
            self.about = About(**about | {"points": tuple(about["points"])})
            self._places = {
                key: _Place(
                    _known(entry["dtype"]),
                    tuple(entry["shape"]),
                    *(8 + size + offset for offset in entry["data_offsets"]),
                )
                for key, entry in header.items()
            }
        except MissingObjectError:
            fix = "name the run's folder, which holds activations/"
            raise DataError(f"{store.url}/{name}: no such shard\n    fix: {fix}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"is no shard, or damaged: {error!r}") from None
        if self.about.version != VERSION:
            fix = "read it with the version that wrote it"
            raise DataError(f"{store.url}/{name}: is of version {self.about.version}\n    fix: {fix}")
        try:
            self.offsets = self._whole("offsets")
            self.samples = self._whole("samples")
            self.ids = unpack_ids(self._whole("id_bytes"), self._whole("id_offsets"))
        except ValueError as error:  # also invalid UTF-8 in a name, or a shape unlike its bytes
            raise self._damaged(f"is damaged: {error}") from None
        if first_read == _FIRST_READ:
            self._head = b""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the tensors in memory, e.g. for a process of a pool."""
        return {name: value for name, value in vars(self).items() if name != "_holding"} | {"held": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _holding=threading.Lock())

    @classmethod
    def checked(cls, store: Store, name: str) -> tuple[Self, list[str]]:
        """Return a shard and its `problems`, with one request unless it is longer than a piece.

        Raises:
            DataError: the shard is missing, truncated, of another version, or no shard.
        """
        shard = cls(store, name, _PIECE)
        problems = shard.problems()
        shard._head = b""
        return shard, problems

    @property
    def tokens(self) -> int:
        """Number of tokens of all documents."""
        return int(self.offsets[-1])

    def read(self, key: str, begin: int = 0, end: int | None = None, bits: bool = False) -> NDArray[Any]:
        """Read rows `begin` to before `end` of a tensor, and no other bytes; `bits`: bfloat16 as uint16.

        Raises:
            DataError: the tensor is missing, or truncated.
        """
        place = self._place(key)
        rows = place.shape[0]
        end = rows if end is None else min(end, rows)
        row = (place.end - place.begin) // max(rows, 1)
        raw = self._bytes(place.begin + begin * row, place.begin + end * row)
        return place.array(raw, bits).reshape(end - begin, *place.shape[1:])

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor."""
        return self._place(key).shape

    def document(self, index: int, key: str) -> NDArray[Any]:
        """Read a document's tensor, by its index in the shard: L x the point's axes."""
        begin, end, held = int(self.offsets[index]), int(self.offsets[index + 1]), self.held
        if held is None:
            return self.read(key, begin, end)
        with self._holding:  # threads read it once
            if key not in held:
                held[key] = self.read(key)
        return held[key][begin:end].copy()  # a view would keep the whole tensor in memory

    def moments(self, point: str) -> Moments:
        """Return the moments of a point over all tokens."""
        return Moments(self.tokens, self._whole(f"mean/{point}"), self._whole(f"deviations/{point}"))

    def problems(self) -> list[str]:
        """Read all of the shard, a piece in memory at a time, and return its problems."""
        digests = {key: hashlib.sha256() for key in self._places}
        bad = Counter[str]()
        for parts in self._pieces():
            first = min(begin for _, begin, _ in parts)
            raw = memoryview(self._bytes(first, max(end for _, _, end in parts)))
            for key, begin, end in parts:
                part = raw[begin - first : end - first]
                digests[key].update(part)
                if key in self.about.points:
                    values = self._places[key].array(part)
                    bad[key] += int((~np.isfinite(values.astype(np.float32))).sum())
        problems = []
        for key, digest in digests.items():
            if digest.hexdigest() != self.about.sha256.get(key):
                problems.append(f"{key} {CHANGED}")
            elif bad[key]:
                problems.append(f"{key} holds {bad[key]} non-finite values")
        return problems

    def _pieces(self) -> Iterator[list[tuple[str, int, int]]]:
        """Yield all tensors in the order of the file as groups of (key, begin, end) of a piece's size.

        Pieces never split a number.
        """
        parts: list[tuple[str, int, int]] = []
        room = _PIECE
        for key, place in sorted(self._places.items(), key=lambda item: item[1].begin):
            for begin in range(place.begin, max(place.end, place.begin + 1), _PIECE):
                end = min(begin + _PIECE, place.end)
                if parts and (end - begin > room or begin != parts[-1][2]):
                    yield parts
                    parts, room = [], _PIECE
                parts.append((key, begin, end))
                room -= end - begin
        if parts:
            yield parts

    def _place(self, key: str) -> _Place:
        if key not in self._places:
            tensors = (*self.about.points, "tokens", "positions")
            near = difflib.get_close_matches(key, tensors, n=3, cutoff=0.4)
            raise DataError(f"{self._name}: keeps no {key}\n    fix: one of {', '.join(near or tensors)}")
        return self._places[key]

    def _whole(self, key: str) -> NDArray[Any]:
        if key not in self._places:
            raise self._damaged(f"lacks {key}")
        place = self._places[key]
        return place.array(self._bytes(place.begin, place.end)).reshape(place.shape)

    def _bytes(self, begin: int, end: int) -> bytes:
        if end <= len(self._head):
            raw = self._head[begin:end]
        else:
            raw = self._store.read(self._name, begin, end) if end > begin else b""
        if len(raw) != max(0, end - begin):
            raise self._damaged("is cut short")
        return raw

    def _damaged(self, problem: str) -> DataError:
        return DataError(f"{self._store.url}/{self._name}: {problem}\n    fix: {MEND}")


def _known(kind: str) -> str:
    """Return a dtype's name; ValueError if no shard has it."""
    if kind not in _DTYPES:
        raise ValueError(f"its dtype {kind!r} is none of a shard's")
    return kind
