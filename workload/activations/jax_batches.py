"""`batches` on devices, split over an axis of a mesh, for one process or the processes of several hosts.

for values_BxD in on_mesh(Activations(url), "resid_post.12", size=4096, mesh=mesh, seed=1): ...
"""

# mypy: allow-untyped-calls

from collections.abc import Iterator

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workload.activations.batches import batches, share
from workload.activations.reader import Activations


def on_mesh(
    activations: Activations, point: str, size: int, mesh: Mesh, axis: str = "data", seed: int = 0
) -> Iterator[jax.Array]:
    """One epoch in batches of one size, so that a step is compiled once and no process waits for another.

    Each process reads its own part of the shards. All do as many steps as the one with the fewest
    tokens can; what is left over then is in no batch, and another seed leaves other tokens over.

    Args:
        activations: to read; the same on all processes.
        point: whose tensors.
        size: of a batch, over all processes.
        mesh: whose axis takes the batch; its other axes hold copies.
        axis: by name.
        seed: of the order; the number of the epoch will do.

    Yields:
        size x the point's axes, in the dtype that is kept; the next one is on its way to the devices.

    Raises:
        ValueError: the axis or the processes don't divide `size`.
        DataError: a shard is damaged, or keeps no such point.
    """
    part, parts = jax.process_index(), jax.process_count()
    for what, count in ((f"the mesh's axis {axis}", mesh.shape[axis]), ("the processes", parts)):
        if size % count:
            raise ValueError(f"size, {size}, must be a multiple of {count}: {what}")
    shares = [share(activations, seed, one, parts) for one in range(parts)]
    steps = min(sum(activations.open(name).tokens for name in some) for some in shares) // (size // parts)
    placed = NamedSharding(mesh, PartitionSpec(axis))
    coming: jax.Array | None = None
    read = batches(activations, point, size // parts, seed, part=part, parts=parts)
    for _, values in zip(range(steps), read, strict=False):
        before, coming = coming, jax.make_array_from_process_local_data(placed, values)
        if before is not None:
            yield before
    if coming is not None:
        yield coming
