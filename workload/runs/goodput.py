"""Where a run's time went: every second in one account, over all of its starts.

A start keeps `goodput/<begun>.json` in the run's folder; the accounts of a start add up to its
wall time. `summary` adds the starts up, with the time between them, and moves the steps that a
later start had to do again from `step` to `lost`.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from workload.errors import RunError
from workload.runs.store import Store

ACCOUNTS = {
    "init": "meeting the other workers, reading settings",
    "restore": "reading the checkpoint, or making the first state",
    "compile": "tracing and compiling, or reading the compiled step from the cache",
    "data": "waiting for examples",
    "step": "waiting for the devices to do a step",
    "eval": "computing the loss on held-out tokens",
    "save": "training stood still for a checkpoint",
    "other": "what none of these explains",
}


class GoodputRecorder:
    """The accounts of one start."""

    def __init__(self, begun: float | None = None, clock: Callable[[], float] = time.time):
        """Begins to count at `begun`, a Unix time; now, unless given."""
        self._clock = clock
        self.begun = clock() if begun is None else begun
        self.seconds = dict.fromkeys(ACCOUNTS, 0.0)
        self._inside = 0.0  # seconds counted since the innermost `doing` that hasn't ended
        self.first: int | None = None  # unknown until the checkpoint is read
        self.last = 0

    @contextmanager
    def doing(self, account: str) -> Iterator[None]:
        """Counts the time inside to an account, but for what is counted to another one meanwhile."""
        start, others, self._inside = self._clock(), self._inside, 0.0
        try:
            yield
        finally:
            spent = self._clock() - start
            self.seconds[account] += spent - self._inside
            self._inside = others + spent

    def begin(self, step: int) -> None:
        """Says after which step this start continues."""
        self.first = self.last = step

    def did(self, step: int) -> None:
        """Says that a step is done."""
        self.last = step

    @property
    def share(self) -> float:
        """Of the wall time so far, what went into steps."""
        return self.share_of("step")

    def share_of(self, account: str) -> float:
        """Of the wall time so far, what went into an account."""
        wall_s = self._clock() - self.begun
        return self.seconds[account] / wall_s if wall_s > 0 else 0.0

    def content(self) -> dict[str, Any]:
        """What is kept of a start; its accounts add up to `seconds`."""
        wall = self._clock() - self.begun
        seconds = dict(self.seconds)
        seconds["other"] = max(0.0, wall - sum(value for name, value in seconds.items() if name != "other"))
        return {
            "begun": self.begun,
            "seconds": wall,
            "from": self.first,
            "to": self.last,
            "accounts": seconds,
        }

    def name(self) -> str:
        """The object that keeps it."""
        begun = datetime.fromtimestamp(self.begun, UTC).strftime("%Y%m%dT%H%M%S%f")
        return f"goodput/{begun}.json"


@dataclass(frozen=True)
class Summary:
    """A run's time, in seconds.

    Attributes:
        wall_s: from the first start's begin to the last word of the last one.
        accounts_s: by account, with `lost` (steps that were done again) and `down` (between starts).
        starts: how many.
        steps: that count.
    """

    wall_s: float
    accounts_s: dict[str, float]
    starts: int
    steps: int

    @property
    def goodput(self) -> float:
        """The share of the wall time that went into steps that count."""
        return self.accounts_s["step"] / self.wall_s if self.wall_s else 0.0


def read(store: Store) -> list[dict[str, Any]]:
    """The starts of a run, oldest first.

    Raises:
        RunError: what one of them wrote is damaged.
    """
    starts = []
    for name in store.list("goodput/"):
        try:
            start = json.loads(store.read(name))
            starts.append({key: start[key] for key in ("begun", "seconds", "from", "to", "accounts")})
        except (ValueError, KeyError, TypeError) as error:
            fix = "remove it; the time of that start then counts as none"
            raise RunError(f"{store.url}/{name}: is damaged: {error}\n    fix: {fix}") from None
    return sorted(starts, key=lambda start: start["begun"])


def summary(starts: list[dict[str, Any]]) -> Summary:
    """Adds starts up; see the module.

    A start that ended after step `to` while a later one resumed from `from` < `to` lost the steps
    between: their share of its `step` account, as steps of one run take equally long. One that
    ended before it had read a checkpoint resumed from nowhere, and says nothing of the others.
    """
    accounts = dict.fromkeys([*ACCOUNTS, "lost", "down"], 0.0)
    for number, start in enumerate(starts):
        for name, value in start["accounts"].items():
            accounts[name] += value
        following = starts[number + 1] if number + 1 < len(starts) else None
        done = start["to"] - (start["from"] or 0)
        went_on = [later["from"] for later in starts[number + 1 :] if later["from"] is not None]
        if went_on and done:
            again = max(0, start["to"] - max(min(went_on), start["from"]))
            lost = start["accounts"]["step"] * again / done
            accounts["step"] -= lost
            accounts["lost"] += lost
        if following:
            accounts["down"] += max(0.0, following["begun"] - start["begun"] - start["seconds"])
    wall = sum(accounts.values())
    reached = [start["to"] for start in starts if start["from"] is not None]
    return Summary(wall, accounts, len(starts), reached[-1] if reached else 0)
