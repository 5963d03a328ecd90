"""How often to save: from what a save costs and what a loss without notice would.

Young's rule, as Daly (2006) has it in first order: with a stall of s seconds a save and M seconds
between losses, saving every sqrt(2·s·M) seconds loses the least. Two bounds hold besides: the
stall stays below 5 % of the time, and a save is over before the next begins.
"""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from workload.train.config import CheckpointConfig

if TYPE_CHECKING:  # preflight asks for an interval without JAX
    from workload.train.cluster import Cluster

FIRST_STEPS = 10  # before the first save, which measures; so few are no loss
STALL_SHARE = 0.05


def best_interval_s(stall_s: float, save_s: float, between_losses_s: float) -> tuple[float, str]:
    """Seconds between saves, and what bounds them.

    Args:
        stall_s: that training stands still for a save.
        save_s: from the begin of a save until it is complete.
        between_losses_s: expected, of a worker without notice.
    """
    bounds = {
        "a loss every {hours:.3g} h and a stall of {stall:.2g} s (Young's rule)": math.sqrt(
            2 * stall_s * between_losses_s
        ),
        "a stall of {stall:.2g} s must stay below 5 % of the time": stall_s / STALL_SHARE,
        "a save takes {save:.3g} s and must be over before the next": save_s,
    }
    reason, seconds = max(bounds.items(), key=lambda bound: bound[1])
    return seconds, reason.format(hours=between_losses_s / 3600, stall=stall_s, save=save_s)


class Interval:
    """The steps after which a run saves; all workers agree on them."""

    def __init__(
        self,
        config: CheckpointConfig,
        cluster: "Cluster",
        first: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._config, self._cluster, self._clock = config, cluster, clock
        self.every_steps = config.every_steps
        self._last = first
        self._marks: tuple[int, float] | None = None  # a step whose end was seen, and when
        self._step_s = 0.0

    def due(self, step: int) -> bool:
        """Whether to save after this step; to be asked once a step."""
        if self._config.every_steps:
            return step % self._config.every_steps == 0
        now = self._clock()
        if self._marks is None:
            self._marks = step, now
        elif step > self._marks[0]:
            self._step_s = (now - self._marks[1]) / (step - self._marks[0])
        return step - self._last >= (self.every_steps or FIRST_STEPS)

    def saved(self, step: int, stall_s: float, save_s: float) -> str:
        """Takes what the saves so far cost; returns the reason for a new interval, if it is one.

        Args:
            step: that was saved.
            stall_s: that training stood still for this save.
            save_s: that the save before it took until it was complete; 0 if there was none.
        """
        self._last = step
        self._marks = None
        if self._config.every_steps or not self._step_s:
            return ""

        def choose() -> dict[str, object]:
            between_s = self._config.preemption_every_h * 3600
            seconds, reason = best_interval_s(stall_s, save_s, between_s)
            return {"steps": max(1, round(seconds / self._step_s)), "reason": reason}

        chosen = self._cluster.agree(choose)
        steps = int(chosen["steps"])
        if self.every_steps and abs(steps - self.every_steps) <= self.every_steps / 4:
            return ""
        self.every_steps = steps
        return str(chosen["reason"])
