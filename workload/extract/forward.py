"""The forward pass over a batch, as a program for all local chips.

As in training, parameters lie split over the chips and each layer's are gathered where it uses them;
a chip computes its own rows. Nothing after the last layer that is asked for is computed, or even
loaded. Mean and squared deviations of what is kept are computed along with it, where the numbers are.
"""
# mypy: allow-untyped-calls

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from workload.data.stream import Stream
from workload.extract.packing import Batch, Shape
from workload.extract.points import Wanted
from workload.model import attention, decoder, kernels
from workload.model.architecture import Architecture
from workload.model.points import END_POINTS
from workload.train import sharding
from workload.train.config import MeshConfig
from workload.train.sharding import BATCH, FSDP

# Elementwise work in whole registers, where there are such; a tenth of a pass (docs/log.md).
_OPTIONS: Mapping[str, dict[str, str | bool]] = {"cpu": {"xla_cpu_prefer_vector_width": "512"}}
PADDING = -1  # the segment of places that hold no token


@dataclass(frozen=True)
class Output:
    """Of a batch, on the devices.

    Attributes:
        values: by name, R x L x the point's own axes.
        counts_C: real tokens of each chip's rows.
        means: by name, C x the point's axes, float32.
        deviations: by name, sums of squared deviations from the means, alike.
    """

    values: Mapping[str, Array]
    counts_C: Array
    means: Mapping[str, Array]
    deviations: Mapping[str, Array]


class Forward:
    """A model, cut off after the last layer wanted, compiled for one shape of batch."""

    def __init__(self, arch: Architecture, wanted: Sequence[Wanted], shape: Shape, dtype: str):
        """Chooses mesh and attention.

        Args:
            arch: the whole model.
            wanted: what to keep, at least one.
            shape: of every batch; its rows divide over the local chips.
            dtype: of the computation and of what is kept.
        """
        layers = min(arch.layers, max(one.layer for one in wanted) + 1)
        self._ends = ["embed_VxD"] + (["final_norm_D"] if layers == arch.layers else [])
        self.arch = replace(arch, layers=layers)
        self.wanted, self.shape, self.dtype = tuple(wanted), shape, jnp.dtype(dtype)
        platform = jax.default_backend()
        self.compiler_options = _OPTIONS.get(platform)
        self.mesh = sharding.make_mesh(MeshConfig(), [jax.local_devices()])
        chosen = kernels.choose("auto", platform, shape.length, dtype, backward=False)
        self.attention, self.attention_reason = chosen
        self.attend = None if self.attention == "spans" else attention.attend(self.attention)
        abstract = decoder.shapes(self.arch, self.dtype)
        stored = {name: leaf for name, leaf in abstract.items() if name in (*self._ends, "layers")}
        self._where = sharding.specs(stored, self.mesh)
        placed = sharding.shardings(stored, self.mesh)
        self.params = jax.tree.map(
            lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), stored, placed
        )
        self._by_row = NamedSharding(self.mesh, BATCH)

    def place(self, batch: Batch, stream: Stream) -> tuple[Array, Array]:
        """A batch's tokens and segments on the devices, R x L each."""
        tokens_RxL = np.zeros((self.shape.rows, self.shape.length), np.int32)
        segments_RxL = np.full_like(tokens_RxL, PADDING)
        for row, documents in enumerate(batch):
            start = 0
            for segment, document in enumerate(documents):
                tokens = stream.document(document)
                tokens_RxL[row, start : start + len(tokens)] = tokens
                segments_RxL[row, start : start + len(tokens)] = segment
                start += len(tokens)
        placed: tuple[Array, Array] = jax.device_put((tokens_RxL, segments_RxL), self._by_row)
        return placed

    def compile(self) -> Any:
        """(params, tokens_RxL, segments_RxL) -> Output's parts, ready to run."""
        shape = jax.ShapeDtypeStruct((self.shape.rows, self.shape.length), jnp.int32, sharding=self._by_row)
        run = jax.shard_map(
            partial(_local, self),
            mesh=self.mesh,
            in_specs=(self._where, BATCH, BATCH),
            out_specs=BATCH,
            check_vma=False,
        )
        compiled = jax.jit(run).lower(self.params, shape, shape).compile(self.compiler_options)
        return lambda *arguments: Output(*compiled(*arguments))

    def cuts(self) -> dict[str, int | None]:
        """By parameter, the axis along which it is split; see `sharding.cuts`."""
        return sharding.cuts(self.arch, self.mesh)


def _local(
    forward: Forward, params: decoder.Params, tokens_RxL: Array, segments_RxL: Array
) -> tuple[dict[str, Array], Array, dict[str, Array], dict[str, Array]]:
    """On one chip; of its rows."""
    cuts = forward.cuts()

    def read(name: str, kept: Array) -> Array:
        axis = cuts[name]
        return kept if axis is None else jax.lax.all_gather(kept, FSDP, axis=axis, tiled=True)

    layers: dict[str, list[int]] = {}
    for one in forward.wanted:
        if one.layer not in layers.setdefault(one.point, []):
            layers[one.point].append(one.layer)
    found = decoder.capture(
        params,
        tokens_RxL,
        segments_RxL,
        forward.arch,
        layers,
        forward.attend,
        forward.dtype,
        read,
    )
    values = {one.name: _one(found, layers, one) for one in forward.wanted}
    real_RxL = segments_RxL != PADDING
    count = jnp.sum(real_RxL)
    means, deviations = {}, {}
    for name, value in values.items():
        real = real_RxL.reshape(*real_RxL.shape, *[1] * (value.ndim - 2))
        exact = value.astype(jnp.float32)
        mean = jnp.sum(jnp.where(real, exact, 0), axis=(0, 1)) / jnp.maximum(count, 1)
        means[name] = mean[None]
        deviations[name] = jnp.sum(jnp.where(real, jnp.square(exact - mean), 0), axis=(0, 1))[None]
    return values, count[None], means, deviations


def _one(found: Mapping[str, Array], layers: Mapping[str, list[int]], one: Wanted) -> Array:
    if one.point in END_POINTS:
        return found[one.point]
    value = found[one.point][layers[one.point].index(one.layer)]
    return value if one.head is None else value[:, :, one.head]
