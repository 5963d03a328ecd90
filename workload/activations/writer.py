"""Files of shards and indices in pieces: the tensors' own memory after a header.

The joined bytes are those of `safetensors.numpy.save`, which copies every tensor three times.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workload.activations.shard import HEADER, KINDS, About
from workload.activations.statistics import Moments
from workload.data.ragged import offsets, pack_ids

Tensors = Mapping[str, Sequence[NDArray[Any]]]
"""Tensors by name, each in parts along its first axis."""

INTEGERS_BYTES = 8  # of a token: its id and its position

_ORDER = ("I64", "F64", "F32", "I32", "BF16", "U8")  # of tensors in a file; by name within a dtype


@dataclass(frozen=True)
class Content:
    """Content of a shard, in memory."""

    values: Tensors  # by point, T x its axes
    tokens_T: NDArray[np.int32]
    positions_T: NDArray[np.int32]
    lengths: Sequence[int]  # tokens kept of each of the N documents
    samples: Sequence[int]
    ids: Sequence[str]
    moments: Mapping[str, Moments]

    def tensors(self) -> Tensors:
        """Return all tensors of the shard."""
        moments = self.moments.items()
        return {
            **self.values,
            "tokens": [self.tokens_T],
            "positions": [self.positions_T],
            **documents(self.lengths, self.samples, self.ids),
            **{f"mean/{point}": [of_point.mean] for point, of_point in moments},
            **{f"deviations/{point}": [of_point.deviations] for point, of_point in moments},
        }


def documents(lengths: Sequence[int], samples: Sequence[int], ids: Sequence[str]) -> Tensors:
    """Return the tensors that describe the documents of a file."""
    arrays = {
        "offsets": offsets(lengths),
        "samples": np.asarray(samples, np.int64),
        **pack_ids(ids),
    }
    return {name: [array] for name, array in arrays.items()}


def pack(about: About, tensors: Tensors) -> list[bytes | memoryview]:
    """Return a file as its header and views of the tensors; equal tensors give equal bytes."""
    kinds = {name: KINDS[parts[0].dtype.name] for name, parts in tensors.items()}
    pieces: list[bytes | memoryview] = []
    entries, digests, end = {}, {}, 0
    for name in sorted(tensors, key=lambda name: (_ORDER.index(kinds[name]), name)):
        parts, begin, sha256 = tensors[name], end, hashlib.sha256()
        for part in parts:
            # As plain bytes: Python's buffers don't support bfloat16. A copy only if a device strides rows.
            raw = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
            sha256.update(raw)
            end += len(raw)
            pieces.append(raw)
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        entries[name] = {"dtype": kinds[name], "shape": shape, "data_offsets": (begin, end)}
        digests[name] = sha256.hexdigest()
    origin = json.dumps(asdict(about) | {"sha256": digests}, sort_keys=True)
    fields = {"__metadata__": {HEADER: origin}, **entries}
    header = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return [len(header).to_bytes(8, "little"), header, *pieces]
