"""`batches` on devices, split over an axis of a mesh, for one process or those of several hosts.

for values_BxD in on_mesh(Activations(url), "resid_post.12", size=4096, mesh=mesh, seed=1): ...
"""

# mypy: allow-untyped-calls

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workload.activations.batches import SHARDS_AT_ONCE, batches, share
from workload.activations.reader import Activations


def on_mesh(
    activations: Activations,
    tensors: str | Sequence[str],
    size: int,
    mesh: Mesh,
    axis: str = "data",
    seed: int = 0,
    shards_at_once: int = SHARDS_AT_ONCE,
) -> Iterator[Any]:
    """Iterate over an epoch in batches of one size, so that a step is compiled once.

    Each process reads its own part of the shards. All do as many steps as the one with the fewest
    tokens can; tokens left over are in no batch, and another seed leaves other tokens over.

    Args:
        activations: to read; the same on all processes.
        tensors: a point, or several of points, `tokens` and `positions`; see `batches`.
        size: of a batch, over all processes.
        mesh: the batch is split over `axis`; its other axes hold copies.
        axis: by name.
        seed: of the order, such as the epoch's number.
        shards_at_once: mixed with each other, by each process; see `batches`.

    Yields:
        size x the point's axes, in the stored dtype, or a tuple; the next batch is on its way to the devices.

    Raises:
        ValueError: the axis or the processes don't divide `size`.
        DataError: a shard is damaged, or lacks the point.
    """
    part, parts = jax.process_index(), jax.process_count()
    for divisor, count in ((f"the mesh's axis {axis}", mesh.shape[axis]), ("the processes", parts)):
        if size % count:
            raise ValueError(f"size, {size}, must be a multiple of {count}: {divisor}")
    shares = [share(activations, seed, index, parts) for index in range(parts)]
    steps = min(sum(map(activations.tokens, names)) for names in shares) // (size // parts)
    placed = NamedSharding(mesh, PartitionSpec(axis))
    coming: Any = None
    read = batches(activations, tensors, size // parts, seed, shards_at_once, part, parts)
    for _, values in zip(range(steps), read, strict=False):
        before = coming
        coming = jax.tree.map(partial(jax.make_array_from_process_local_data, placed), values)
        if before is not None:
            yield before
    if coming is not None:
        yield coming
