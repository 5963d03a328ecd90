"""Which axis of the mesh every array takes: one table, for training, checkpoints and preflight.

The mesh is data x fsdp. A batch is split over both. A parameter, its gradient and its moments
are split over fsdp along one of their axes and copied over data; what is too small to be worth
a gather (norms, biases) is copied everywhere.
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

# The axes, by their letters, that a parameter may be split along, best first. A matrix is cut
# along the axis that isn't the last of its tile on TPU, where a thin last axis is padded to 128.
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
    """The devices of each slice, slices in their order.

    Chips know their slice, if the TPU runtimes of several were told of one another. CPU devices
    don't: they are assigned in their order, which is that of the workers.

    Args:
        devices: all of them, in JAX's order.
        slices: how many there must be; 1 takes what is there.

    Raises:
        ClusterError: the chips are of another number of slices.
    """
    found: dict[int, list[Any]] = {}
    for device in devices:
        found.setdefault(getattr(device, "slice_index", None) or 0, []).append(device)
    if len(found) == 1 and slices > 1 and devices[0].platform == "cpu" and len(devices) % slices == 0:
        each = len(devices) // slices
        return [list(devices[start : start + each]) for start in range(0, len(devices), each)]
    if slices > 1 and len(found) != slices:
        raise ClusterError(
            f"the job is of {slices} slices, but the {len(devices)} chips know of {len(found)}\n"
            "    fix: see in libtpu's log what it made of the MEGASCALE variables of /run/tpu-job/environment"
        )
    return [found[index] for index in sorted(found)]


def make_mesh(config: MeshConfig, slices: Sequence[Sequence[Any]]) -> Mesh:
    """The mesh of some devices, slice by slice.

    Raises:
        ConfigError: `mesh.data` doesn't divide a slice's devices.
    """
    a_slice = len(slices[0])
    if a_slice % config.data:
        rule = f"must divide the devices of a slice, {a_slice}"
        raise ConfigError("config", [Problem("mesh.data", str(config.data), rule, "1, or a divisor")])
    grids = [np.array(one, dtype=object).reshape(config.data, a_slice // config.data) for one in slices]
    grid = np.concatenate(grids, axis=0 if config.across_slices == "data" else 1)
    return Mesh(grid, (DATA, FSDP), axis_types=(AxisType.Auto, AxisType.Auto))


def split_axis(name: str, shape: tuple[int, ...], parts: int) -> int | None:
    """The axis of a parameter that is cut into `parts`; None if it is kept whole."""
    if parts == 1:
        return None
    letters = name.rpartition("_")[2].split("x")
    for letter in SPLIT.get(name, ""):
        axis = letters.index(letter)
        if shape[axis] % parts == 0:
            return axis
    return None


def spec(name: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Where a parameter, its gradient or a moment of it lives."""
    axis = split_axis(name, shape, mesh.shape[FSDP])
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, FSDP)


def cuts(arch: Architecture, mesh: Mesh) -> dict[str, int | None]:
    """`split_axis` of every parameter, by its name, and its axis, as a single layer sees it."""
    groups, parts = arch.shapes(), mesh.shape[FSDP]
    found = {name: split_axis(name, shape, parts) for name, shape in groups["ends"].items()}
    for name, shape in groups["layers"].items():
        axis = split_axis(name, shape, parts)
        found[name.replace("_Nx", "_")] = None if axis is None else axis - 1
    return found


def specs(tree: Any, mesh: Mesh) -> Any:
    """`spec` for every leaf of a tree whose leaves' last keys are parameters' names."""

    def of(path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
        return spec(getattr(path[-1], "key", "") if path else "", leaf.shape, mesh)

    return jax.tree_util.tree_map_with_path(of, tree)


def shardings(tree: Any, mesh: Mesh) -> Any:
    """`specs` on their mesh."""
    return jax.tree.map(
        lambda found: NamedSharding(mesh, found),
        specs(tree, mesh),
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
