"""AdamW: linear warm-up, cosine decay, clipping by the global norm."""

from typing import Any

import jax
import optax  # type: ignore[import-untyped]

from workload.config import Config


def schedule(config: Config) -> optax.Schedule:
    """The learning rate as a function of the updates done so far."""
    settings = config.optimizer
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        decay_steps=config.train.steps,
        end_value=settings.learning_rate * settings.final_fraction,
    )


def build(config: Config) -> optax.GradientTransformation:
    """The optimizer of a run."""
    settings = config.optimizer
    return optax.chain(
        optax.clip_by_global_norm(settings.clip_norm),
        optax.adamw(
            schedule(config),
            b1=settings.beta1,
            b2=settings.beta2,
            weight_decay=settings.weight_decay,
            mask=_decayed,
        ),
    )


def _decayed(params: Any) -> Any:
    """True for every leaf that decays: all but the norms' scales."""
    return jax.tree_util.tree_map_with_path(lambda path, _: "norm" not in path[-1].key, params)
