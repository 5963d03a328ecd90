"""Training step of the decoder, as a program for any mesh.

The state is sharded over fsdp. Inside `shard_map` each device computes on its own examples: a
parameter is gathered where a layer uses it, in the dtype of the computation, and its gradient is
reduce-scattered there, along one axis of the torus after the other. All communication is explicit; the
partitioner has no choice. The optimizer then updates the sharded state.
"""
# mypy: allow-untyped-calls

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from workload.model import attention, decoder, kernels, loss
from workload.model.remat import training_tap
from workload.train import flags, sharding
from workload.train.config import Config
from workload.train.sharding import BATCH, DATA, FSDP, Rings
from workload.train.update import Batch, Params, State, TrainStep, summed


class Step(TrainStep):
    """Train step of the decoder."""

    def __init__(self, config: Config, mesh: Mesh, platform: str, slices: int = 1):
        params = decoder.trained(config.decoder, config.lora)
        super().__init__(config, mesh, platform, slices, params)
        self.frozen_where: Any = {}
        self.multiply: decoder.Multiply = decoder.product
        if config.lora.rank or config.compute.products == "int8":
            from workload.model.products import Products  # qwix and flax take seconds to import

            self.multiply = Products(config.lora, config.compute.products == "int8")
        self.where = sharding.specs(params, mesh)
        self.cuts = sharding.cuts(config.decoder, mesh)
        self.rings = sharding.rings(mesh)
        self.attention, self.attention_reason = kernels.choose(
            config.compute.attention, platform, config.data.sequence_length
        )
        if config.compute.max_logit and self.attention != "tokamax":
            unused = f"compute.max_logit = {config.compute.max_logit:g} does nothing without tokamax's kernel"
            self.attention_reason += f"; {unused}"

    def first_params(self) -> Params:
        """Read this worker's parts of the weights of train.init_from, or draw each device's values on it."""
        config = self.config
        if config.train.init_from:
            return self.read_given()
        return decoder.first(config.decoder, config.train.seed, self.shardings["params"])

    def _places_of(self, params: Params) -> Any:
        return sharding.shardings(params, self.mesh)

    def _sums(self, frozen: Params, params: Params, batch: Batch) -> tuple[Array, Array]:
        result: tuple[Array, Array] = self._by_device(_local_sums, ())(frozen, params, batch)
        return result

    def _gradients(self, frozen: Params, state: State, batch: Batch) -> tuple[Array, Array, Params]:
        run = self._by_device(_local_gradients, (self.where,))
        result: tuple[Array, Array, Params] = run(frozen, state["params"], batch)
        return result

    def _by_device(self, function: Callable[..., Any], more: tuple[Any, ...]) -> Callable[..., Any]:
        """Return a function of (step, frozen, params, batch) over the devices; `more`: places of results."""
        mapped: Callable[..., Any] = jax.shard_map(
            partial(function, self),
            mesh=self.mesh,
            in_specs=(self.frozen_where, self.where, dict.fromkeys(self.batch, BATCH)),
            out_specs=(PartitionSpec(), PartitionSpec(), *more),
            check_vma=False,
        )
        return mapped

    def pieces(self, batch: Batch) -> Batch:
        """Return a device's examples in the parts that are computed one after another."""
        parts = self.config.train.accumulate
        return {name: x.reshape(parts, -1, x.shape[1]) for name, x in batch.items()}


def _local_gradients(step: Step, frozen: Params, params: Params, batch: Batch) -> tuple[Array, Array, Params]:
    """Compute the sums of `_gradients` on one device, in `train.accumulate` parts, and reduce them."""
    config = step.config
    reduce_dtype = jnp.dtype(config.compute.reduce_dtype)
    differentiate = jax.value_and_grad(partial(_local_loss, step, frozen), has_aux=True)
    compute = partial(differentiate, params)
    (total, count), gradients = summed(compute, step.pieces(batch), config.train.accumulate)

    def reduced(gradient: Array, spec: PartitionSpec) -> Array:
        # Sharded gradients were summed over fsdp in the backward pass of `gather`.
        axes = [axis for axis in (DATA, FSDP) if axis not in spec and step.mesh.shape[axis] > 1]
        if not axes:
            return gradient
        total: Array = jax.lax.psum(gradient.astype(reduce_dtype), axes)
        return total.astype(jnp.float32)

    gradients = jax.tree.map(reduced, gradients, step.where)
    return jax.lax.psum(total, (DATA, FSDP)), jax.lax.psum(count, (DATA, FSDP)), gradients


def _local_sums(step: Step, frozen: Params, params: Params, batch: Batch) -> tuple[Array, Array]:
    """Compute the sums of losses and targets on one device, in `train.accumulate` parts, and reduce them."""
    compute = partial(_local_loss, step, frozen, params)
    total, count = summed(compute, step.pieces(batch), step.config.train.accumulate)
    return jax.lax.psum(total, (DATA, FSDP)), jax.lax.psum(count, (DATA, FSDP))


def _local_loss(step: Step, frozen: Params, params: Params, batch: Batch) -> tuple[Array, Array]:
    """Return the sum of the losses of one device's examples, and the number of counted targets."""
    config = step.config
    params = {**frozen, **params, "layers": {**frozen.get("layers", {}), **params["layers"]}}
    arch, dtype = config.decoder, jnp.dtype(config.compute.dtype)
    tokens_BxL, targets_BxL = batch["tokens_BxL1"][:, :-1], batch["tokens_BxL1"][:, 1:]
    segments_BxL, counted_BxL = batch["segments_BxL1"][:, :-1], loss.counted(batch)
    reduce_dtype = jnp.dtype(config.compute.reduce_dtype)

    def read(name: str, kept: Array) -> Array:
        axis = step.cuts.get(name)
        if not jnp.issubdtype(kept.dtype, jnp.floating):  # quantized, and frozen
            return kept if axis is None else jax.lax.all_gather(kept, FSDP, axis=axis, tiled=True)
        return kept.astype(dtype) if axis is None else gather(axis, dtype, reduce_dtype, step.rings, kept)

    embed_VxD = read("embed_VxD", params["embed_VxD"])
    x_BxLxD = decoder.embedded(look_up(embed_VxD, tokens_BxL), arch)
    x_BxLxD = decoder.run_layers(
        x_BxLxD,
        params["layers"],
        segments_BxL,
        arch,
        attention.attend(step.attention, config.compute.max_logit),
        read,
        config.compute.remat,
        config.compute.examples_at_once,
        config.compute.keep_gathered,
        training_tap(config.compute.remat, attention.named_inside(step.attention)),
        step.multiply,
    )
    x_BxLxD = decoder.final_norm(x_BxLxD, params["final_norm_D"].astype(dtype), arch)
    unembed = decoder.unembedding(params, arch)
    unembed_VxD = embed_VxD if arch.tie_embeddings else read(unembed, params[unembed])
    total = loss.cross_entropy(
        x_BxLxD.reshape(-1, arch.d_model),
        unembed_VxD,
        targets_BxL.reshape(-1),
        counted_BxL.reshape(-1),
        config.compute.loss_chunk_tokens,
    )
    return total, jnp.sum(counted_BxL)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def gather(axis: int, dtype: Any, reduce_dtype: Any, rings: tuple[Rings, ...], kept: Array) -> Array:
    """Gather a parameter over fsdp in `dtype`; reduce-scatter its gradient in `reduce_dtype`."""
    return _gather_forward(axis, dtype, reduce_dtype, rings, kept)[0]


def _gather_forward(
    axis: int, dtype: Any, reduce_dtype: Any, rings: tuple[Rings, ...], kept: Array
) -> tuple[Array, None]:
    # Inline, not a call of `gather`: a remat policy must see the collective.
    whole = kept.astype(dtype)
    for groups in reversed(rings) if rings and flags.gathers_in_turn() else (None,):
        whole = jax.lax.all_gather(whole, FSDP, axis=axis, tiled=True, axis_index_groups=groups)
    return whole, None


def _gather_backward(
    axis: int, dtype: Any, reduce_dtype: Any, rings: tuple[Rings, ...], _: None, gradient: Array
) -> tuple[Array]:
    summed = gradient.astype(reduce_dtype)
    for groups in rings or (None,):
        # Parts on an axis of their own: XLA makes an all-reduce, of twice the bytes, of a sum whose parts are
        # cut from an axis such as a vocabulary of 128256.
        parts = len(groups[0]) if groups else jax.lax.axis_size(FSDP)
        apart = summed.reshape(*summed.shape[:axis], parts, -1, *summed.shape[axis + 1 :])
        summed = jax.lax.psum_scatter(apart, FSDP, scatter_dimension=axis, axis_index_groups=groups)
    return (summed.astype(jnp.float32),)


gather.defvjp(_gather_forward, _gather_backward)


@jax.custom_vjp
def look_up(table_VxD: Array, tokens_BxL: Array) -> Array:
    """Look up the rows of tokens; gradients of a row are summed in float32."""
    return table_VxD[tokens_BxL]


def _look_up_forward(table_VxD: Array, tokens_BxL: Array) -> tuple[Array, tuple[Array, tuple[int, ...]]]:
    return table_VxD[tokens_BxL], (tokens_BxL, table_VxD.shape)


def _look_up_backward(kept: tuple[Array, tuple[int, ...]], gradient_BxLxD: Array) -> tuple[Array, None]:
    tokens_BxL, shape = kept
    table = jnp.zeros(shape, jnp.float32).at[tokens_BxL].add(gradient_BxLxD.astype(jnp.float32))
    return table.astype(gradient_BxLxD.dtype), None


look_up.defvjp(_look_up_forward, _look_up_backward)
