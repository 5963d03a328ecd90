"""State of a controller between two steps: attempts, and the zones and members that refused.

It is stored in the bucket, so that a new monitor on another machine has spent the same budgets.
"""

import json
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.errors import FleetError
from fleet.model import Cause, View
from infra.engine.roles import with_roles
from infra.google.failures import FOR_PEOPLE, OF_ONE, Failure, Kind

FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 900.0
STACK_WAIT_S = 60.0  # after an update that couldn't begin, whoever's fault
DAY_S = 86400.0


@dataclass(frozen=True)
class Attempt:
    """Recovery or first creation of a member.

    Attributes:
        at_s: its begin.
        node: key of the member.
        cause: of the recovery.
        back_s: time when the member existed again; 0 until then.
        instance: id of the replaced node; empty if there was none.
        zone: of the requested node; empty before the request.
        name: of the requested node.
    """

    at_s: float
    node: str
    cause: Cause
    back_s: float = 0.0
    instance: str = ""
    zone: str = ""
    name: str = ""


@dataclass(frozen=True)
class Refusal:
    """Consecutive refusals of a zone or a member, and their effect.

    Attributes:
        count: since the last success.
        not_before_s: of the next attempt.
        stopped: why nothing is tried until manual action; empty where that isn't so.
        why: of the last one.
        kind: of the last one.
    """

    count: int = 0
    not_before_s: float = 0.0
    stopped: str = ""
    why: str = ""
    kind: Kind | None = None

    def holds(self, now_s: float) -> bool:
        """Return whether attempts are blocked."""
        return bool(self.stopped) or now_s < self.not_before_s


@dataclass
class ControllerState:
    """Attempts and refusals of members, and outcomes of bundles.

    An attempt is written before its request and stays open until its node exists, so that a killed command
    leaves a record of each member that was lost and isn't back.

    Attributes:
        attempts: of the last day, by member.
        refusals: by zone and by member.
        bundles: by a bundle's label, empty if it booted somewhere, else the failed boot.
        listed_s: time of the last list of heartbeats, or of the first attempt at one; 0 before that.
        manual: a user requested the attempts of this process; not stored.
    """

    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    bundles: dict[str, str] = field(default_factory=dict)
    listed_s: float = 0.0
    manual: bool = False

    def refusal(self, key: str, zone: str) -> Refusal:
        """Return the refusal of a member or of its zone: the one that holds longer."""
        result = [self.refusals[item] for item in (key, zone) if item in self.refusals]
        return max(result, key=lambda item: (bool(item.stopped), item.not_before_s), default=Refusal())

    def open(self, key: str) -> Attempt | None:
        """Return the attempt whose node isn't there yet."""
        last = next(reversed(self.attempts.get(key, ())), None)
        return last if last and not last.back_s else None

    def recovery_cause(self, key: str) -> Cause | None:
        """Return the cause of a member's recovery under way; None if it is new or there is none."""
        item = self.open(key)
        return item.cause if item and item.cause is not Cause.NEW else None

    def continues(self, key: str, instance: str) -> bool:
        """Return whether a creation, or the deletion of this instance, is a step of the open attempt."""
        last = self.open(key)
        return bool(last and (not instance or last.instance == instance))

    def begin_attempt(self, key: str, cause: Cause, now_s: float, instance: str = "") -> None:
        """Open an attempt, or continue the open one; drop those older than a day.

        `instance`: of a node that is deleted first; the creation after that is the same attempt.
        """
        if self.continues(key, instance):
            return
        self._close(key)
        stored = [item for item in self.attempts.get(key, ()) if item.at_s > now_s - DAY_S]
        self.attempts[key] = [*stored, Attempt(now_s, key, cause, instance=instance)]

    def requested(self, key: str, zone: str, name: str) -> None:
        """Record the zone and name of the open attempt's node."""
        *before, last = self.attempts[key]
        self.attempts[key] = [*before, replace(last, zone=zone, name=name)]

    def generation(self, key: str) -> int:
        """Return the number of the node that the open attempt makes: each is greater than all before."""
        item = self.open(key)
        return int(item.at_s) if item else 0

    def placements(self, view: View, lag_s: float) -> dict[str, tuple[str, str]]:
        """Return the requested nodes that a list may not show yet, as zone and name by member.

        Also those that are there without a stack's labels: somebody has taken them, and they are billed.
        """

        def stripped(item: Attempt) -> bool:
            observed = view.node(item.name, item.zone)
            return observed is not None and "stack" not in observed.labels

        last = ((key, several[-1]) for key, several in self.attempts.items() if several)
        return {
            key: (item.zone, item.name)
            for key, item in last
            if item.name and (not item.back_s or item.back_s > view.at_s - lag_s or stripped(item))
        }

    def succeeded(self, key: str, zone: str | None, now_s: float) -> None:
        """Close the attempt of a member that exists again; `zone` granted it, None: it was there already."""
        *before, last = self.attempts[key]
        self.attempts[key] = [*before, replace(last, back_s=now_s)]
        self.refusals.pop(key, None)
        if zone:
            self.refusals.pop(zone, None)

    def failed(self, key: str, zone: str, failure: Failure, now_s: float, rng: random.Random) -> None:
        """Record a refusal, which delays the next attempt, longer each time.

        A wrong request for a member delays that member, a refusal by the zone or the project the whole zone;
        an update that didn't begin counts as none.
        """
        if self.open(key) and failure.kind not in (Kind.UNKNOWN, Kind.TRANSIENT):
            self.requested(key, "", "")  # else the node may exist
        held = key if failure.kind in OF_ONE else zone
        before = self.refusals.get(held, Refusal())
        for_people = failure.kind in FOR_PEOPLE
        if before.stopped or (before.not_before_s > now_s and not for_people):
            return  # an earlier refusal holds as long, or longer
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**before.count) * rng.uniform(0.5, 1.5)
        if failure.kind is Kind.STACK:
            wait_s = STACK_WAIT_S
        stopped = with_roles(str(failure)) if for_people else ""
        count = before.count + (failure.kind is not Kind.STACK)
        why = f"{failure.kind}: {failure.message}"
        self.refusals[held] = Refusal(count, now_s + wait_s, stopped, why, failure.kind)

    def deleted(self, keys: Collection[str]) -> None:
        """Forget members that a user deletes; their budgets stay spent."""
        for key in keys:
            self._close(key)
            self.attempts[key] = [replace(item, name="") for item in self.attempts.get(key, ())]
            self.refusals.pop(key, None)

    def withdrawn(self, key: str) -> None:
        """Drop an attempt that didn't begin, which spends nothing."""
        if (item := self.open(key)) and not item.name:
            del self.attempts[key][-1]

    def _close(self, key: str) -> None:
        """Close the open attempt before a newer one."""
        if item := self.open(key):
            self.attempts[key] = [*self.attempts[key][:-1], replace(item, back_s=item.at_s, name="")]

    def booted(self, bundle: str) -> None:
        """Record that a bundle has booted, so that later failures aren't its fault."""
        self.bundles[bundle] = ""

    def boot_failed(self, bundle: str, why: str) -> None:
        """Record the first failed boot of a bundle that hasn't booted."""
        self.bundles.setdefault(bundle, why)

    def retry_now(self) -> None:
        """Retry everything at once, as a user requests; budgets stay spent."""
        self.refusals.clear()
        self.manual = True

    def last_back(self, node: str) -> Attempt | None:
        """Return the newest attempt that gave a node."""
        return next(
            (item for item in reversed(self.attempts.get(node, ())) if item.back_s and item.name), None
        )

    def spent(self, cause: Cause, now_s: float, node: str = "") -> int:
        """Count attempts of the last day, of one member or of all."""
        several = [self.attempts.get(node, [])] if node else self.attempts.values()
        return sum(entry.cause is cause and entry.at_s > now_s - DAY_S for item in several for entry in item)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        attempts = [vars(item) for attempt in self.attempts.values() for item in attempt]
        refusals = {name: vars(item) for name, item in self.refusals.items()}
        rest = {"bundles": self.bundles, "heard_s": self.listed_s}
        return {"version": 2, "attempts": attempts, "refusals": refusals, **rest}


def _refusal(kept: Mapping[str, Any]) -> Refusal:
    kind = kept.get("kind")
    return Refusal(**{**kept, "kind": Kind(kind) if kind else None})


def parse(text: str, where: str) -> tuple[ControllerState, Mapping[str, Any]]:
    """Return the stored state, and the whole document.

    Raises:
        FleetError: it can't be read; its budgets aren't assumed to be unspent.
    """
    try:
        stored: Any = json.loads(text)
        state = ControllerState(
            refusals={str(name): _refusal(item) for name, item in stored["refusals"].items()},
            bundles={str(item): str(why) for item, why in stored["bundles"].items()},
            listed_s=float(stored.get("heard_s", 0.0)),
        )
        for entry in stored["attempts"]:
            attempt = Attempt(**{**entry, "cause": Cause(entry["cause"])})
            state.attempts.setdefault(attempt.node, []).append(attempt)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        fix = "look at it, and delete it to begin with unspent budgets"
        raise FleetError(f"{where}: can't be read: {error}\n    fix: {fix}") from None
    return state, stored
