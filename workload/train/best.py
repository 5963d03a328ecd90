"""Best checkpoint of a run: the complete one with the lowest loss on held-out tokens.

`checkpoints/STEP/eval.json` holds that loss and is stored before the step's marker, so that the best one
follows from the checkpoints alone, whenever a run was killed.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from settings_schema import foreign
from settings_schema.foreign import ForeignError
from workload.errors import RunError
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store
from workload.train.stored_steps import FOLDER

NAME = "eval.json"
BEST = "best"
"""Step of a checkpoint's name that stands for the best one's."""


@dataclass(frozen=True)
class Evaluated:
    """Loss on held-out tokens, which `of` identifies: losses on others can't be compared."""

    loss: float
    of: str

    def dump(self, step: int) -> bytes:
        """Format for storage."""
        content = {"step": step, "loss": round(self.loss, 6), "loss_hex": self.loss.hex(), "of": self.of}
        return (json.dumps(content) + "\n").encode()


def read(store: Store, steps: Iterable[int]) -> dict[int, Evaluated]:
    """Read the losses of complete steps; steps without one, or a damaged one, are left out."""
    losses = {}
    for step in steps:
        try:
            content = foreign.parse(store.read(f"{FOLDER}/{step}/{NAME}"))
            loss = float.fromhex(foreign.text(content, "loss_hex"))
            losses[step] = Evaluated(loss, foreign.text(content, "of"))
        except (MissingObjectError, ForeignError, ValueError, OverflowError):
            continue
    return losses


def choose(evaluated: Mapping[int, Evaluated]) -> int | None:
    """Return the first step with the lowest loss on the tokens of the newest evaluation; None without any."""
    if not evaluated:
        return None
    of = evaluated[max(evaluated)].of
    losses = {
        step: known.loss for step, known in evaluated.items() if known.of == of and math.isfinite(known.loss)
    }
    return min(sorted(losses), key=losses.__getitem__, default=None)


def improves(new: Evaluated, evaluated: Iterable[Evaluated]) -> bool:
    """Return True if a loss is lower than all earlier ones on the same tokens."""
    earlier = (known.loss for known in evaluated if known.of == new.of and math.isfinite(known.loss))
    return math.isfinite(new.loss) and new.loss < min(earlier, default=math.inf)


def require(store: Store, steps: Iterable[int]) -> int:
    """Return the best of the complete steps.

    Raises:
        RunError: none was saved with an evaluation.
    """
    step = choose(read(store, steps))
    if step is None:
        fix = "name a step; or train with observe.eval_path and checkpoint.keep_best = true"
        raise RunError(f"{store.url}: no checkpoint has a loss on held-out tokens\n    fix: {fix}")
    return step
