"""What a reconciler must not forget between two looks: attempts, and when a zone may be asked again.

It is kept in the bucket, so that a monitor started anew, on another machine, has spent the same budgets.
"""

import json
import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fleet.errors import FleetError
from fleet.failures import FOR_PEOPLE, Failure
from fleet.state import Cause

FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 900.0
DAY_S = 86400.0


@dataclass(frozen=True)
class Attempt:
    """A member was brought back, or is to be.

    Attributes:
        at_s: when that began.
        node: the member.
        cause: why.
        back_s: when it was there again; 0 while it isn't.
        instance: of the node that was replaced; empty where there was none.
    """

    at_s: float
    node: str
    cause: Cause
    back_s: float = 0.0
    instance: str = ""


@dataclass(frozen=True)
class Zone:
    """How often in a row a zone refused, and what follows.

    Attributes:
        refusals: since the last success.
        not_before_s: of the next attempt.
        stopped: why nothing is tried until a person has acted; empty where that isn't so.
        why: of the last refusal.
    """

    refusals: int = 0
    not_before_s: float = 0.0
    stopped: str = ""
    why: str = ""


@dataclass
class Memory:
    """Attempts of the last day, and zones that refused."""

    attempts: dict[str, list[Attempt]] = field(default_factory=dict)  # by member, in their order
    zones: dict[str, Zone] = field(default_factory=dict)

    def zone(self, name: str) -> Zone:
        """What is known of a zone."""
        return self.zones.get(name, Zone())

    def attempted(self, node: str, cause: Cause, now_s: float, instance: str = "") -> None:
        """Remembers that a member is being brought back, and forgets what is older than a day."""
        kept = [one for one in self.attempts.get(node, ()) if one.at_s > now_s - DAY_S]
        self.attempts[node] = [*kept, Attempt(now_s, node, cause, instance=instance)]

    def ended(self, node: str, fine: bool, now_s: float) -> None:
        """How the last attempt at a member went. One that gave no node after a preemption spends nothing."""
        *before, last = self.attempts[node]
        if fine:
            self.attempts[node] = [*before, replace(last, back_s=now_s)]
        elif last.cause is not Cause.FAILURE:
            self.attempts[node] = before

    def succeeded(self, zone: str) -> None:
        """A zone gave a node."""
        self.zones.pop(zone, None)

    def failed(self, zone: str, failure: Failure, now_s: float, dice: random.Random) -> None:
        """A zone refused: the next attempt is later each time, by a factor that differs from zone to zone."""
        before = self.zone(zone)
        stopped = f"{failure}" if failure.kind in FOR_PEOPLE else ""
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**before.refusals) * dice.uniform(0.5, 1.5)
        if failure.retry_after_s is not None:
            wait_s = max(wait_s, failure.retry_after_s)
        words = f"{failure.kind}: {failure.message}"
        self.zones[zone] = Zone(before.refusals + 1, now_s + wait_s, stopped, words)

    def acted(self) -> None:
        """A person asks: every zone is tried again at once. Budgets stay spent."""
        self.zones.clear()

    def last_back(self, node: str) -> Attempt | None:
        """The newest attempt that gave a node."""
        return next((one for one in reversed(self.attempts.get(node, ())) if one.back_s), None)

    def spent(self, cause: Cause, now_s: float, node: str = "") -> int:
        """How often in the last day, for one member or for all."""
        some = [self.attempts.get(node, [])] if node else self.attempts.values()
        return sum(one.cause is cause and one.at_s > now_s - DAY_S for each in some for one in each)

    def to_json(self) -> str:
        """As it is kept."""
        attempts = [asdict(one) for each in self.attempts.values() for one in each]
        zones = {name: asdict(zone) for name, zone in self.zones.items()}
        return json.dumps({"version": 1, "attempts": attempts, "zones": zones})


def from_json(text: str, where: str) -> Memory:
    """What was kept.

    Raises:
        FleetError: it is none of ours; budgets that can't be read aren't taken for unspent.
    """
    try:
        kept: Any = json.loads(text)
        attempts = [
            Attempt(
                float(one["at_s"]),
                str(one["node"]),
                Cause(one["cause"]),
                float(one["back_s"]),
                one["instance"],
            )
            for one in kept["attempts"]
        ]
        zones = {str(name): Zone(**zone) for name, zone in kept["zones"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        fix = "look at it, and delete it to begin with unspent budgets"
        raise FleetError(f"{where}: can't be read: {error}\n    fix: {fix}") from None
    by_node: dict[str, list[Attempt]] = {}
    for one in attempts:
        by_node.setdefault(one.node, []).append(one)
    return Memory(by_node, zones)
