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

from workload.config import MeshConfig
from workload.errors import ConfigError, Problem
from workload.model.architecture import Architecture

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


def make_mesh(config: MeshConfig, devices: Sequence[Any]) -> Mesh:
    """The mesh of some devices, which may belong to several slices.

    Raises:
        ConfigError: `mesh.data` doesn't divide a slice's devices.
    """
    by_slice: dict[int, list[Any]] = {}
    for device in devices:
        by_slice.setdefault(getattr(device, "slice_index", None) or 0, []).append(device)
    a_slice = len(devices) // len(by_slice)
    if a_slice % config.data:
        rule = f"must divide the devices of a slice, {a_slice}"
        raise ConfigError("config", [Problem("mesh.data", str(config.data), rule, "1, or a divisor")])
    grids = [
        np.array(by_slice[index], dtype=object).reshape(config.data, a_slice // config.data)
        for index in sorted(by_slice)
    ]
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
