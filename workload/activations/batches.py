"""Shuffled batches of tokens' tensors for training; each token once an epoch, reproducible by seed.

    for values_BxD in batches(Activations(url), "resid_post.12", size=4096, seed=1): ...
    for values_BxD, positions_B in batches(activations, ("resid_post.12", "positions"), 4096): ...

Shards are read in random order, some at a time; their tokens are mixed with each other. Hosts or a
loader's workers that share an epoch read a part of the shards each. bfloat16 is `ml_dtypes`', or float32
where that isn't installed. For torch see `torch_batches.py`, for JAX `jax_batches.py`.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workload.activations.reader import Activations
from workload.activations.shard import Shard

SHARDS_AT_ONCE = 8

Arrays = tuple[NDArray[Any], ...]


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
    tensors: str | Sequence[str],
    size: int,
    seed: int = 0,
    shards_at_once: int = SHARDS_AT_ONCE,
    part: int = 0,
    parts: int = 1,
    bits: bool = False,
) -> Iterator[Any]:
    """Return an iterator over the batches of an epoch, or of a part of it.

    Args:
        activations: to read.
        tensors: a point, or several of points, `tokens` and `positions`, with equal rows of equal tokens.
        size: of a batch; the last one may be smaller.
        seed: of the order, such as the epoch's number.
        shards_at_once: mixed with each other; `tensors` of one more than these are held in memory.
        part: index of the part to read.
        parts: number of parts of the epoch.
        bits: return bfloat16 as its bits, uint16.

    Yields:
        size x the point's axes; a tuple where several are named.

    Raises:
        ValueError: `size` or `shards_at_once` is less than 1, or `part` is out of range.
        DataError: a shard is damaged, or lacks the point.

    Warns once an epoch, in part 0, if shards of the extraction are missing.
    """
    if size < 1 or shards_at_once < 1:
        raise ValueError(f"size and shards_at_once must be at least 1, not {size} and {shards_at_once}")
    keys = [tensors] if isinstance(tensors, str) else list(tensors)
    names, draw = share(activations, seed, part, parts), np.random.default_rng([seed, part])
    if part == 0 and (partial := activations.partial()):
        warnings.warn(partial, stacklevel=2)
    groups = [names[first : first + shards_at_once] for first in range(0, len(names), shards_at_once)]
    mixed = (_mixed([activations.open(name) for name in group], keys, draw, bits) for group in groups)
    read = _of_size(mixed, size)
    return (values for [values] in read) if isinstance(tensors, str) else read


def _mixed(shards: Sequence[Shard], keys: Sequence[str], draw: np.random.Generator, bits: bool) -> Arrays:
    """Return tensors of all tokens of some shards in one random order."""
    order = draw.permutation(sum(shard.tokens for shard in shards))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))

    def read(key: str) -> NDArray[Any]:
        mixed, begin = None, 0
        for shard in shards:
            values = shard.read(key, bits=bits)
            mixed = np.empty((len(order), *values.shape[1:]), values.dtype) if mixed is None else mixed
            mixed[place[begin : begin + len(values)]] = values
            begin += len(values)
        assert mixed is not None
        return mixed

    return tuple(map(read, keys))


def _of_size(groups: Iterator[Arrays], size: int) -> Iterator[Arrays]:
    """Cut groups of tensors into batches, across their ends."""
    rest: Arrays | None = None
    for arrays in groups:
        start, total = 0, len(arrays[0])
        if rest is not None:
            start = min(size - len(rest[0]), total)
            rest = tuple(map(np.concatenate, zip(rest, (array[:start] for array in arrays), strict=True)))
            if len(rest[0]) == size:
                yield rest
                rest = None
        end = start + (total - start) // size * size
        for begin in range(start, end - size, size):
            yield tuple(array[begin : begin + size] for array in arrays)
        # Copies, since the group's memory is free while the next one is mixed.
        last = tuple(array[max(start, end - size) : end].copy() for array in arrays)
        rest = tuple(array[end:].copy() for array in arrays) if end < total else rest
        del arrays
        if len(last[0]):
            yield last
    if rest is not None:
        yield rest
