"""Lists of unequal lengths as flat arrays, which is all that a safetensors file holds."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


def offsets(lengths: Iterable[int]) -> NDArray[np.int64]:
    """Where each of some parts begins that lie back to back, and where the last one ends."""
    return np.cumsum([0, *lengths], dtype=np.int64)


def pack_ids(ids: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Names as arrays, which is all that a safetensors file holds."""
    names = [name.encode() for name in ids]
    return {"id_bytes": np.frombuffer(b"".join(names), np.uint8), "id_offsets": offsets(map(len, names))}


def unpack_ids(id_bytes: NDArray[np.uint8], id_offsets: NDArray[np.int64]) -> tuple[str, ...]:
    """What `pack_ids` packed; ValueError where it isn't."""
    names = id_bytes.tobytes()
    return tuple(names[begin:end].decode() for begin, end in pairwise(id_offsets.tolist()))
