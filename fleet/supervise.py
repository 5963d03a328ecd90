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

Report = Callable[[str], None]

_LEASE_PAUSE_S = 5.0
# What may differ in a fleet that is there: its hosts take it over without being recreated.
_CHANGEABLE = ("bundle", "run", STOP_WHEN_DONE)


def over(decisions: Collection[Decision]) -> bool:
    """Return whether a program has ended: on every node, or failed permanently on one."""
    failed = any(
        decision.condition is Condition.FAILED and decision.status and decision.status.final
        for decision in decisions
    )
    return failed or (bool(decisions) and all(decision.condition is Condition.DONE for decision in decisions))


class Supervisor:
    """Of one fleet, which it adds to those that stand in no file.

    Attributes:
        fleet: its members, and what they are made by.
        before: the fleet of this name that was there; None where there was none.
    """

    def __init__(self, environment: str, item: Mapping[str, Any], report: Report):
        """Read the present state; change nothing.

        Raises:
            FleetError: one of its name is there, of other slices.
            InfraError: the settings, the stack or the bucket.
        """
        self._item, self._report = dict(item), report
        settings = from_file(environment)
        google, stack = google_of(settings), read_stack(environment)
        self._saved = AdHoc(google, stack.id)
        others = self._saved.read()
        self.before = others.pop(self._item["name"], None)
        if self.before is not None and _shape(self.before) != _shape(self._item):
            name, shape = self._item["name"], json.dumps(_shape(self.before))
            fix = f"--name ANOTHER, or tpu fleet delete {environment} --slice {name}"
            raise FleetError(f"{name} is there already, of other slices: {shape}\n    fix: {fix}")
        mapping = {**others, self._item["name"]: self._item}
        settings = from_file(environment, slices=slices(mapping.values()))
        self.fleet = Environment(settings, members(settings, [self._item["name"]]), google, stack, mapping)
        self._controller: Controller | None = None
        self._reported: dict[str, str] = {}
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
            self._ended = {
                decision.node: decision.status.at_s for decision in observation.decisions if decision.status
            }
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
        self._report_changes(observation)
        return observation

    def over(self, observation: Observation) -> bool:
        """Return whether its program has ended."""
        fresh = [
            decision for decision in observation.decisions
            if not (decision.status and decision.status.at_s <= self._ended.get(decision.node, 0.0))
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
        observeds = [observed for _, observed in self._answered().nodes]
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
            keys = [member.key for member in self.fleet.members]
            _, failed = delete_nodes(self.fleet.google, store, state, keys, observeds, self._report)
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

    def _report_changes(self, observation: Observation) -> None:
        events = [event for event in observation.events if "->" not in event] if self._controller else []
        for event in events:
            self._report(event)
        for decision in observation.decisions:
            why = f" ({decision.why.partition(chr(10))[0]})" if decision.why else ""
            condition = f"{decision.node}: {decision.condition}{why}"
            if events:
                self._reported[decision.member.key] = condition  # the event has said as much
            self._tell_once(decision.member.key, condition)
        self._tell_once("silent", "; ".join(unanswered(observation)))

    def _tell_once(self, key: str, what: str) -> None:
        if what != self._reported.get(key, ""):
            self._reported[key] = what
            if what:
                self._report(what)


def take_down_ended(
    fleet: Environment, controller: Controller, observation: Observation, report: Report
) -> None:
    """Delete ad hoc fleets whose program has ended, if they are to stop when done."""
    for name, item in fleet.adhoc.items():
        mine = [decision for decision in observation.decisions if decision.member.slice == name]
        if not item.get(STOP_WHEN_DONE) or len(mine) != item.get("count") or not over(mine):
            continue
        keys = {item.member.key for item in mine}
        observeds = [observed for node, observed in observation.nodes if node.key in keys]
        report(f"{name}: its program has ended: deleted")
        _, failed = delete_nodes(fleet.google, controller.store, controller.state, keys, observeds, report)
        if not failed:
            AdHoc(fleet.google, fleet.stack.id).keep(name, None)


def _due(observation: Observation) -> bool:
    acts = any(
        decision.cause and decision.action in (Action.CREATE, Action.REPLACE)
        for decision in observation.decisions
    )
    return acts or bool(observation.outdated)


def _shape(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in _CHANGEABLE}


def _headline(error: FleetError) -> str:
    """Return the problem without its fix."""
    return str(error).partition("\n")[0]
