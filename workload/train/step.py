"""Training step, as a program for any mesh.

The state is sharded over fsdp. Inside `shard_map` each device computes on its own examples: a
parameter is gathered where a layer uses it, in the dtype of the computation, and its gradient is
reduce-scattered there. All communication is explicit; the partitioner has no choice. The optimizer
then updates the sharded state.
"""
# mypy: allow-untyped-calls

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workload.model import attention, decoder, kernels, loss
from workload.model.decoder import Params
from workload.model.remat import training_tap
from workload.train import flags, optimizer, sharding
from workload.train.config import Config
from workload.train.sharding import BATCH, DATA, FSDP

State = dict[str, Any]
Batch = dict[str, Array]
"""tokens_BxL1 and segments_BxL1, int32: L inputs and the last target."""


class Step:
    """Train step for a (config, mesh): state shapes, initial optimizer state, update, loss."""

    def __init__(self, config: Config, mesh: Mesh, platform: str, slices: int = 1):
        self.config, self.mesh, self.platform, self.slices = config, mesh, platform, slices
        self._optimizer = optimizer.build(config)
        params = decoder.shapes(config.model)
        abstract = {"params": params, "opt_state": jax.eval_shape(self._optimizer.init, params)}
        self.shardings = sharding.shardings(abstract, mesh)
        self.where = sharding.specs(params, mesh)
        self.cuts = sharding.cuts(config.model, mesh)
        self.state = jax.tree.map(_placed, abstract, self.shardings)
        self.by_example = NamedSharding(mesh, BATCH)
        length = config.data.sequence_length
        self.attention, self.attention_reason = kernels.choose(
            config.compute.attention, platform, length, config.compute.dtype
        )
        shape = (config.train.batch_size, length + 1)
        self.batch = {
            name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self.by_example)
            for name in ("tokens_BxL1", "segments_BxL1")
        }

    def first_optimizer_state(self, params: Params) -> Any:
        """Create the sharded optimizer state before any update."""
        return jax.jit(self._optimizer.init, out_shardings=self.shardings["opt_state"])(params)

    def lower(self) -> Any:
        """Lower the update for the mesh: (state, batch) -> (state, metrics)."""
        replicated = NamedSharding(self.mesh, PartitionSpec())
        update = jax.jit(
            self._update,
            in_shardings=(self.shardings, dict.fromkeys(self.batch, self.by_example)),
            out_shardings=(self.shardings, replicated),
            donate_argnums=0,
        )
        return update.lower(self.state, self.batch)

    def compile(self) -> Callable[[State, Batch], tuple[State, dict[str, Array]]]:
        """Compile the update for the local devices."""
        chosen = flags.options(self.config.compute, self.platform, self.slices)
        compiled: Callable[[State, Batch], tuple[State, dict[str, Array]]] = self.lower().compile(
            compiler_options=chosen
        )
        return compiled

    def compile_loss(self) -> Callable[[Params, Batch], tuple[Array, Array]]:
        """Compile (params, batch) -> (sum of losses, number of targets)."""
        replicated = NamedSharding(self.mesh, PartitionSpec())
        sums = jax.shard_map(
            partial(_local_sums, self),
            mesh=self.mesh,
            in_specs=(self.where, dict.fromkeys(self.batch, BATCH)),
            out_specs=(PartitionSpec(), PartitionSpec()),
            check_vma=False,
        )
        placed = self.shardings["params"], dict.fromkeys(self.batch, self.by_example)
        program = jax.jit(sums, in_shardings=placed, out_shardings=replicated)
        lowered: Any = program.lower(self.state["params"], self.batch)
        chosen = flags.options(self.config.compute, self.platform, self.slices)
        compiled: Callable[[Params, Batch], tuple[Array, Array]] = lowered.compile(compiler_options=chosen)
        return compiled

    def _update(self, state: State, batch: Batch) -> tuple[State, dict[str, Array]]:
        params = state["params"]
        total, count, gradients = self._gradients(params, batch)
        gradients = jax.tree.map(lambda gradient: gradient / count, gradients)
        updates, opt_state = self._optimizer.update(gradients, state["opt_state"], params)
        metrics = {"loss": total / count, "tokens": count, "gradient_norm": optax.tree.norm(gradients)}
        return {"params": optax.apply_updates(params, updates), "opt_state": opt_state}, metrics

    def _gradients(self, params: Params, batch: Batch) -> tuple[Array, Array, Params]:
        """Return the sums over the whole batch of losses, counted targets and gradients."""
        where = self.where
        run = jax.shard_map(
            partial(_local_gradients, self),
            mesh=self.mesh,
            in_specs=(where, dict.fromkeys(batch, BATCH)),
            out_specs=(PartitionSpec(), PartitionSpec(), where),
            check_vma=False,
        )
        result: tuple[Array, Array, Params] = run(params, batch)
        return result


def _local_gradients(step: Step, params: Params, batch: Batch) -> tuple[Array, Array, Params]:
    """Compute the sums of `_gradients` on one device, in `train.accumulate` parts, and reduce them."""
    config = step.config
    reduce_dtype = jnp.dtype(config.compute.reduce_dtype)
    differentiate = jax.value_and_grad(partial(_local_loss, step), has_aux=True)

    def part(carry: tuple[Array, Array, Params], piece: Batch) -> tuple[tuple[Array, Array, Params], None]:
        (total, count), gradients = differentiate(params, piece)
        return jax.tree.map(jnp.add, carry, (total, count, gradients)), None

    if config.train.accumulate == 1:
        (total, count), gradients = differentiate(params, batch)
    else:
        pieces = {name: x.reshape(config.train.accumulate, -1, x.shape[1]) for name, x in batch.items()}
        begin = (jnp.float32(0), jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
        (total, count, gradients), _ = jax.lax.scan(part, begin, pieces)

    def summed(gradient: Array, spec: PartitionSpec) -> Array:
        # Sharded gradients were summed over fsdp in the backward pass of `gather`.
        axes = [axis for axis in (DATA, FSDP) if axis not in spec and step.mesh.shape[axis] > 1]
        if not axes:
            return gradient
        total: Array = jax.lax.psum(gradient.astype(reduce_dtype), axes)
        return total.astype(jnp.float32)

    gradients = jax.tree.map(summed, gradients, step.where)
    return jax.lax.psum(total, (DATA, FSDP)), jax.lax.psum(count, (DATA, FSDP)), gradients


def _local_sums(step: Step, params: Params, batch: Batch) -> tuple[Array, Array]:
    """Compute the sums of losses and targets on one device, in `train.accumulate` parts, and reduce them."""

    def part(carry: tuple[Array, Array], piece: Batch) -> tuple[tuple[Array, Array], None]:
        total, count = _local_loss(step, params, piece)
        return (carry[0] + total, carry[1] + count), None

    pieces = {name: x.reshape(step.config.train.accumulate, -1, x.shape[1]) for name, x in batch.items()}
    (total, count), _ = jax.lax.scan(part, (jnp.float32(0), jnp.float32(0)), pieces)
    return jax.lax.psum(total, (DATA, FSDP)), jax.lax.psum(count, (DATA, FSDP))


def _local_loss(step: Step, params: Params, batch: Batch) -> tuple[Array, Array]:
    """Return the sum of the losses of one device's examples, and the number of counted targets.

    A target counts if it belongs to the same document as the token before it.
    """
    config = step.config
    arch, dtype = config.model, jnp.dtype(config.compute.dtype)
    tokens_BxL, targets_BxL = batch["tokens_BxL1"][:, :-1], batch["tokens_BxL1"][:, 1:]
    segments_BxL, after_BxL = batch["segments_BxL1"][:, :-1], batch["segments_BxL1"][:, 1:]
    counted_BxL = (segments_BxL == after_BxL).astype(jnp.float32)
    reduce_dtype = jnp.dtype(config.compute.reduce_dtype)

    def read(name: str, kept: Array) -> Array:
        axis = step.cuts[name]
        return kept.astype(dtype) if axis is None else gather(axis, dtype, reduce_dtype, kept)

    embed_VxD = read("embed_VxD", params["embed_VxD"])
    x_BxLxD = decoder.embedded(look_up(embed_VxD, tokens_BxL), arch)
    x_BxLxD = decoder.run_layers(
        x_BxLxD,
        params["layers"],
        segments_BxL,
        arch,
        attention.attend(step.attention),
        read,
        config.compute.remat,
        config.compute.examples_at_once,
        config.compute.keep_gathered,
        training_tap(config.compute.remat, attention.named_inside(step.attention)),
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


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def gather(axis: int, dtype: Any, reduce_dtype: Any, kept: Array) -> Array:
    """Gather a parameter over fsdp in `dtype`; reduce-scatter its gradient in `reduce_dtype`."""
    return _gather_forward(axis, dtype, reduce_dtype, kept)[0]


def _gather_forward(axis: int, dtype: Any, reduce_dtype: Any, kept: Array) -> tuple[Array, None]:
    # Inline, not a call of `gather`: a remat policy must see the collective.
    return jax.lax.all_gather(kept.astype(dtype), FSDP, axis=axis, tiled=True), None


def _gather_backward(axis: int, dtype: Any, reduce_dtype: Any, _: None, gradient: Array) -> tuple[Array]:
    summed = jax.lax.psum_scatter(gradient.astype(reduce_dtype), FSDP, scatter_dimension=axis, tiled=True)
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


def _placed(leaf: Any, where: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
