"""AdamW: linear warm-up, a decay, clipping by the global norm."""

from typing import Any

import jax
import numpy as np
import optax  # type: ignore[import-untyped]
from jax import Array
from numpy.typing import NDArray

from workload.train.config import Config


def schedule(config: Config) -> optax.Schedule:
    """Return the learning rate as a function of the number of finished updates."""
    settings, steps = config.optimizer, config.train.steps
    peak, end = settings.learning_rate, settings.learning_rate * settings.final_fraction
    if settings.schedule == "cosine":
        return optax.warmup_cosine_decay_schedule(0.0, peak, settings.warmup_steps, steps, end)
    after = steps - settings.warmup_steps
    decay = (
        optax.linear_schedule(peak, end, after)
        if settings.schedule == "linear"
        else optax.constant_schedule(peak)
    )
    warm_up = optax.linear_schedule(0.0, peak, settings.warmup_steps)
    return optax.join_schedules([warm_up, decay], [settings.warmup_steps])


def learning_rates(config: Config) -> NDArray[np.float32]:
    """Compute the learning rates of all updates, on the CPU."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        rates = schedule(config)(np.arange(config.train.steps))
    return np.broadcast_to(np.asarray(rates, np.float32), config.train.steps)


def build(config: Config) -> optax.GradientTransformation:
    """Create the optimizer of a run."""
    settings = config.optimizer
    return optax.chain(
        optax.clip_by_global_norm(settings.clip_norm),
        optax.adamw(
            schedule(config),
            b1=settings.beta1,
            b2=settings.beta2,
            eps=settings.epsilon,
            mu_dtype=settings.moment_dtype,
            weight_decay=settings.weight_decay,
            mask=_decayed,
        ),
    )


def finished(opt_state: Any) -> Array:
    """Return the number of finished updates that an optimizer's state counts."""
    states = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, optax.ScaleByAdamState))
    count: Array = next(node.count for node in states if isinstance(node, optax.ScaleByAdamState))
    return count


def _decayed(params: Any) -> Any:
    """Return the weight-decay mask: True for matrices, False for norms, biases and other vectors."""

    def matrix(path: tuple[Any, ...], leaf: Any) -> bool:
        return leaf.ndim > 1 and not any(word in path[-1].key for word in ("norm", "bias", "scale"))

    return jax.tree_util.tree_map_with_path(matrix, params)
