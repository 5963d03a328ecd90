"""Optimizer of a run: linear warm-up, a decay, clipping by the global norm, the update of optax's name."""
# mypy: allow-untyped-calls

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax import Array
from numpy.typing import NDArray

from workload.train import optax_names
from workload.train.config import Config


def schedule(config: Config) -> optax.Schedule:
    """Return the learning rate as a function of the number of finished updates."""
    settings, steps = config.optimizer, config.train.steps
    peak, end = settings.learning_rate, settings.learning_rate * settings.final_fraction
    if settings.schedule == "cosine":
        return optax.warmup_cosine_decay_schedule(0.0, peak, settings.warmup_steps, steps, end)
    warm_up, stable = optax.linear_schedule(0.0, peak, settings.warmup_steps), optax.constant_schedule(peak)
    if settings.schedule == "wsd":
        begin = steps - config.decay_steps
        decay = optax.linear_schedule(peak, end, config.decay_steps)
        return optax.join_schedules([warm_up, stable, decay], [settings.warmup_steps, begin])
    after = steps - settings.warmup_steps
    decay = optax.linear_schedule(peak, end, after) if settings.schedule == "linear" else stable
    return optax.join_schedules([warm_up, decay], [settings.warmup_steps])


def learning_rates(config: Config) -> NDArray[np.float32]:
    """Compute the learning rates of all updates, on the CPU."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        rates = schedule(config)(np.arange(config.train.steps))
    return np.broadcast_to(np.asarray(rates, np.float32), config.train.steps)


def build(config: Config, narrow: bool = False) -> optax.GradientTransformation:
    """Create the optimizer of a run; its state is float32 whatever the parameters are, as their gradients.

    Earlier versions kept a module's state in the dtypes of its parameters: `narrow`.
    """
    update = optax_names.create(config.optimizer, schedule(config), _decayed)
    made = optax.chain(optax.clip_by_global_norm(config.optimizer.clip_norm), update)
    if narrow:
        return made
    return optax.GradientTransformation(
        lambda params: made.init(optax.tree.cast(params, jnp.float32)),
        lambda gradients, state, params: made.update(gradients, state, optax.tree.cast(params, jnp.float32)),
    )


def state_bytes(config: Config, params: Any) -> int:
    """Return the bytes of trained parameters and their optimizer's state, from shapes."""
    return size_bytes((params, jax.eval_shape(build(config).init, params)))


def size_bytes(tree: Any) -> int:
    """Return the bytes of a tree's arrays."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def finished(opt_state: Any) -> Array:
    """Return the number of finished updates that an optimizer's state counts, for its schedule if it can."""
    counting = [node for node in optax_names.nodes(opt_state) if "count" in node._fields]
    count: Array = next(filter(_counts, counting), counting[0]).count
    return count


def restarts(opt_state: Any) -> bool:
    """Return True if the schedule is counted apart from the moments, so that it can begin anew."""
    return any(map(_counts, optax_names.nodes(opt_state)))


def restarted(opt_state: Any) -> Any:
    """Return the state with a schedule at its begin; moments and their own counts stay."""
    return jax.tree.map(
        lambda node: node._replace(count=node.count * 0) if _counts(node) else node,
        opt_state,
        is_leaf=_counts,
    )


def _counts(node: Any) -> bool:
    return isinstance(node, optax.ScaleByScheduleState)


def _decayed(params: Any) -> Any:
    """Return the weight-decay mask: True for matrices, False for norms, biases and other vectors."""

    def matrix(path: tuple[Any, ...], leaf: Any) -> bool:
        return leaf.ndim > 1 and not any(word in path[-1].key for word in ("norm", "bias", "scale"))

    return jax.tree_util.tree_map_with_path(matrix, params)
