"""Lists of unequal lengths as flat arrays, for safetensors files."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


def offsets(lengths: Iterable[int]) -> NDArray[np.int64]:
    """Return the begin of each of some contiguous parts, and the end of the last one."""
    return np.cumsum([0, *lengths], dtype=np.int64)


def pack_ids(ids: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return names as flat arrays."""
    names = [name.encode() for name in ids]
    return {"id_bytes": np.frombuffer(b"".join(names), np.uint8), "id_offsets": offsets(map(len, names))}


def unpack_ids(id_bytes: NDArray[np.uint8], id_offsets: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the names in `pack_ids`' arrays; ValueError if those are invalid."""
    names = id_bytes.tobytes()
    return tuple(names[begin:end].decode() for begin, end in pairwise(id_offsets.tolist()))
