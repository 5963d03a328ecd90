"""Steps about any job, whoever wrote it: its heartbeats, and its lines in Cloud Logging.

They are among the kinds of `steps.py`, and follow its rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rehearsal.scenario.matching import Matching
from rehearsal.scenario.typed import Typed


@dataclass(frozen=True)
class Logged(Matching):
    """Wait until Cloud Logging has a matching line of each of a node's workers, be the node there or not."""

    node: str
    workers: int
    prints: str
    unit: str = "tpu-job.service"
    timeout_s: float = 300.0

    def __str__(self) -> str:
        return f"wait: the logs of {self.node}'s {self.workers} workers say {self.prints}"


@dataclass(frozen=True)
class Heartbeat(Matching):
    """Wait until each of a node's workers has said from here on that its job is in this state, and why."""

    regex: ClassVar[str] = "why"
    node: str
    workers: int
    state: Literal["running", "done", "failed"]
    why: str = ""
    timeout_s: float = 300.0

    def __str__(self) -> str:
        return f"wait: {self.node}'s {self.workers} workers say {self.state}"


@dataclass(frozen=True)
class Start(Typed):
    """Begin a command that continues beside the scenario, until `stop`."""

    name: str
    run: str

    def __str__(self) -> str:
        return f"$ {self.run} &"


@dataclass(frozen=True)
class Stop(Matching):
    """Press Ctrl+C in a command that was begun, or wait for its end; what it printed must hold a match."""

    name: str
    prints: str = ""
    wait: bool = False
    timeout_s: float = 120.0

    def __str__(self) -> str:
        return f"{'the end of' if self.wait else 'Ctrl+C in'} {self.name}"


@dataclass(frozen=True)
class Page(Matching):
    """Save a page that something serves on a port here beside the report; its text must hold a match."""

    name: str
    port: int
    prints: str = ""

    def __str__(self) -> str:
        return f"save http://localhost:{self.port} as {self.name}.html"
