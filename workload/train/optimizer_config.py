"""Settings of the optimizer and of its learning rate."""

from dataclasses import dataclass, field
from typing import Any

from settings_schema.rules import above, at_least, below, between, one_of
from workload.settings import ruled

DTYPES = ("float32", "bfloat16")  # of an optimizer's state


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer with a linear warm-up, a decay and clipping by the global norm."""

    name: str = "adamw"  # an optimizer of optax, e.g. "adafactor", "lion" or "muon"
    options: dict[str, Any] = field(default_factory=dict)  # its further arguments, by optax's names
    learning_rate: float = ruled(1e-3, above(0))  # at the end of the warm-up
    final_fraction: float = ruled(0.1, between(0, 1))  # last step's share of learning_rate
    warmup_steps: int = ruled(10, at_least(0))  # steps of linear warm-up
    # after the warm-up; wsd: constant, then a linear decay over decay_steps
    schedule: str = ruled("cosine", one_of("cosine", "linear", "constant", "wsd"))
    decay_steps: int = ruled(0, at_least(0))  # steps of wsd's decay; 0: a tenth of train.steps
    weight_decay: float = ruled(0.1, at_least(0))  # adamw's; not on norms and biases
    beta1: float = ruled(0.9, below(1))  # adamw's
    beta2: float = ruled(0.95, below(1))  # adamw's
    epsilon: float = ruled(1e-8, above(0))  # adamw's
    clip_norm: float = ruled(1.0, above(0))  # maximum global norm of the gradients
    # dtype of adamw's first moment; bfloat16 saves 2 of a parameter's 12 bytes in HBM and checkpoints
    moment_dtype: str = ruled("float32", one_of(*DTYPES))
