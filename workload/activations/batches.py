"""Shuffled batches of tokens' tensors for training; each token once an epoch, reproducible by seed.

    for values_BxD in batches(Activations(url), "resid_post.12", size=4096, seed=1): ...

Shards are read in random order, a few at a time; their tokens are mixed with each other. Hosts or a
loader's workers that share an epoch read a part of the shards each. bfloat16 is `ml_dtypes`', or float32
where that isn't installed. For torch see `torch_batches.py`, for JAX `jax_batches.py`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workload.activations.reader import Activations


def share(activations: Activations, seed: int, part: int, parts: int) -> list[str]:
    """Return the shards of one part of an epoch, in order; the parts together hold each shard once.

    Raises:
        ValueError: `part` is out of range.
    """
    if not 0 <= part < parts:
        raise ValueError(f"part must be between 0 and {parts - 1}, not {part}")
    order = np.random.default_rng(seed).permutation(len(activations.names))
    return [activations.names[n] for n in order[part::parts]]


def batches(
    activations: Activations,
    point: str,
    size: int,
    seed: int = 0,
    shards_at_once: int = 2,
    part: int = 0,
    parts: int = 1,
) -> Iterator[NDArray[Any]]:
    """Iterate over the batches of an epoch, or of a part of it.

    Args:
        activations: to read.
        point: the tensors to read.
        size: of a batch; the last one may be smaller.
        seed: of the order, such as the epoch's number.
        shards_at_once: mixed with each other, and held in memory twice.
        part: index of the part to read.
        parts: number of parts of the epoch.

    Yields:
        size x the point's axes.

    Raises:
        ValueError: `size` or `shards_at_once` is less than 1, or `part` is out of range.
        DataError: a shard is damaged, or lacks the point.
    """
    if size < 1 or shards_at_once < 1:
        raise ValueError(f"size and shards_at_once must be at least 1, not {size} and {shards_at_once}")
    names = share(activations, seed, part, parts)
    draw = np.random.default_rng([seed, part])
    remainder: NDArray[Any] | None = None
    for first in range(0, len(names), shards_at_once):
        read = [activations.open(name).read(point) for name in names[first : first + shards_at_once]]
        mixed = np.concatenate(read)[draw.permutation(sum(map(len, read)))]
        values = mixed if remainder is None else np.concatenate([remainder, mixed])
        whole = len(values) // size * size
        yield from (values[start : start + size] for start in range(0, whole, size))
        remainder = values[whole:]
    if remainder is not None and len(remainder):
        yield remainder
