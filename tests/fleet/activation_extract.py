"""The design of kathir-ks/activation-extract's fleet scripts, as little of it as shows each defect.

Written anew from what its code does; docs/fleet.md has the list. Where a check of test_activation_extract.py
passes on ours, it has to fail on these, or it would show nothing.
"""

import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from fleet.zones import NodeRequest, Verb
from infra.slices.nodes import Node
from tests.fleet.virtual import VirtualCloud

RUNTIME = "tpu-ubuntu2204-base"
NOT_FOUND = "NOT_FOUND"
_RETRIES, _RETRY_S = 1_000_000, 10.0


def bring_back(lost: Sequence[str]) -> list[str]:
    """Its pass over what is to be recreated, which counts in bash under `set -e`: who was reached."""
    line = 'set -e; recreated=0; for one in "$@"; do echo "$one"; ((recreated++)); done'
    done = subprocess.run(["bash", "-c", line, "-", *lost], capture_output=True, text=True, check=False)
    return done.stdout.split()


@dataclass
class Loop:
    """One serial pass: describe each, delete and create what isn't READY, again and again until it is."""

    cloud: VirtualCloud
    members: Sequence[Node]
    until_s: float
    calls: int = 0

    def describe(self, member: Node) -> str:
        """A node's state; whatever went wrong reads as if there were none."""
        self.calls += 1
        return (
            NOT_FOUND
            if self.cloud.ill(member.zone)
            else getattr(self.cloud.nodes.get(member.key), "state", NOT_FOUND)
        )

    def go(self, observed: dict[str, str] | None = None) -> None:
        """The pass; `seen` is what another loop, or an earlier moment, saw."""
        for member in self.members:
            state = observed[member.name] if observed else self.describe(member)
            if state == "READY":
                continue
            for _ in range(_RETRIES):
                self.cloud._delete(member.key, NodeRequest(Verb.DELETE, member))
                self.cloud.advance(self.cloud.now_s + 60)
                self.cloud.create(member.key, NodeRequest(Verb.CREATE, member))
                self.cloud.advance(self.cloud.now_s + 360 + _RETRY_S)
                if self.cloud.nodes[member.key].state == "READY" if member.key in self.cloud.nodes else False:
                    break
                if self.cloud.now_s >= self.until_s:
                    return


@dataclass
class Launcher:
    """Asks each worker by ssh whether its program runs, and starts it where the answer isn't yes."""

    unreachable: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    started: Counter[str] = field(default_factory=Counter)

    def go(self, workers: Sequence[str]) -> None:
        """One round. A finished program doesn't run; nor, for all that it knows, does one out of reach."""
        for worker in workers:
            runs = self.started[worker] and worker not in self.unreachable | self.finished
            if not runs:
                self.started[worker] += 1
