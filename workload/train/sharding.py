"""Sharding of every array over the mesh, for training, checkpoints and preflight.

The mesh is data x fsdp. A batch is split over both. A parameter, its gradient and its moments
are split over fsdp along one of their axes and replicated over data; small ones (norms, biases)
are replicated everywhere. Chips of a slice are numbered along the two axes of its torus, so that a collective
over fsdp can run along one axis after the other.
"""
# mypy: allow-untyped-calls

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from workload.errors import ClusterError, ConfigError, Problem
from workload.model.architecture import Architecture
from workload.train.config import MeshConfig

DATA, FSDP = "data", "fsdp"
BATCH = PartitionSpec((DATA, FSDP))
Rings = tuple[tuple[int, ...], ...]
"""Groups of positions along fsdp: the chips of each ring along an axis of the torus."""

# Axes that a parameter may be split along, best first. A matrix is cut along the axis that isn't the
# last of its tile on TPU, where a thin last axis is padded to 128.
SPLIT = {
    "embed_VxD": "VD",
    "unembed_VxD": "VD",
    "query_NxDxQ": "DQ",
    "key_NxDxR": "DR",
    "value_NxDxR": "DR",
    "out_NxQxD": "QD",
    "gate_NxDxF": "DF",
    "up_NxDxF": "DF",
    "down_NxFxD": "FD",
}


def by_slice(devices: Sequence[Any], slices: int = 1) -> list[list[Any]]:
    """Group devices by slice, in the order of slices.

    Chips report their slice if the TPU runtimes are configured for several. CPU devices report their machine:
    they are assigned in their order, which is that of the workers.

    Args:
        devices: all devices, in JAX's order.
        slices: expected number; 1 accepts any.

    Raises:
        ClusterError: the chips report another number of slices.
    """
    groups: dict[int, list[Any]] = {}
    for device in devices:
        groups.setdefault(getattr(device, "slice_index", None) or 0, []).append(device)
    if slices > 1 and devices[0].platform == "cpu" and len(devices) % slices == 0:
        size = len(devices) // slices
        return [list(devices[start : start + size]) for start in range(0, len(devices), size)]
    if slices > 1 and len(groups) != slices:
        raise ClusterError(
            f"the job has {slices} slices, but the {len(devices)} chips report {len(groups)}\n"
            "    fix: compare libtpu's log with the MEGASCALE variables in /run/tpu-job/environment"
        )
    return [groups[index] for index in sorted(groups)]


def make_mesh(config: MeshConfig, slices: Sequence[Sequence[Any]]) -> Mesh:
    """Create the mesh of the devices of all slices.

    Raises:
        ConfigError: `mesh.data` doesn't divide a slice's devices.
    """
    slice_size = len(slices[0])
    if slice_size % config.data:
        rule = f"must divide the devices of a slice, {slice_size}"
        raise ConfigError("config", [Problem("mesh.data", str(config.data), rule, "1, or a divisor")])
    grids = [
        np.array(sorted(devices, key=_place), dtype=object).reshape(config.data, slice_size // config.data)
        for devices in slices
    ]
    grid = np.concatenate(grids, axis=0 if config.across_slices == "data" else 1)
    return Mesh(grid, (DATA, FSDP), axis_types=(AxisType.Auto, AxisType.Auto))


def _place(device: Any) -> tuple[int, ...]:
    """Return a chip's coordinates; devices without any keep their order."""
    return tuple(getattr(device, "coords", None) or ())


def rings(mesh: Mesh) -> tuple[Rings, ...]:
    """Return the rings along each axis of the torus that fsdp spans; none where it spans a single axis.

    A reduce-scatter over the rings of the first axis and then of the second leaves each chip the part that
    one over fsdp would. XLA turns the latter into an all-reduce of twice the bytes on 4x4 and larger.
    """
    places = [_place(device)[:2] for device in mesh.devices[0]]
    columns = sorted({place[0] for place in places if place})
    rows = sorted({place[1] for place in places if place})
    if len(columns) < 2 or len(rows) < 2 or places != [(x, y) for x in columns for y in rows]:
        return ()
    return rings_of(len(columns), len(rows))


def rings_of(columns: int, rows: int) -> tuple[Rings, Rings]:
    """Return the rings of a torus whose chips are numbered column by column."""
    first = tuple(tuple(range(row, columns * rows, rows)) for row in range(rows))
    return first, tuple(tuple(range(column * rows, (column + 1) * rows)) for column in range(columns))


def split_axis(name: str, shape: tuple[int, ...], parts: int) -> int | None:
    """Return the axis along which a parameter is cut into `parts`; None if it is replicated."""
    if parts == 1:
        return None
    letters = name.rpartition("_")[2].split("x")
    for letter in SPLIT.get(name, ""):
        axis = letters.index(letter)
        if shape[axis] % parts == 0:
            return axis
    return None


def spec(name: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Return the partition of a parameter and its gradient."""
    return along(split_axis(name, shape, mesh.shape[FSDP]))


def cuts(arch: Architecture, mesh: Mesh) -> dict[str, int | None]:
    """Return `split_axis` of every parameter by its name within a single layer."""
    groups, parts = arch.shapes(), mesh.shape[FSDP]
    axes = {name: split_axis(name, shape, parts) for name, shape in groups["ends"].items()}
    for name, shape in groups["layers"].items():
        axis = split_axis(name, shape, parts)
        axes[name.replace("_Nx", "_")] = None if axis is None else axis - 1
    return axes


def longest(shape: tuple[int, ...], parts: int) -> int | None:
    """Return the longest axis that `parts` divides; None for a vector, or if it divides none."""
    fitting = [axis for axis, length in enumerate(shape) if length % parts == 0]
    return max(fitting, key=lambda axis: shape[axis]) if len(shape) > 1 and parts > 1 and fitting else None


def along(axis: int | None) -> PartitionSpec:
    """Return the partition over fsdp along an axis; None: whole on every device."""
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, FSDP)


def of_optimizer(opt_state: Any, params: Any, places: Any, mesh: Mesh) -> Any:
    """Return the shardings of an optimizer's state.

    An array of a parameter's path and shape lies where the parameter does; another one, such as a factored
    moment, is split along its longest axis that fsdp divides.
    """
    shapes = dict(jax.tree_util.tree_leaves_with_path(params))
    places = dict(jax.tree_util.tree_leaves_with_path(places))

    def of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        ends = (path[begin:] for begin in range(len(path)))
        known = next((end for end in ends if end in shapes and shapes[end].shape == leaf.shape), None)
        if known is not None:
            place: NamedSharding = places[known]
            return place
        return NamedSharding(mesh, along(longest(leaf.shape, mesh.shape[FSDP])))

    return jax.tree_util.tree_map_with_path(of, opt_state)


def specs(tree: Any, mesh: Mesh) -> Any:
    """Return `spec` of every leaf of a tree; the last key of a leaf's path is a parameter's name."""

    def of(path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
        return spec(getattr(path[-1], "key", "") if path else "", leaf.shape, mesh)

    return jax.tree_util.tree_map_with_path(of, tree)


def shardings(tree: Any, mesh: Mesh) -> Any:
    """Return `specs` as shardings on the mesh."""
    return jax.tree.map(
        lambda partition: NamedSharding(mesh, partition),
        specs(tree, mesh),
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def placed(abstract: Any, shardings: Any) -> Any:
    """Return a tree of shapes and dtypes with the shardings of a tree like it."""
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), abstract, shardings
    )


def memory_bytes(device: jax.Device) -> int | None:
    """Return the memory of a device of this process; None where JAX doesn't know it, as on CPUs."""
    limit: int | None = (device.memory_stats() or {}).get("bytes_limit")
    return limit
