"""Checkpoint interval, from the cost of a save and the expected time between preemptions.

Young's rule, in first order as in Daly (2006): with a stall of s seconds per save and M seconds
between losses, saving every sqrt(2·s·M) seconds minimizes the lost time. Two more bounds: the
stall stays below 5 % of the time, and a save completes before the next begins.
"""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from workload.train.config import CheckpointConfig

if TYPE_CHECKING:  # preflight computes an interval without JAX
    from workload.train.cluster import Cluster

FIRST_STEPS = 10  # before the first save, which measures the cost
STALL_SHARE = 0.05


def best_interval_s(stall_s: float, save_s: float, between_losses_s: float) -> tuple[float, str]:
    """Return the seconds between saves, and the binding rule.

    Args:
        stall_s: pause of training per save.
        save_s: duration of a save until it is complete.
        between_losses_s: expected time between losses of a worker without notice.
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
    """Schedule of a run's saves, the same on all workers."""

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
        self._marks: tuple[int, float] | None = None  # a step and the time of its end
        self._step_s = 0.0

    def due(self, step: int) -> bool:
        """Return True if this step is to be saved; call it once per step."""
        if self._config.every_steps:
            return step % self._config.every_steps == 0
        now = self._clock()
        if self._marks is None:
            self._marks = step, now
        elif step > self._marks[0]:
            self._step_s = (now - self._marks[1]) / (step - self._marks[0])
        return step - self._last >= (self.every_steps or FIRST_STEPS)

    def saved(self, step: int, stall_s: float, save_s: float) -> str:
        """Update the interval from measured costs; return the reason if it changed.

        Args:
            step: saved step.
            stall_s: pause of training for this save.
            save_s: duration of the previous save until it was complete; 0 if there was none.
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
