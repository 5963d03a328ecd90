"""The steps about a host that speaks for another node; the others are in steps.py, which lists all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Impostor:
    """Let a node's first host speak for another node and write the controller's state, as its own account.

    What it can forge (objects in the checkpoint bucket) it must have forged; all else must be refused.
    """

    node: str
    victim: str

    def __str__(self) -> str:
        return f"{self.node} speaks for {self.victim}"


@dataclass(frozen=True)
class Unharmed:
    """Watch a node that an impostor spoke for: it must stay the same instance, READY, with all its hosts."""

    scalar: ClassVar[str] = "node"
    node: str
    for_s: float = 20.0

    def __str__(self) -> str:
        return f"{self.node} is kept, for {self.for_s:g} s"
