"""Slurm's nodes and jobs as its commands print them: foreign text, parsed with limits and never spliced."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from slurm.errors import SlurmError

MOST_BYTES = 64 << 20
"""Most that a command may print: 0.7 kB a node, 65,536 nodes."""
_NAME = re.compile(r"NodeName=([A-Za-z0-9_.-]{1,64}) ")
_STATE = re.compile(r" State=([A-Z_]{1,20})((?:\+[A-Z_]{1,20}){0,20})[*~#!%$@^-]? ")
# The last field but for a comment; Slurm adds who gave it, and when.
_REASON = re.compile(r" Reason=(.{0,2000}?)(?: \[([\w.-]{1,64})@([^\]]{1,40})\])?(?: Comment=.*)?$")
_IN_USE = frozenset({"ALLOCATED", "MIXED"})
_DOWN_POWER = frozenset({"POWERED_DOWN", "POWERING_DOWN"})


@dataclass(frozen=True)
class SlurmNode:
    """A node as slurmctld knows it.

    Attributes:
        name: of the host.
        base: its state, such as IDLE.
        flags: beside it, such as CLOUD and POWERED_DOWN.
        reason: of an administrator or of Slurm, without who gave it; empty: none.
    """

    name: str
    base: str
    flags: frozenset[str] = frozenset()
    reason: str = ""

    @property
    def in_use(self) -> bool:
        """True if a job has the node, or leaves it."""
        return self.base in _IN_USE or "COMPLETING" in self.flags

    @property
    def powering_up(self) -> bool:
        """True if Slurm waits for the host to boot."""
        return "POWERING_UP" in self.flags

    @property
    def due(self) -> bool:
        """True if Slurm will wait for it in a moment; a host that boots before that isn't accepted."""
        called = self.base in _IN_USE or "POWER_UP" in self.flags
        return called and not self.powering_up and "POWERED_DOWN" in self.flags

    @property
    def out(self) -> bool:
        """True if Slurm has given the host up: no job has it, and it is powered down, or being so."""
        given_up = bool(self.flags & _DOWN_POWER)
        return given_up and not self.in_use and not self.powering_up and not self.due

    @property
    def up(self) -> bool:
        """True if Slurm counts on the host, whether it answers or not."""
        return not self.powering_up and not self.due and not self.out

    @property
    def powered_down(self) -> bool:
        """True if the host may be asked for again: the time for its end is over."""
        return self.out and "POWERED_DOWN" in self.flags

    @property
    def leaving(self) -> bool:
        """True if Slurm powers it down once no job has it."""
        return "POWER_DOWN" in self.flags

    @property
    def held(self) -> bool:
        """True if no job gets it, until somebody resumes it."""
        return self.base == "DOWN" or "DRAIN" in self.flags


def nodes(text: str) -> dict[str, SlurmNode]:
    """Return the nodes in the output of `scontrol show node --oneliner`, by name.

    Raises:
        SlurmError: a line isn't a node.
    """
    parsed = {}
    for line in text.splitlines():
        if not line.strip() or line == "No nodes in the system":
            continue
        name, state = _NAME.match(line), _STATE.search(line)
        if name is None or state is None:
            raise SlurmError(f"scontrol show node: a line isn't a node: {line[:100]!a}")
        reason = _REASON.search(line)
        flags = frozenset(filter(None, state[2].split("+")))
        parsed[name[1]] = SlurmNode(name[1], state[1], flags, reason[1] if reason else "")
    return parsed


def listed(hosts: Iterable[str]) -> str:
    """Return hosts as one argument of scontrol."""
    return ",".join(sorted(hosts))
