"""What a reconciler must not forget between two looks: attempts, and who may not be asked yet, or at all.

It is kept in the bucket, so that a monitor started anew, on another machine, has spent the same budgets.
"""

import json
import random
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fleet.errors import FleetError
from fleet.failures import FOR_PEOPLE, OF_ONE, Failure, Kind
from fleet.state import Cause

FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 900.0
STACK_WAIT_S = 60.0  # after an update that couldn't begin, whoever's fault
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
class Refusal:
    """How often in a row a zone or a member was refused, and what follows.

    Attributes:
        count: since the last success.
        not_before_s: of the next attempt.
        stopped: why nothing is tried until a person has acted; empty where that isn't so.
        why: of the last one.
        kind: of the last one.
    """

    count: int = 0
    not_before_s: float = 0.0
    stopped: str = ""
    why: str = ""
    kind: Kind | None = None

    def holds(self, now_s: float) -> bool:
        """Whether nothing may be tried now."""
        return bool(self.stopped) or now_s < self.not_before_s


@dataclass
class Memory:
    """Attempts of the last day by member, refusals by zone and by member, causes that are still owed."""

    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    owed: dict[str, Cause] = field(default_factory=dict)

    def refusal(self, node: str, zone: str) -> Refusal:
        """What stands against a member, its own refusal or its zone's: the one that holds longer."""
        found = [self.refusals[key] for key in (node, zone) if key in self.refusals]
        return max(found, key=lambda one: (bool(one.stopped), one.not_before_s), default=Refusal())

    def attempted(self, node: str, cause: Cause, now_s: float, instance: str = "") -> None:
        """Remembers that a member is being brought back, and forgets what is older than a day.

        What is created because an earlier attempt deleted it is still for that one's cause.
        """
        kept = [one for one in self.attempts.get(node, ()) if one.at_s > now_s - DAY_S]
        real = self.owed.get(node, cause) if cause is Cause.NEW else cause
        self.attempts[node] = [*kept, Attempt(now_s, node, real, instance=instance)]

    def succeeded(self, node: str, zone: str | None, now_s: float) -> None:
        """A member is there again; the zone that gave it, None where it was there already."""
        *before, last = self.attempts[node]
        self.attempts[node] = [*before, replace(last, back_s=now_s)]
        self.refusals.pop(node, None)
        if zone:
            self.refusals.pop(zone, None)
        self.owed.pop(node, None)

    def failed(self, node: str, zone: str, failure: Failure, now_s: float, dice: random.Random) -> None:
        """An attempt gave no node: it spends nothing yet, and the next one is later each time.

        What is wrong with the request for one member holds that one, what the zone or the project
        refuses holds the zone, and an update that didn't begin is no refusal at all.
        """
        last = self.attempts[node].pop()
        if last.cause is not Cause.NEW:
            self.owed[node] = last.cause
        key = node if failure.kind in OF_ONE else zone
        before = self.refusals.get(key, Refusal())
        for_people = failure.kind in FOR_PEOPLE
        if before.stopped or (before.not_before_s > now_s and not for_people):
            return  # another member of the same update has said so, or worse
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**before.count) * dice.uniform(0.5, 1.5)
        if failure.kind is Kind.STACK:
            wait_s = STACK_WAIT_S
        stopped = f"{failure}" if for_people else ""
        count = before.count + (failure.kind is not Kind.STACK)
        why = f"{failure.kind}: {failure.message}"
        self.refusals[key] = Refusal(count, now_s + wait_s, stopped, why, failure.kind)

    def deleted(self, nodes: Collection[str]) -> None:
        """A person deletes members: none is there, or owed. What was spent on them stays spent."""
        for node in nodes:
            self.attempts[node] = [replace(one, back_s=0.0) for one in self.attempts.get(node, ())]
            self.refusals.pop(node, None)
            self.owed.pop(node, None)

    def acted(self) -> None:
        """A person asks: all are tried again at once. Budgets stay spent."""
        self.refusals.clear()

    def last_back(self, node: str) -> Attempt | None:
        """The newest attempt that gave a node."""
        return next((one for one in reversed(self.attempts.get(node, ())) if one.back_s), None)

    def spent(self, cause: Cause, now_s: float, node: str = "") -> int:
        """How often in the last day, for one member or for all."""
        some = [self.attempts.get(node, [])] if node else self.attempts.values()
        return sum(one.cause is cause and one.at_s > now_s - DAY_S for each in some for one in each)

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        attempts = [asdict(one) for each in self.attempts.values() for one in each]
        refusals = {name: asdict(one) for name, one in self.refusals.items()}
        return {"version": 1, "attempts": attempts, "refusals": refusals, "owed": self.owed}


def _refusal(kept: Mapping[str, Any]) -> Refusal:
    kind = kept.get("kind")
    return Refusal(**{**kept, "kind": Kind(kind) if kind else None})


def parse(text: str, where: str) -> tuple[Memory, Mapping[str, Any]]:
    """What was kept, and all that stands beside it.

    Raises:
        FleetError: it is none of ours; budgets that can't be read aren't taken for unspent.
    """
    try:
        kept: Any = json.loads(text)
        memory = Memory(
            refusals={str(name): _refusal(one) for name, one in kept["refusals"].items()},
            owed={str(node): Cause(cause) for node, cause in kept["owed"].items()},
        )
        for one in kept["attempts"]:
            attempt = Attempt(**{**one, "cause": Cause(one["cause"])})
            memory.attempts.setdefault(attempt.node, []).append(attempt)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        fix = "look at it, and delete it to begin with unspent budgets"
        raise FleetError(f"{where}: can't be read: {error}\n    fix: {fix}") from None
    return memory, kept
