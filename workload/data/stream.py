"""A stream: documents as tokens, in one file that never changes.

The file is a safetensors with

    tokens      T         int32   all documents' tokens, back to back
    offsets     N+1       int64   where each document begins, and where the last one ends
    samples     N         int64   each document's number in the source, counted from 0
    id_bytes    I         uint8   the documents' names in UTF-8, back to back
    id_offsets  N+1       int64

and its header says which tokenizer made it, of which source. It is small beside what is extracted
from it: 4 bytes a token where a point of a 0.5 B model takes 1,792.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from workload import command
from workload.data.ragged import offsets, pack_ids, unpack_ids
from workload.errors import DataError
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store, open_store

VERSION = 1
INDEX = "streams.json"  # beside the streams: what was split, and each one's sha256
_HEADER = "stream"  # the one key of the header: more than one would be written in any order


@dataclass(frozen=True)
class About:
    """Where a stream comes from.

    Attributes:
        number: of the stream, counted from 0.
        streams: that the source was split into.
        source_sha256: of the source's files, in their order.
        dealt_sha256: of all that decides what is in which stream, the source among it.
        tokenizer: its name.
        tokenizer_sha256: of tokenizer.json, or the word bytes.
        vocab_size: that a model must have at least.
        rejected: samples of the whole source that are in no stream; `rejected.jsonl` names them.
    """

    number: int
    streams: int
    source_sha256: str
    dealt_sha256: str
    tokenizer: str
    tokenizer_sha256: str
    vocab_size: int
    rejected: int = 0
    version: int = VERSION


@dataclass(frozen=True)
class Stream:
    """A stream in memory."""

    url: str
    sha256: str  # of the file: the stream's identity
    about: About
    tokens_T: NDArray[np.int32]
    offsets: NDArray[np.int64]  # N+1
    samples_N: NDArray[np.int64]
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.samples_N)

    def lengths(self) -> list[int]:
        """Tokens of each document."""
        lengths: list[int] = np.diff(self.offsets).tolist()
        return lengths

    def document(self, number: int) -> NDArray[np.int32]:
        """A document's tokens, by its place in the stream."""
        return self.tokens_T[self.offsets[number] : self.offsets[number + 1]]


def pack(
    about: About, tokens: Sequence[NDArray[np.int32]], samples: Sequence[int], ids: Sequence[str]
) -> bytes:
    """A stream's file; the same bytes for the same documents."""
    arrays: dict[str, NDArray[Any]] = {
        "tokens": np.concatenate([np.empty(0, np.int32), *tokens]).astype(np.int32),
        "offsets": offsets(map(len, tokens)),
        "samples": np.asarray(samples, np.int64),
        **pack_ids(ids),
    }
    return save_tensors(arrays, {_HEADER: json.dumps(asdict(about), sort_keys=True)})


def read(url: str) -> Stream:
    """Reads a stream from `gs://` or a file.

    Raises:
        DataError: it isn't there, isn't a stream, or isn't the one that `streams.json` beside it knows.
    """
    folder, slash, name = url.rpartition("/")
    store = open_store(folder or slash or ".")
    try:
        raw = store.read(name)
    except MissingObjectError:
        fix = f"make streams with `{command('data', 'streams')}`, and name one of them"
        raise DataError(f"{url}: no such stream\n    fix: {fix}") from None
    try:
        arrays = load_tensors(raw)
        about = About(**json.loads(_metadata(raw)[_HEADER]))
        stream = Stream(
            url=url,
            sha256=hashlib.sha256(raw).hexdigest(),
            about=about,
            tokens_T=arrays["tokens"],
            offsets=arrays["offsets"],
            samples_N=arrays["samples"],
            ids=unpack_ids(arrays["id_bytes"], arrays["id_offsets"]),
        )
        if problem := _problem(stream):
            raise ValueError(problem)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        fix = f"make it again with `{command('data', 'streams')}` of this version"
        raise DataError(f"{url}: is not a stream, or damaged: {error}\n    fix: {fix}") from None
    if about.version != VERSION:
        fix = f"make it again with `{command('data', 'streams')}`"
        raise DataError(f"{url}: is of version {about.version}, this reads {VERSION}\n    fix: {fix}")
    if stream.sha256 != _indexed(store, name, stream.sha256):
        fix = "put the stream back, or split the samples again into a new folder"
        raise DataError(f"{url}: isn't the stream that {INDEX} beside it knows\n    fix: {fix}")
    return stream


def _indexed(store: Store, name: str, default: str) -> str:
    """A stream's sha256 as it was split; the default for one that was copied without its index."""
    try:
        known: str = json.loads(store.read(INDEX))["sha256"].get(name, default)
    except MissingObjectError:
        return default
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "split the samples again, or read this one away from it"
        raise DataError(f"{store.url}/{INDEX}: is damaged: {error!r}\n    fix: {fix}") from None
    return known


def _problem(stream: Stream) -> str:
    """What can't be, of a file that is a stream by its form; empty if nothing is."""
    tokens, offsets, samples = stream.tokens_T, stream.offsets, stream.samples_N
    kinds: list[tuple[NDArray[Any], type]] = [(tokens, np.int32), (offsets, np.int64), (samples, np.int64)]
    if any(array.ndim != 1 or array.dtype != dtype for array, dtype in kinds):
        return "its arrays are of another kind"
    if not len(offsets) == len(samples) + 1 == len(stream.ids) + 1:
        return f"{len(samples)} samples, {len(offsets)} offsets and {len(stream.ids)} names don't go together"
    if offsets[0] != 0 or offsets[-1] != len(tokens) or (np.diff(offsets) < 1).any():
        return "its documents don't fill it one after another"
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < stream.about.vocab_size:
        return f"it holds tokens outside the vocabulary of {stream.about.vocab_size}"
    if len(set(stream.ids)) < len(stream.ids):
        return "two of its documents have one name"
    return ""


def _metadata(raw: bytes) -> dict[str, str]:
    """The header of a safetensors file; huggingface.co/docs/safetensors has the format."""
    size = int.from_bytes(raw[:8], "little")
    found: dict[str, str] = json.loads(raw[8 : 8 + size]).get("__metadata__", {})
    return found
