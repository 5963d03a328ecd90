"""A stream: tokenized documents in one immutable file.

The file is a safetensors with

    tokens      T         int32   all documents' tokens, contiguous
    offsets     N+1       int64   begin of each document, and end of the last one
    samples     N         int64   each document's number in the source, counted from 0
    id_bytes    I         uint8   the documents' names in UTF-8, contiguous
    id_offsets  N+1       int64
    roles       T         uint8   of conversations: who says each token, 1 + its place in the header's list

and its header records tokenizer and source. It is small beside an extraction from it: 4 bytes a
token, where a point of a 0.5 B model takes 1,792.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
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
INDEX = "streams.json"  # beside the streams: the source's and each stream's sha256
_HEADER = "stream"  # the only key of the header: several would be written in arbitrary order


@dataclass(frozen=True)
class About:
    """Origin of a stream.

    Attributes:
        number: of the stream, counted from 0.
        streams: number of streams of the source.
        source_sha256: of the source's files, in their order.
        dealt_sha256: of all inputs of the split, the source included.
        tokenizer: its name.
        tokenizer_sha256: of tokenizer.json, or the word bytes.
        vocab_size: minimum of the model.
        rejected: samples of the whole source that are in no stream; `rejected.jsonl` names them.
        roles: of the messages of conversations, such as "user".
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
    roles: tuple[str, ...] = ()


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
    roles_T: NDArray[np.uint8]  # 0: of no message, or in no conversation

    def __len__(self) -> int:
        return len(self.samples_N)

    def lengths(self) -> list[int]:
        """Return the number of tokens of each document."""
        lengths: list[int] = np.diff(self.offsets).tolist()
        return lengths

    def document(self, number: int) -> NDArray[np.int32]:
        """Return a document's tokens, by its index in the stream."""
        return self.tokens_T[self.offsets[number] : self.offsets[number + 1]]


def pack(
    about: About,
    tokens: Sequence[NDArray[np.int32]],
    samples: Sequence[int],
    ids: Sequence[str],
    roles: Sequence[NDArray[np.uint8]] = (),
) -> bytes:
    """Return a stream's file; equal documents give equal bytes."""
    arrays: dict[str, NDArray[Any]] = {
        "tokens": np.concatenate([np.empty(0, np.int32), *tokens]).astype(np.int32),
        "offsets": offsets(map(len, tokens)),
        "samples": np.asarray(samples, np.int64),
        **pack_ids(ids),
    }
    header = asdict(about)
    if about.roles:
        arrays["roles"] = np.concatenate(roles)
    else:
        del header["roles"]  # as in streams made before there were roles
    return save_tensors(arrays, {_HEADER: json.dumps(header, sort_keys=True)})


def read(url: str) -> Stream:
    """Read a stream from `gs://` or a file.

    Raises:
        DataError: the file is missing, isn't a stream, or differs from `streams.json` beside it.
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
        about = replace(about, roles=tuple(about.roles))
        stream = Stream(
            url=url,
            sha256=hashlib.sha256(raw).hexdigest(),
            about=about,
            tokens_T=arrays["tokens"],
            offsets=arrays["offsets"],
            samples_N=arrays["samples"],
            ids=unpack_ids(arrays["id_bytes"], arrays["id_offsets"]),
            roles_T=arrays["roles"] if about.roles else np.zeros(len(arrays["tokens"]), np.uint8),
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
        raise DataError(f"{url}: differs from the stream in {INDEX} beside it\n    fix: {fix}")
    return stream


def _indexed(store: Store, name: str, default: str) -> str:
    """Return a stream's sha256 in the index; the default for a copy without its index."""
    try:
        known: str = json.loads(store.read(INDEX))["sha256"].get(name, default)
    except MissingObjectError:
        return default
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "split the samples again, or read this one away from it"
        raise DataError(f"{store.url}/{INDEX}: is damaged: {error!r}\n    fix: {fix}") from None
    return known


def _problem(stream: Stream) -> str:
    """Return an inconsistency in a well-formed stream file; empty if there is none."""
    tokens, offsets, samples = stream.tokens_T, stream.offsets, stream.samples_N
    kinds: list[tuple[NDArray[Any], type]] = [(tokens, np.int32), (offsets, np.int64), (samples, np.int64)]
    kinds.append((stream.roles_T, np.uint8))
    if any(array.ndim != 1 or array.dtype != dtype for array, dtype in kinds):
        return "its arrays have the wrong shape or dtype"
    if not len(offsets) == len(samples) + 1 == len(stream.ids) + 1:
        return f"{len(samples)} samples, {len(offsets)} offsets and {len(stream.ids)} names don't match"
    roles, known = stream.roles_T, stream.about.roles
    if len(roles) != len(tokens) or roles.max(initial=0) > len(known) or not all(map(str.isprintable, known)):
        return f"its roles don't match its {len(tokens)} tokens"
    if offsets[0] != 0 or offsets[-1] != len(tokens) or (np.diff(offsets) < 1).any():
        return "its documents aren't contiguous"
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < stream.about.vocab_size:
        return f"it holds tokens outside the vocabulary of {stream.about.vocab_size}"
    if len(set(stream.ids)) < len(stream.ids):
        return "two of its documents have the same name"
    return ""


def _metadata(raw: bytes) -> dict[str, str]:
    """Return the header of a safetensors file; huggingface.co/docs/safetensors has the format."""
    size = int.from_bytes(raw[:8], "little")
    metadata: dict[str, str] = json.loads(raw[8 : 8 + size]).get("__metadata__", {})
    return metadata
