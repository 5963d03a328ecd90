"""Forward pass over a batch, as a program for all local chips.

A chip computes its own rows. Each chip has all parameters if they fit; else, as in training, they are
split over the chips and each layer's are gathered on use. Layers after the last one requested are neither
computed nor loaded. Tokens that aren't kept are left out, and mean and squared deviations of the kept
tensors computed, on the chips too.
"""
# mypy: allow-untyped-calls

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from workload.data.stream import Stream
from workload.errors import HopelessError
from workload.extract.packing import Batch, Shape
from workload.extract.points import Wanted
from workload.model import attention, decoder, kernels
from workload.model.architecture import Architecture
from workload.model.points import END_POINTS
from workload.train import sharding
from workload.train.config import MeshConfig
from workload.train.sharding import BATCH, FSDP

_OUTPUTS = 5  # on a chip at once: two that are computed, two that wait and one that is fetched
PADDING = -1  # segment of positions without a token
_WHOLE_SHARE = 0.5  # of a chip's memory that parameters may take to be on each one; the rest is for outputs


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Output:
    """Output of a batch, on the devices.

    Attributes:
        values: by name, R x L x the point's own axes; of selected tokens C x M x these.
        counts_C: kept tokens of each chip, without padding.
        means: by name, C x the point's axes, float32.
        deviations: by name, sums of squared deviations from the means, alike.
    """

    values: Mapping[str, Array]
    counts_C: Array
    means: Mapping[str, Array]
    deviations: Mapping[str, Array]


class Forward:
    """A model, cut off after the last layer requested, compiled for one shape of batch."""

    def __init__(
        self,
        arch: Architecture,
        wanted: Sequence[Wanted],
        shape: Shape,
        dtype: str,
        most_kept: int | None = None,
    ):
        """Choose mesh and attention.

        Args:
            arch: the whole model.
            wanted: what to keep, at least one.
            shape: of every batch; its rows divide over the local chips.
            dtype: of the computation and of the kept tensors.
            most_kept: tokens of a chip in any batch, where they are selected; None: all tokens are kept.
        """
        layers = min(arch.layers, max(tensor.layer for tensor in wanted) + 1)
        self._ends = ["embed_VxD"] + (["final_norm_D"] if layers == arch.layers else [])
        self.arch = replace(arch, layers=layers)
        self.wanted, self.shape, self.dtype = tuple(wanted), shape, jnp.dtype(dtype)
        self.most_kept = most_kept
        platform, devices = jax.default_backend(), jax.local_devices()
        chosen = kernels.choose("auto", platform, shape.length)
        self.attention, self.attention_reason = chosen
        self.attend = attention.attend(self.attention)
        abstract = decoder.shapes(self.arch, self.dtype)
        stored = {name: leaf for name, leaf in abstract.items() if name in (*self._ends, "layers")}
        size_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(stored))
        limit_bytes = sharding.memory_bytes(devices[0])
        self.whole = limit_bytes is None or size_bytes <= _WHOLE_SHARE * limit_bytes
        self.mesh = sharding.make_mesh(MeshConfig(data=len(devices) if self.whole else 1), [devices])
        self._where = sharding.specs(stored, self.mesh)
        self.params = sharding.placed(stored, sharding.shardings(stored, self.mesh))
        self._by_row = NamedSharding(self.mesh, BATCH)

    def place(
        self, batch: Batch, stream: Stream, kept_T: NDArray[np.bool_] | None = None
    ) -> tuple[Array, ...]:
        """Put a batch on the devices: tokens and segments, R x L; of selected tokens their places, C x M."""
        tokens_RxL = np.zeros((self.shape.rows, self.shape.length), np.int32)
        segments_RxL = np.full_like(tokens_RxL, PADDING)
        kept_RxL = np.zeros(tokens_RxL.shape, bool)
        for row, documents in enumerate(batch):
            start = 0
            for segment, document in enumerate(documents):
                tokens = stream.document(document)
                end = start + len(tokens)
                tokens_RxL[row, start:end] = tokens
                segments_RxL[row, start:end] = segment
                if kept_T is not None:
                    kept_RxL[row, start:end] = kept_T[stream.offsets[document] : stream.offsets[document + 1]]
                start = end
        arrays = [tokens_RxL, segments_RxL]
        if self.most_kept is not None:
            chips = self.mesh.size
            places_CxM = np.full((chips, self.most_kept), PADDING, np.int32)
            for chip, kept in enumerate(kept_RxL.reshape(chips, -1)):
                places = np.flatnonzero(kept)
                places_CxM[chip, : len(places)] = places
            arrays.append(places_CxM)
        placed: tuple[Array, ...] = jax.device_put(tuple(arrays), self._by_row)
        return placed

    def compile(self, batches: int = _OUTPUTS) -> Any:
        """Compile (params, *`place`) -> Output; `batches`: to be computed.

        Raises:
            HopelessError: a batch takes more than the memory of a chip, or of this machine where that is it.
        """
        shapes = [(self.shape.rows, self.shape.length)] * 2
        if self.most_kept is not None:
            shapes.append((self.mesh.size, self.most_kept))
        placed = [jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self._by_row) for shape in shapes]
        run = jax.shard_map(
            partial(_local, self),
            mesh=self.mesh,
            in_specs=(self._where, *[BATCH] * len(placed)),
            out_specs=BATCH,
            check_vma=False,
        )
        compiled = jax.jit(run).lower(self.params, *placed).compile()
        analysis, limit = compiled.memory_analysis(), sharding.memory_bytes(jax.local_devices()[0])
        memory = limit or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        outputs = min(_OUTPUTS, batches)
        needed = analysis.temp_size_in_bytes + outputs * analysis.output_size_in_bytes if analysis else 0
        if analysis and jax.default_backend() != "tpu":  # whose temporaries include the arguments
            needed += analysis.argument_size_in_bytes
        if needed > memory:
            rows = f"a batch of {self.shape.rows} rows of {self.shape.length} tokens"
            fix = "lower extract.batch_tokens, make the streams with --max-tokens, or run it on a slice;"
            fix += " with another --name: the run's record holds these settings"
            where = "a chip" if limit else "this machine"
            rule = f"{rows} takes {needed / 2**30:.1f} GiB; {where} has {memory / 2**30:.1f}"
            raise HopelessError(f"{rule}\n    fix: {fix}")
        return lambda *arguments: Output(*compiled(*arguments))

    def cuts(self) -> dict[str, int | None]:
        """Return the axis along which each parameter is split; see `sharding.cuts`."""
        return sharding.cuts(self.arch, self.mesh)


def _local(
    forward: Forward,
    params: decoder.Params,
    tokens_RxL: Array,
    segments_RxL: Array,
    places_1xM: Array | None = None,
) -> tuple[dict[str, Array], Array, dict[str, Array], dict[str, Array]]:
    """Compute the output of one chip's rows."""
    cuts = forward.cuts()

    def read(name: str, kept: Array) -> Array:
        axis = cuts[name]
        return kept if axis is None else jax.lax.all_gather(kept, FSDP, axis=axis, tiled=True)

    layers: dict[str, list[int]] = {}
    for wanted in forward.wanted:
        if wanted.layer not in layers.setdefault(wanted.point, []):
            layers[wanted.point].append(wanted.layer)
    captured = decoder.capture(
        params,
        tokens_RxL,
        segments_RxL,
        forward.arch,
        layers,
        forward.attend,
        forward.dtype,
        read,
    )
    values = {wanted.name: _select(captured, layers, wanted) for wanted in forward.wanted}
    real_RxL = segments_RxL != PADDING
    if places_1xM is not None:
        real_RxL = places_1xM != PADDING
        rows, columns = jnp.divmod(jnp.maximum(places_1xM, 0), tokens_RxL.shape[1])
        values = {name: value[rows, columns] for name, value in values.items()}
    count = jnp.sum(real_RxL)
    means, deviations = {}, {}
    for name, value in values.items():
        real = real_RxL.reshape(*real_RxL.shape, *[1] * (value.ndim - 2))
        exact = value.astype(jnp.float32)
        mean = jnp.sum(jnp.where(real, exact, 0), axis=(0, 1)) / jnp.maximum(count, 1)
        means[name] = mean[None]
        deviations[name] = jnp.sum(jnp.where(real, jnp.square(exact - mean), 0), axis=(0, 1))[None]
    return values, count[None], means, deviations


def _select(captured: Mapping[str, Array], layers: Mapping[str, list[int]], wanted: Wanted) -> Array:
    if wanted.point in END_POINTS:
        return captured[wanted.point]
    value = captured[wanted.point][layers[wanted.point].index(wanted.layer)]
    return value if wanted.head is None else value[:, :, wanted.head]
