"""Batches of tokens' tensors for training on them: shuffled, each token once an epoch, the same for a seed.

    for values_BxD in batches(Activations(url), "resid_post.12", size=4096, seed=1): ...

Shards are taken in a random order, a few at once; their tokens are mixed among each other. Whoever
shares an epoch, hosts or a loader's workers, takes a part of the shards each. bfloat16 is `ml_dtypes`,
and comes as float32 where that isn't installed. For torch see `torch_batches.py`, for JAX `jax_batches.py`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workload.activations.reader import Activations


def share(activations: Activations, seed: int, part: int, parts: int) -> list[str]:
    """The shards of one part of an epoch, in its order: of all parts together, each once.

    Raises:
        ValueError: there is no such part.
    """
    if not 0 <= part < parts:
        raise ValueError(f"part must lie between 0 and {parts - 1}, not be {part}")
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
    """One epoch, or a part of it.

    Args:
        activations: to read.
        point: whose tensors.
        size: of a batch; the last one holds what is left.
        seed: of the order; the number of the epoch will do.
        shards_at_once: that are mixed, and held in memory twice.
        part: which one.
        parts: that the epoch is cut into.

    Yields:
        size x the point's axes.

    Raises:
        ValueError: `size` or `shards_at_once` is less than 1, or there is no such part.
        DataError: a shard is damaged, or keeps no such point.
    """
    if size < 1 or shards_at_once < 1:
        raise ValueError(f"size and shards_at_once must be at least 1, not {size} and {shards_at_once}")
    names = share(activations, seed, part, parts)
    draw = np.random.default_rng([seed, part])
    left: NDArray[Any] | None = None
    for first in range(0, len(names), shards_at_once):
        read = [activations.open(name).read(point) for name in names[first : first + shards_at_once]]
        mixed = np.concatenate(read)[draw.permutation(sum(map(len, read)))]
        values = mixed if left is None else np.concatenate([left, mixed])
        whole = len(values) // size * size
        yield from (values[start : start + size] for start in range(0, whole, size))
        left = values[whole:]
    if left is not None and len(left):
        yield left
