"""Training step of a user's module: the compiler's partitioner places its arithmetic.

Parameters are sharded by the module's own annotations, or else along their longest axis that fsdp divides.
The example's axis of a batch is split over the mesh, as for the decoder. Everything random in a step is a
function of (seed, step), so that a repeated step has the same bits.
"""
# mypy: allow-untyped-calls

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workload.errors import ConfigError, Problem
from workload.modules import products
from workload.modules.config import ModuleConfig
from workload.modules.module import Inputs, UserModule
from workload.train import optimizer, sharding
from workload.train.config import Config
from workload.train.sharding import FSDP, memory_bytes
from workload.train.update import Batch, Params, State, TrainStep, summed

_EVALUATION = 0  # number of the step whose key an evaluation has; updates begin with 1
_NOTES = 4  # in an event


class ModuleStep(TrainStep):
    """Train step of a `flax` module."""

    def __init__(self, config: Config, mesh: Mesh, platform: str, slices: int = 1):
        """Import and check the module.

        Raises:
            ConfigError: it can't be trained.
        """
        self.module = open_module(config)
        self.attention, self.attention_reason = "module", "the module's own"
        super().__init__(config, mesh, platform, slices, self.module.params)
        self.frozen = sharding.placed(self.module.frozen, self._places_of(self.module.frozen))
        limit = memory_bytes(jax.local_devices()[0]) if platform == jax.default_backend() else None
        if problem := self.too_large(limit):
            raise ConfigError("config", [problem])

    def too_large(self, limit_bytes: int | None) -> Problem | None:
        """Return the problem of a state that doesn't fit a device's memory, if it has a limit."""
        held = {
            jax.tree_util.keystr(path, simple=True, separator="."): (leaf, _held_bytes(leaf))
            for path, leaf in jax.tree_util.tree_leaves_with_path({**self.state, "frozen": self.frozen})
        }
        size = sum(part for _, part in held.values())
        if limit_bytes is None or size <= limit_bytes:
            return None
        whole = {name: part for name, (leaf, part) in held.items() if leaf.sharding.is_fully_replicated}
        largest = max(whole, key=lambda name: whole[name], default="none")
        rule = (
            f"its state takes {size / 1e9:.3g} GB of a device's {limit_bytes / 1e9:.3g} GB;"
            f" {sum(whole.values()) / 1e9:.3g} GB are arrays that are whole on every device"
            f" (the largest: {largest})"
        )
        fix = f"use a larger slice; give such arrays an axis that fsdp = {self.mesh.shape[FSDP]} divides"
        return Problem("model.module", self.module.name, rule, fix)

    @property
    def flops(self) -> float:
        """FLOPs of all products of an update, on all devices."""
        return products.flops(jax.make_jaxpr(self._update)(self.frozen, self.state, self.batch))

    def first_params(self) -> Params:
        """Read those of `train.init_from`, or draw them where they are held: the same on any mesh."""
        if self.config.train.init_from and not self.config.lora.rank:
            return self.read_given()
        params: Params = jax.jit(self.module.first_params, out_shardings=self.shardings["params"])()
        return params

    def prepare(self) -> None:
        """See `TrainStep.prepare`."""
        if self.frozen:
            self._values = self.read_given()

    @property
    def given(self) -> Params:
        """See `TrainStep.given`: the frozen ones, if there are any."""
        return self.frozen or super().given

    def _places_of(self, params: Params) -> Any:
        """See `TrainStep._places_of`; notes those that aren't placed as annotated."""
        notes: list[str] = []

        def placed(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
            names = tuple(part.key for part in path)
            spec, note = partition(self.module.annotations[names], leaf.shape, self.mesh.shape)
            if note:
                notes.append(f"{'.'.join(names)} {list(leaf.shape)}: {note}")
            return NamedSharding(self.mesh, spec)

        places = jax.tree_util.tree_map_with_path(placed, params)
        if notes:
            self.placement = {"placement": notes[:_NOTES] + [f"{len(notes)} in all"] * (len(notes) > _NOTES)}
        return places

    def _sums(self, frozen: Params, params: Params, batch: Batch) -> tuple[Array, Array]:
        return self.module.sums(frozen, params, batch, self._key(_EVALUATION), trains=False)

    def _gradients(self, frozen: Params, state: State, batch: Batch) -> tuple[Array, Array, Params]:
        parts = self.config.train.accumulate
        key = self._key(optimizer.finished(state["opt_state"]) + 1)
        # Each part has examples of every device.
        pieces = {name: x.reshape(-1, parts, x.shape[1]).swapaxes(0, 1) for name, x in batch.items()}
        keys = key[None] if parts == 1 else jax.random.split(key, parts)
        (total, count), gradients = summed(
            lambda piece: self.module.differentiated(frozen, state["params"], *piece), (pieces, keys), parts
        )
        return total, count, gradients

    def _key(self, step: Any) -> Array:
        return jax.random.fold_in(jax.random.key(self.config.train.seed), step)


def _held_bytes(leaf: Any) -> int:
    return int(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize)


def open_module(config: Config) -> UserModule:
    """Import and check the config's module; see `UserModule`."""
    assert isinstance(config.model, ModuleConfig)
    dtype = jnp.dtype(config.compute.dtype)
    train, length = config.train, config.data.sequence_length
    inputs = Inputs(train.batch_size, length, config.model.vocab_size, dtype, train.seed)
    return UserModule(config.model, inputs, config.lora)


def partition(
    annotated: PartitionSpec, shape: tuple[int, ...], axes: Mapping[str, int]
) -> tuple[PartitionSpec, str]:
    """Return the partition of a parameter, and a note if it isn't the annotated one.

    Args:
        annotated: by the module; empty if it isn't annotated, None for each axis if it is to be whole.
        shape: of the parameter.
        axes: sizes of the mesh's axes by name.
    """
    if annotated and not any(annotated):
        return PartitionSpec(), ""
    note = ""
    used: set[str] = set()
    entries: list[Any] = []
    for length, entry in zip(shape, annotated, strict=False):
        names = entry if isinstance(entry, tuple) else (entry,) if entry else ()
        parts = 1
        for name in names:
            parts *= axes.get(name, 1)
        refused = (
            f"the mesh has no axis {', '.join(names)}"
            if not axes.keys() >= set(names)
            else f"{parts} devices don't divide {length}"
            if length % parts
            else f"{', '.join(names)} has another of its axes"
            if used & set(names)
            else ""
        )
        note = note or refused
        entries.append(None if refused else entry)
        used |= set() if refused else set(names)
    if any(entries):
        return PartitionSpec(*entries), note
    parts = axes[FSDP]
    if parts == 1 or len(shape) < 2:
        return PartitionSpec(), note
    axis = sharding.longest(shape, parts)
    if axis is None:
        return PartitionSpec(), f"{note or f'fsdp = {parts} divides no axis'}; whole on every device"
    return sharding.along(axis), f"{note}; split along axis {axis} instead" if note else ""
