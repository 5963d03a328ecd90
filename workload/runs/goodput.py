"""Goodput of a run: accounts of time, over all of its starts.

A start writes `goodput/<begun>.json` into the run's folder; its accounts add up to its duration.
`summary` adds the starts and the time between them, and moves the time of repeated steps from `step`
to `lost`. Durations are of a monotonic clock; wall time only labels a start and dates the gap after it.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from settings_schema import foreign
from settings_schema.foreign import ForeignError
from workload.runs.store import Reader

_log = logging.getLogger(__name__)

ACCOUNTS = {
    "init": "meeting the other workers, reading settings",
    "restore": "reading the checkpoint, or making the first state",
    "compile": "tracing and compiling, or reading the compiled step from the cache",
    "data": "waiting for examples",
    "step": "waiting for the devices to do a step",
    "eval": "computing the loss on held-out tokens",
    "save": "training paused for a checkpoint",
    "other": "unexplained",
}


class GoodputRecorder:
    """Accounts of a start."""

    def __init__(
        self,
        already_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ):
        """Begin to count `already_s` ago.

        Args:
            already_s: age of the process.
            clock: monotonic, of durations.
            wall: Unix time, of labels.
        """
        self._clock, self._wall = clock, wall
        self._start = clock() - already_s
        self._begun = wall() - already_s
        self.number = 0  # starts before this one
        self.seconds = dict.fromkeys(ACCOUNTS, 0.0)
        self._inside = 0.0  # seconds counted within the innermost open `doing`
        self.first: int | None = None  # None until the checkpoint is read
        self.last = 0

    @contextmanager
    def doing(self, account: str) -> Iterator[None]:
        """Add the time of the block to an account, without the time of blocks within it."""
        start, outside, self._inside = self._clock(), self._inside, 0.0
        try:
            yield
        finally:
            spent = self._clock() - start
            self.seconds[account] += spent - self._inside
            self._inside = outside + spent

    def begin(self, step: int) -> None:
        """Record the step from which this start continues."""
        self.first = self.last = step

    def did(self, step: int) -> None:
        """Record a finished step."""
        self.last = step

    @property
    def share(self) -> float:
        """Share of steps in the time so far."""
        return self.share_of("step")

    def share_of(self, account: str) -> float:
        """Return an account's share of the time so far."""
        return self.seconds[account] / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def elapsed_s(self) -> float:
        """Duration so far."""
        return self._clock() - self._start

    def content(self) -> dict[str, Any]:
        """Return the stored content; its accounts add up to `seconds`."""
        elapsed_s, seconds = self.elapsed_s, dict(self.seconds)
        known_s = sum(value for name, value in seconds.items() if name != "other")
        seconds["other"] = max(0.0, elapsed_s - known_s)
        return {
            "number": self.number,
            "begun": self._begun,
            "written": self._wall(),
            "seconds": elapsed_s,
            "from": self.first,
            "to": self.last,
            "accounts": seconds,
        }

    def name(self) -> str:
        """Return the name of its object."""
        begun = datetime.fromtimestamp(self._begun, UTC).strftime("%Y%m%dT%H%M%S%f")
        return f"goodput/{begun}.json"


@dataclass(frozen=True)
class GoodputSummary:
    """A run's time, in seconds.

    Attributes:
        wall_s: from the first start's begin to the last report of the last start.
        accounts_s: by account, with `lost` (repeated steps) and `down` (between starts).
        starts: their number.
        steps: finished steps, without repetitions.
    """

    wall_s: float
    accounts_s: dict[str, float]
    starts: int
    steps: int

    @property
    def goodput(self) -> float:
        """Share of the wall time in steps that weren't repeated."""
        return self.accounts_s["step"] / self.wall_s if self.wall_s else 0.0


def read(store: Reader) -> list[dict[str, Any]]:
    """Read the starts of a run, oldest first; objects that are no accounts are left out with a warning.

    Starts are in the order of their numbers, behind those that earlier versions wrote without one.
    """
    starts = []
    for name, size in store.sizes("goodput/").items():
        try:
            foreign.require_size(size)
            starts.append(_parse(store.read(name)))
        except ForeignError as error:
            _log.warning("left out: %s/%s: %s", store.url, name, error)
    return sorted(starts, key=lambda start: (start["number"], start["begun"]))


def _parse(raw: bytes) -> dict[str, Any]:
    """Return the accounts of a start. Raises ForeignError."""
    parsed = foreign.parse(raw)
    stored = foreign.group(parsed, "accounts")
    accounts = {name: foreign.number(stored, name) for name in ACCOUNTS}
    begun, written = foreign.number(parsed, "begun"), foreign.number(parsed, "written")
    seconds = foreign.number(parsed, "seconds")
    if written is None:
        written = (begun or 0.0) + (seconds or 0.0)
    start: dict[str, Any] = {
        "number": foreign.count(parsed, "number"),
        "begun": begun,
        "written": written,
        "seconds": seconds,
        "from": None if parsed.get("from") is None else foreign.count(parsed, "from"),
        "to": foreign.count(parsed, "to"),
        "accounts": accounts,
    }
    if any(value is None or value < 0 for value in (begun, written, seconds, *accounts.values())):
        raise ForeignError("has a time that is missing or negative")
    return start


def summary(starts: list[dict[str, Any]]) -> GoodputSummary:
    """Add the starts; see the module.

    If a start ended after step `to` and a later one resumed from `from` < `to`, the steps between are lost:
    their share of its `step` account, assuming equally long steps. Starts that ended before they had read a
    checkpoint are ignored here.
    """
    accounts = dict.fromkeys([*ACCOUNTS, "lost", "down"], 0.0)
    for number, start in enumerate(starts):
        for name, value in start["accounts"].items():
            accounts[name] += value
        successor = starts[number + 1] if number + 1 < len(starts) else None
        done = start["to"] - (start["from"] or 0)
        resumed = [later["from"] for later in starts[number + 1 :] if later["from"] is not None]
        if resumed and done:
            again = max(0, start["to"] - max(min(resumed), start["from"]))
            lost = start["accounts"]["step"] * again / done
            accounts["step"] -= lost
            accounts["lost"] += lost
        if successor:
            accounts["down"] += max(0.0, successor["begun"] - start["written"])
    wall = sum(accounts.values())
    reached = [start["to"] for start in starts if start["from"] is not None]
    return GoodputSummary(wall, accounts, len(starts), reached[-1] if reached else 0)
