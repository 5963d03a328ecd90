"""A shard: what became of one range of a stream, in one safetensors file that is whole or not there.

    resid_post.12   T x D        bfloat16  for each point kept, its tensors of all tokens
    tokens          T            int32     their ids
    positions       T            int32     their places in their documents
    offsets         N+1          int64     where each document begins among them, and the last one ends
    samples         N            int64     each document's number in the source
    id_bytes, id_offsets                   the documents' names, as in a stream
    mean/resid_post.12           float64   of all tokens
    deviations/resid_post.12     float64   sums of squared deviations from it

Its header says what made it. Every tensor lies in one piece, so a document's is one range of bytes.
"""

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from workload.activations.statistics import Moments
from workload.data.ragged import offsets, pack_ids, unpack_ids
from workload.errors import DataError
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store

VERSION = 1
SUFFIX = ".safetensors"
CHANGED = "isn't what was written"
MEND = "remove it, and start the extraction again: it makes what isn't there"
_HEADER = "shard"
_FIRST_READ = 2**16  # bytes; holds the header of nearly every shard
_PIECE = 2**23  # bytes read at once of a shard that is read whole; a multiple of every number's size
_MOST_HEADER = 2**27
try:
    from ml_dtypes import bfloat16 as _bfloat16
except ImportError:  # for who reads with NumPy alone, which has no bfloat16
    _bfloat16 = None  # type: ignore[assignment,misc,unused-ignore]

_DTYPES = {
    "BF16": np.dtype(np.uint16 if _bfloat16 is None else _bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
}


@dataclass(frozen=True)
class About:
    """What made a shard.

    Attributes:
        worker: whose folder it is in: the number of the stream.
        number: of the shard in the worker's folder, from 1.
        shards: that the stream becomes.
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


@dataclass(frozen=True)
class Content:
    """What a shard holds, in memory."""

    values: Mapping[str, NDArray[Any]]  # by point, T x its axes
    tokens_T: NDArray[np.int32]
    lengths: Sequence[int]  # tokens of each of the N documents
    samples: Sequence[int]
    ids: Sequence[str]
    moments: Mapping[str, Moments]


def folder(worker: int) -> str:
    """Where a worker's shards lie below their run."""
    return f"activations/tpu_{worker}/"


def name(worker: int, number: int) -> str:
    """Where a shard lies below its run."""
    return f"{folder(worker)}shard_{number:04}{SUFFIX}"


def pack(about: About, content: Content) -> bytes:
    """A shard's file; the same bytes for the same content."""
    lengths = np.asarray(content.lengths, np.int64)
    arrays: dict[str, NDArray[Any]] = {
        **content.values,
        "tokens": content.tokens_T,
        "positions": np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        "offsets": offsets(lengths),
        "samples": np.asarray(content.samples, np.int64),
        **pack_ids(content.ids),
    }
    for point, moments in content.moments.items():
        arrays[f"mean/{point}"] = moments.mean
        arrays[f"deviations/{point}"] = moments.deviations
    # As plain bytes: bfloat16 is none of the types that Python's buffers know.
    raw = {key: np.ascontiguousarray(value).reshape(-1).view(np.uint8) for key, value in arrays.items()}
    digests = {key: hashlib.sha256(value.data).hexdigest() for key, value in raw.items()}
    header = asdict(about) | {"sha256": digests}
    from safetensors.numpy import save  # which readers don't need

    # One key: a header of several would be written in any order.
    return save(arrays, {_HEADER: json.dumps(header, sort_keys=True)})


@dataclass(frozen=True)
class _Place:
    kind: str  # of _DTYPES
    shape: tuple[int, ...]
    begin: int  # in the file
    end: int

    def array(self, raw: bytes | memoryview) -> NDArray[Any]:
        """Of these bytes, flat; bfloat16 as float32, its upper half, where NumPy alone is there."""
        values = np.frombuffer(raw, _DTYPES[self.kind])
        if self.kind == "BF16" and _bfloat16 is None:
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values


class Shard:
    """A shard as it is read: its header and documents at once, tensors by the piece."""

    def __init__(self, store: Store, name: str, first_read: int = _FIRST_READ):
        """Reads header and documents, beginning with so many bytes.

        Raises:
            DataError: it isn't there, is another version's or damaged.
        """
        self._store, self._name = store, name
        try:
            raw = self._head = store.read(name, 0, first_read)  # of which nothing is asked for again
            size = int.from_bytes(raw[:8], "little")
            if len(raw) < 8 or size > _MOST_HEADER:
                raise ValueError("has no header")
            if size + 8 > len(raw):
                raw = self._head = raw + store.read(name, len(raw), size + 8)
            header = json.loads(raw[8 : size + 8])
            about = json.loads(header.pop("__metadata__")[_HEADER])
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
            fix = "name the run's folder: it holds activations/"
            raise DataError(f"{store.url}/{name}: no such shard\n    fix: {fix}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"is no shard, or damaged: {error!r}") from None
        if self.about.version != VERSION:
            fix = "read it with the version that made it"
            raise DataError(f"{store.url}/{name}: is of version {self.about.version}\n    fix: {fix}")
        try:
            self.offsets = self._whole("offsets")
            self.samples = self._whole("samples")
            self.ids = unpack_ids(self._whole("id_bytes"), self._whole("id_offsets"))
        except ValueError as error:  # also of a name that is no UTF-8, of a shape that doesn't fit its bytes
            raise self._damaged(f"is damaged: {error}") from None
        if first_read == _FIRST_READ:
            self._head = b""

    @classmethod
    def checked(cls, store: Store, name: str) -> tuple[Self, list[str]]:
        """A shard and its `problems`, in one request unless it is longer than a piece.

        Raises:
            DataError: it isn't there, is another version's, cut short, or no shard at all.
        """
        one = cls(store, name, _PIECE)
        found = one.problems()
        one._head = b""
        return one, found

    @property
    def tokens(self) -> int:
        """In all documents."""
        return int(self.offsets[-1])

    def read(self, key: str, begin: int = 0, end: int | None = None) -> NDArray[Any]:
        """Rows `begin` to before `end` of a tensor, those bytes alone.

        Raises:
            DataError: it holds no such tensor, or is cut short.
        """
        place = self._place(key)
        rows = place.shape[0]
        end = rows if end is None else min(end, rows)
        row = (place.end - place.begin) // max(rows, 1)
        raw = self._bytes(place.begin + begin * row, place.begin + end * row)
        return place.array(raw).reshape(-1, *place.shape[1:])

    def shape(self, key: str) -> tuple[int, ...]:
        """Of a tensor, as `read` would give all of it."""
        return self._place(key).shape

    def document(self, place: int, key: str) -> NDArray[Any]:
        """A document's tensor, by its place in the shard: L x the point's axes."""
        return self.read(key, int(self.offsets[place]), int(self.offsets[place + 1]))

    def moments(self, point: str) -> Moments:
        """Of all its tokens."""
        return Moments(self.tokens, self._whole(f"mean/{point}"), self._whole(f"deviations/{point}"))

    def problems(self) -> list[str]:
        """What is wrong with it, after reading all of it, a piece in memory at a time."""
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
        found = []
        for key, digest in digests.items():
            if digest.hexdigest() != self.about.sha256.get(key):
                found.append(f"{key} {CHANGED}")
            elif bad[key]:
                found.append(f"{key} holds {bad[key]} values that are no numbers")
        return found

    def _pieces(self) -> Iterator[list[tuple[str, int, int]]]:
        """All tensors in the order of the file, some (key, begin, end) at a time, of a piece's size together.

        A number never lies in two pieces.
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
            points = self.about.points
            near = difflib.get_close_matches(key, points, n=3, cutoff=0.4)
            raise DataError(f"{self._name}: keeps no {key}\n    fix: one of {', '.join(near or points)}")
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

    def _damaged(self, what: str) -> DataError:
        return DataError(f"{self._store.url}/{self._name}: {what}\n    fix: {MEND}")


def _known(kind: str) -> str:
    """A dtype's name in the file; ValueError for one that no shard has."""
    if kind not in _DTYPES:
        raise ValueError(f"its dtype {kind!r} is none of a shard's")
    return kind
