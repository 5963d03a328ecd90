"""Virtual time, whose rate a scenario sets: a ten-minute operation can take a second or an hour.

Where nothing has a time of its own, as machines have, it can also jump: a week then takes as long as what
happens in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from contextvars import ContextVar
from datetime import UTC, datetime

SANDBOXES = "172.31."
"""Addresses of users' programs in Google's services, which the virtual clock starts."""
by_virtual_clock: ContextVar[bool] = ContextVar("by_virtual_clock", default=False)
"""True while a request of theirs is handled."""

# Event loop iterations for sleepers that woke, before a jump continues: enough to change a node's state.
_TURNS = 20


class VirtualClock:
    """Starts at the real time and runs `rate` virtual seconds per real one; 0 stops it."""

    def __init__(self, rate: float = 1.0, start: float | None = None) -> None:
        self._rate = _checked(rate)
        self._virtual = time.time() if start is None else start
        self._real = time.monotonic()
        # When each who sleeps wants to wake, a number, and what wakes; a heap that holds some who have woken.
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._asleep: set[int] = set()  # numbers of those who haven't
        self._numbers = itertools.count()

    @property
    def rate(self) -> float:
        """Virtual seconds per real second."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        rate = _checked(rate)
        self._set(self.now())
        self._rate = rate
        for _, _, waker in self._sleepers:
            waker.set()

    def now(self) -> float:
        """Virtual seconds since the Unix epoch."""
        return self._virtual + (time.monotonic() - self._real) * self._rate

    def rfc3339(self) -> str:
        """Return the current time in UTC with microseconds."""
        return rfc3339(self.now())

    async def sleep(self, virtual_s: float) -> None:
        """Sleep for virtual seconds; a change of rate or a jump applies from the moment it is made."""
        end = self.now() + virtual_s
        while self._sleepers and self._sleepers[0][1] not in self._asleep:
            heapq.heappop(self._sleepers)
        waker, number = asyncio.Event(), next(self._numbers)
        heapq.heappush(self._sleepers, (end, number, waker))
        self._asleep.add(number)
        try:
            while (left_s := end - self.now()) > 0:
                waker.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(waker.wait(), left_s / self._rate if self._rate else None)
        finally:
            self._asleep.remove(number)

    async def jump(self, virtual_s: float) -> None:
        """Advance by virtual seconds at once. Sleepers wake in order, each at its own time."""
        end = self.now() + _checked(virtual_s, "jump")
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, waker = heapq.heappop(self._sleepers)
            self._set(max(at, self.now()))
            waker.set()
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        self._set(max(end, self.now()))

    def _set(self, now: float) -> None:
        self._virtual, self._real = now, time.monotonic()


def rfc3339(epoch_s: float) -> str:
    """Format a time in seconds since the epoch as `2026-11-20T22:01:58.001010Z`."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _checked(value: float, what: str = "rate") -> float:
    if not 0 <= value < float("inf"):
        unit = "virtual seconds" + " per second" * (what == "rate")
        raise ValueError(f"clock {what} {value}: must be a finite number of at least 0 {unit}")
    return value
