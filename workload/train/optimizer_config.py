"""Settings of the optimizer and of its learning rate."""

from dataclasses import dataclass, field
from typing import Any

from settings_schema.rules import above, at_least, below, between, one_of
from workload.settings import ruled

DTYPES = ("float32", "bfloat16")  # of an optimizer's state


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer with a linear warm-up, a decay and clipping by the global norm."""

    name: str = "adamw"  # of optax, e.g. "adafactor", "lion" or "muon"
    options: dict[str, Any] = field(default_factory=dict)  # its further arguments, by optax's names
    learning_rate: float = ruled(1e-3, above(0))  # at the end of the warm-up
    final_fraction: float = ruled(0.1, between(0, 1))  # of learning_rate, at the last step
    warmup_steps: int = ruled(10, at_least(0))
    # After the warm-up. wsd: constant, then linear over decay_steps.
    schedule: str = ruled("cosine", one_of("cosine", "linear", "constant", "wsd"))
    decay_steps: int = ruled(0, at_least(0))  # last steps of wsd; 0: a tenth of train.steps
    weight_decay: float = ruled(0.1, at_least(0))  # of adamw; not on norms and biases
    beta1: float = ruled(0.9, below(1))  # of adamw
    beta2: float = ruled(0.95, below(1))  # of adamw
    epsilon: float = ruled(1e-8, above(0))  # of adamw
    clip_norm: float = ruled(1.0, above(0))
    # Of adamw's first moment. bfloat16 saves 2 of the 12 bytes that a parameter takes in HBM and checkpoints.
    moment_dtype: str = ruled("float32", one_of(*DTYPES))
