"""Virtual time, whose rate a scenario sets: a ten-minute operation can take a second or an hour."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime


class VirtualClock:
    """Starts at the real time and runs `rate` virtual seconds per real one; 0 stops it."""

    def __init__(self, rate: float = 1.0, start: float | None = None) -> None:
        self._rate = _checked(rate)
        self._virtual = time.time() if start is None else start
        self._real = time.monotonic()
        self._rate_changed = asyncio.Event()

    @property
    def rate(self) -> float:
        """Virtual seconds per real second."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        rate = _checked(rate)
        self._virtual, self._real = self.now(), time.monotonic()
        self._rate = rate
        sleepers, self._rate_changed = self._rate_changed, asyncio.Event()
        sleepers.set()

    def now(self) -> float:
        """Virtual seconds since the Unix epoch."""
        return self._virtual + (time.monotonic() - self._real) * self._rate

    def rfc3339(self) -> str:
        """Now, in UTC with microseconds."""
        return rfc3339(self.now())

    async def sleep(self, virtual_s: float) -> None:
        """Let so many virtual seconds pass; a change of rate counts from the moment it is made."""
        end = self.now() + virtual_s
        while (left_s := end - self.now()) > 0:
            wait = self._rate_changed.wait()
            try:
                await asyncio.wait_for(wait, left_s / self._rate if self._rate else None)
            except TimeoutError:
                continue


def rfc3339(epoch_s: float) -> str:
    """A time in seconds since the epoch as `2026-11-20T22:01:58.001010Z`."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _checked(rate: float) -> float:
    if not 0 <= rate < float("inf"):
        raise ValueError(
            f"clock rate {rate}: must be a finite number of at least 0 virtual seconds per second"
        )
    return rate
