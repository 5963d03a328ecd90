"""Steps about any job, whoever wrote it: its heartbeats, and its lines in Cloud Logging.

They are among the kinds of `steps.py`, and follow its rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rehearsal.scenario.typed import Typed


@dataclass(frozen=True)
class Logged:
    """Wait until Cloud Logging has a matching line of each of a node's workers, be the node there or not."""

    node: str
    workers: int
    prints: str
    unit: str = "tpu-job.service"
    timeout_s: float = 300.0

    def __str__(self) -> str:
        return f"wait: the logs of {self.node}'s {self.workers} workers say {self.prints}"

    def check(self) -> Iterator[str]:
        """A pattern that can't be compiled is a broken rule."""
        yield from pattern("prints", self.prints)


@dataclass(frozen=True)
class Heartbeat:
    """Wait until each of a node's workers has said from here on that its job is in this state, and why."""

    node: str
    workers: int
    state: Literal["running", "done", "failed"]
    why: str = ""
    timeout_s: float = 300.0

    def __str__(self) -> str:
        return f"wait: {self.node}'s {self.workers} workers say {self.state}"

    def check(self) -> Iterator[str]:
        """A pattern that can't be compiled is a broken rule."""
        yield from pattern("why", self.why)


def pattern(key: str, text: str | None) -> Iterator[str]:
    """What is wrong with a regular expression."""
    try:
        re.compile(text or "")
    except re.error as broken:
        yield f"{key}: not a regular expression: {broken}"


@dataclass(frozen=True)
class Start(Typed):
    """Begin a command that continues beside the scenario, until `stop`."""

    name: str
    run: str

    def __str__(self) -> str:
        return f"$ {self.run} &"


@dataclass(frozen=True)
class Stop:
    """Press Ctrl+C in a command that was begun, or wait for its end; what it printed must hold a match."""

    name: str
    prints: str = ""
    wait: bool = False
    timeout_s: float = 120.0

    def __str__(self) -> str:
        return f"{'the end of' if self.wait else 'Ctrl+C in'} {self.name}"

    def check(self) -> Iterator[str]:
        """A pattern that can't be compiled is a broken rule."""
        yield from pattern("prints", self.prints)


@dataclass(frozen=True)
class Page:
    """Save a page that something serves on a port here beside the report; its text must hold a match."""

    name: str
    port: int
    prints: str = ""

    def __str__(self) -> str:
        return f"save http://localhost:{self.port} as {self.name}.html"

    def check(self) -> Iterator[str]:
        """A pattern that can't be compiled is a broken rule."""
        yield from pattern("prints", self.prints)
