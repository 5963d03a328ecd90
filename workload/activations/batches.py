"""Batches of tokens' tensors for training on them: shuffled, each token once an epoch, the same for a seed.

    for values_BxD in batches(Activations(url), "resid_post.12", size=4096, seed=1): ...

Shards are taken in a random order, a few at once; their tokens are mixed among each other. bfloat16 is
NumPy's by `ml_dtypes`: `jax.numpy.asarray(values)` takes it as it is, torch by
`torch.from_numpy(values.view(numpy.int16)).view(torch.bfloat16)`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workload.activations.reader import Activations


def batches(
    activations: Activations, point: str, size: int, seed: int = 0, shards_at_once: int = 2
) -> Iterator[NDArray[Any]]:
    """One epoch.

    Args:
        activations: to read.
        point: whose tensors.
        size: of a batch; the last one holds what is left.
        seed: of the order.
        shards_at_once: that are mixed, and held in memory twice.

    Yields:
        size x the point's axes.

    Raises:
        ValueError: `size` or `shards_at_once` is less than 1.
        DataError: a shard is damaged, or keeps no such point.
    """
    if size < 1 or shards_at_once < 1:
        raise ValueError(f"size and shards_at_once must be at least 1, not {size} and {shards_at_once}")
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(activations.names))
    left: NDArray[Any] | None = None
    for first in range(0, len(order), shards_at_once):
        names = [activations.names[n] for n in order[first : first + shards_at_once]]
        read = [activations.open(name).read(point) for name in names]
        mixed = np.concatenate(read)[draw.permutation(sum(map(len, read)))]
        values = mixed if left is None else np.concatenate([left, mixed])
        whole = len(values) // size * size
        yield from (values[start : start + size] for start in range(0, whole, size))
        left = values[whole:]
    if left is not None and len(left):
        yield left
