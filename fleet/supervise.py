"""Supervise an ad hoc fleet that runs a program: create, recover, and delete it when the program has ended.

Who supervises holds the controller's lease only while there is something to do. So several may, and a monitor
beside them: where that holds the lease, it acts, and this only looks.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from fleet.adhoc import STOP_WHEN_DONE, AdHoc, slices
from fleet.controller import Controller, Observation
from fleet.deletion import delete_nodes
from fleet.environment import Environment, google_of
from fleet.errors import FleetError
from fleet.model import Action, Condition, Decision, ObservedNode
from fleet.roster import members
from fleet.show import unanswered
from fleet.store import BucketStore, LeaseHeldError, UnreachableError
from infra.engine.named import read_stack
from infra.engine.settings import from_file
from infra.errors import InfraError

Say = Callable[[str], None]

_LEASE_PAUSE_S = 5.0
# What may differ in a fleet that is there: its hosts take it over without being recreated.
_CHANGEABLE = ("bundle", "run", STOP_WHEN_DONE)


def over(decisions: Collection[Decision]) -> bool:
    """Return whether a program has ended: on every node, or failed permanently on one."""
    failed = any(one.condition is Condition.FAILED and one.status and one.status.final for one in decisions)
    return failed or (bool(decisions) and all(one.condition is Condition.DONE for one in decisions))


class Supervisor:
    """Of one fleet, which it adds to those that stand in no file.

    Attributes:
        fleet: its members, and what they are made by.
        before: the fleet of this name that was there; None where there was none.
    """

    def __init__(self, environment: str, item: Mapping[str, Any], say: Say):
        """Read the present state; change nothing.

        Raises:
            FleetError: one of its name is there, of other slices.
            InfraError: the settings, the stack or the bucket.
        """
        self._item, self._say = dict(item), say
        settings = from_file(environment)
        google, stack = google_of(settings), read_stack(environment)
        self._saved = AdHoc(google, stack.id)
        others = self._saved.read()
        self.before = others.pop(self._item["name"], None)
        if self.before is not None and _shape(self.before) != _shape(self._item):
            name, shape = self._item["name"], json.dumps(_shape(self.before))
            fix = f"--name ANOTHER, or tpu fleet delete {environment} --slice {name}"
            raise FleetError(f"{name} is there already, of other slices: {shape}\n    fix: {fix}")
        found = {**others, self._item["name"]: self._item}
        settings = from_file(environment, slices=slices(found.values()))
        self.fleet = Environment(settings, members(settings, [self._item["name"]]), google, stack, found)
        self._controller: Controller | None = None
        self._told: dict[str, str] = {}
        self._ended: dict[str, float] = {}  # by node, the status of a program that had ended before

    @property
    def changed(self) -> bool:
        """True if existing hosts run another bundle or command."""
        return self.before is not None and any(
            self.before.get(key) != self._item.get(key) for key in ("bundle", "run")
        )

    def keep(self) -> None:
        """Store the fleet, so that every command knows it and a monitor keeps it."""
        self._saved.keep(self._item["name"], self._item)

    def living(self) -> tuple[list[ObservedNode], bool]:
        """Its nodes that are READY, and whether their program has ended, which `over` then ignores."""
        observation = self.fleet.watcher(updates=False).step(may=())
        ready = [observed for _, observed in observation.nodes if observed.state == "READY"]
        ended = bool(ready) and over(observation.decisions)
        if ended or self.changed:
            self._ended = {one.node: one.status.at_s for one in observation.decisions if one.status}
        return ready, ended

    def step(self) -> Observation:
        """Observe and act once; print changes."""
        if self._controller is None:
            observation = self.fleet.watcher().step(may=())
            if _due(observation):
                self._take_lease()
        if self._controller is not None:
            try:
                observation = self._controller.step()
            except LeaseHeldError as error:  # this machine slept, say, and another took it over
                self._controller = None
                self._tell_once("lease", _headline(error))
                return self.step()
            if not self._controller.busy and not _due(observation):
                self.leave()
        self._tell(observation)
        return observation

    def over(self, observation: Observation) -> bool:
        """Return whether its program has ended."""
        fresh = [
            one for one in observation.decisions
            if not (one.status and one.status.at_s <= self._ended.get(one.node, 0.0))
        ]  # fmt: skip
        return len(fresh) == len(observation.decisions) and over(fresh)

    def leave(self) -> None:
        """Release the lease, if held; the slice stays."""
        if self._controller is not None:
            self._controller.leave()
            self._controller = None

    def take_down(self) -> None:
        """Delete its nodes and forget it; wait for the lease, unless a monitor deletes it meanwhile."""
        self.leave()
        name = self._item["name"]
        there = [observed for _, observed in self._answered().nodes]
        store = BucketStore(self.fleet.google, self.fleet.stack.id)
        while True:
            try:
                state = store.read()
                break
            except LeaseHeldError as error:
                self._tell_once("lease", _headline(error))
            time.sleep(_LEASE_PAUSE_S)
            if name not in self._saved.read():
                return
        try:
            keys = [one.key for one in self.fleet.members]
            _, failed = delete_nodes(self.fleet.google, store, state, keys, there, self._say)
        finally:
            with suppress(InfraError):
                store.write(state, renew=False)
        if failed:
            raise FleetError(f"{', '.join(failed)}: not deleted, and billed\n    fix: tpu fleet delete again")
        self._saved.keep(name, None)

    def _answered(self) -> Observation:
        """Observe until every zone answers: an unseen node would be forgotten, and billed."""
        while unanswered(observation := self.fleet.watcher().step(may=())):
            self._tell_once("silent", "; ".join(unanswered(observation)))
            time.sleep(_LEASE_PAUSE_S)
        return observation

    def _take_lease(self) -> None:
        try:
            self._controller = self.fleet.controller()
        except LeaseHeldError as error:
            self._tell_once("lease", f"{_headline(error)}: it acts, this only looks")
        except UnreachableError as error:  # asked again at the next look
            self._tell_once("lease", _headline(error))

    def _tell(self, observation: Observation) -> None:
        events = [event for event in observation.events if "->" not in event] if self._controller else []
        for event in events:
            self._say(event)
        for one in observation.decisions:
            why = f" ({one.why.partition(chr(10))[0]})" if one.why else ""
            condition = f"{one.node}: {one.condition}{why}"
            if events:
                self._told[one.member.key] = condition  # the event has said as much
            self._tell_once(one.member.key, condition)
        self._tell_once("silent", "; ".join(unanswered(observation)))

    def _tell_once(self, key: str, what: str) -> None:
        if what != self._told.get(key, ""):
            self._told[key] = what
            if what:
                self._say(what)


def take_down_ended(fleet: Environment, controller: Controller, observation: Observation, say: Say) -> None:
    """Delete ad hoc fleets whose program has ended, if they are to stop when done."""
    for name, item in fleet.adhoc.items():
        mine = [one for one in observation.decisions if one.member.slice == name]
        if not item.get(STOP_WHEN_DONE) or len(mine) != item.get("count") or not over(mine):
            continue
        keys = {one.member.key for one in mine}
        there = [observed for node, observed in observation.nodes if node.key in keys]
        say(f"{name}: its program has ended: deleted")
        _, failed = delete_nodes(fleet.google, controller.store, controller.state, keys, there, say)
        if not failed:
            AdHoc(fleet.google, fleet.stack.id).keep(name, None)


def _due(observation: Observation) -> bool:
    acts = any(one.cause and one.action in (Action.CREATE, Action.REPLACE) for one in observation.decisions)
    return acts or bool(observation.outdated)


def _shape(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in _CHANGEABLE}


def _headline(error: FleetError) -> str:
    """Return the problem without its fix."""
    return str(error).partition("\n")[0]
