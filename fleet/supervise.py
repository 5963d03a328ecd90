"""Supervise an ad hoc fleet that runs a program: create, recover, and delete it when the program has ended.

A supervisor holds the lease only while there is something to do, so that several can run beside a monitor; it
only observes while another controller acts.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any

from fleet.adhoc import STOP_WHEN_DONE, AdHoc, slices
from fleet.controller import Controller, Observation
from fleet.environment import Environment, google_of, selected
from fleet.errors import FleetError
from fleet.model import Action, Condition, Decision, ObservedNode
from fleet.removal import delete_nodes
from fleet.request import FleetCommand
from fleet.show import unanswered
from fleet.store import LeaseHeldError, UnreachableError
from infra.engine.named import read_stack
from infra.engine.settings import from_file

Report = Callable[[str], None]

_LEASE_PAUSE_S = 5.0
# Keys that may differ from the existing fleet's: hosts apply them without being recreated.
_CHANGEABLE = ("bundle", "run", STOP_WHEN_DONE)


def over(decisions: Collection[Decision]) -> bool:
    """Return whether a program has ended: on every node, or failed permanently on one."""
    failed = any(
        decision.condition is Condition.FAILED and decision.status and decision.status.final
        for decision in decisions
    )
    return failed or (bool(decisions) and all(decision.condition is Condition.DONE for decision in decisions))


class Supervisor:
    """Supervisor of one ad hoc fleet.

    Attributes:
        fleet: the environment, restricted to its members.
        before: the earlier fleet of this name; None: there was none.
    """

    def __init__(self, environment: str, item: Mapping[str, Any], report: Report):
        """Read the present state; change nothing.

        Raises:
            FleetError: a fleet of this name has other slices.
            InfraError: the settings, the stack or the bucket can't be read.
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
            raise FleetError(f"{name} exists already, with other slices: {shape}\n    fix: {fix}")
        fleets = {**others, self._item["name"]: self._item}
        settings = from_file(environment, slices=slices(fleets.values()))
        members = selected(settings, FleetCommand(environment, (self._item["name"],)))
        self.fleet = Environment(settings, members, google, stack, fleets)
        self._reported: dict[str, str] = {}
        self._ended: dict[str, float] = {}  # by node, the time of an earlier program's last status

    @cached_property
    def _controller(self) -> Controller:
        return self.fleet.controller()

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
        """Return the READY nodes, and whether their program has ended, which `over` then ignores."""
        observation = self._controller.step()
        ready = [observed for _, observed in observation.nodes if observed.state == "READY"]
        ended = bool(ready) and over(observation.decisions)
        if ended or self.changed:
            self._ended = {
                decision.node: decision.status.at_s for decision in observation.decisions if decision.status
            }
        return ready, ended

    def step(self) -> Observation:
        """Observe and act once; report changes."""
        controller = self._controller
        if not controller.leads:
            observation = controller.step()
            if _due(observation):
                self._take_lease()
        if controller.leads:
            try:
                observation = controller.step()
            except LeaseHeldError as error:  # another controller took it, as after a sleep of this machine
                self._report_once("lease", _headline(error))
                return self.step()
        self._report_changes(observation)
        if not controller.busy and not _due(observation):
            self.leave()
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
        self._controller.leave()

    def take_down(self) -> None:
        """Delete its nodes and forget it; wait for the lease, unless a monitor deletes it meanwhile."""
        self.leave()
        name, controller = self._item["name"], self._controller
        # Every zone has to answer: an unseen node would be forgotten, and billed.
        while unanswered(observation := controller.step()):
            self._report_once("silent", "; ".join(unanswered(observation)))
            time.sleep(_LEASE_PAUSE_S)
        nodes = [observed for _, observed in observation.nodes]
        while not self._take_lease():
            time.sleep(_LEASE_PAUSE_S)
            if name not in self._saved.read():
                return
        try:
            keys = [member.key for member in self.fleet.members]
            _, failed = delete_nodes(self.fleet.google, controller, keys, nodes, self._report)
        finally:
            controller.leave()
        if failed:
            raise FleetError(f"{', '.join(failed)}: not deleted, and billed\n    fix: tpu fleet delete again")
        self._saved.keep(name, None)

    def _take_lease(self) -> bool:
        try:
            self._controller.lead()
        except (LeaseHeldError, UnreachableError) as error:
            self._report_once("lease", _headline(error))
        return self._controller.leads

    def _report_changes(self, observation: Observation) -> None:
        leads = self._controller.leads
        events = [event for event in observation.events if leads and "->" not in event]
        for event in events:
            self._report(event)
        for decision in observation.decisions:
            why = f" ({decision.why.partition(chr(10))[0]})" if decision.why else ""
            condition = f"{decision.node}: {decision.condition}{why}"
            if events and decision.action in (Action.CREATE, Action.REPLACE):
                self._reported[decision.member.key] = condition  # the event says it
            self._report_once(decision.member.key, condition)
        self._report_once("silent", "; ".join(unanswered(observation)))

    def _report_once(self, key: str, text: str) -> None:
        if text != self._reported.get(key, ""):
            self._reported[key] = text
            if text:
                self._report(text)


def take_down_ended(fleet: Environment, controller: Controller, observation: Observation) -> None:
    """Delete ad hoc fleets whose program has ended, if they are to stop when done."""
    for name, item in fleet.adhoc.items():
        decisions = [decision for decision in observation.decisions if decision.member.slice == name]
        if not item.get(STOP_WHEN_DONE) or len(decisions) != item.get("count") or not over(decisions):
            continue
        keys = {decision.member.key for decision in decisions}
        nodes = [observed for member, observed in observation.nodes if member.key in keys]
        controller.note(f"{name}: its program has ended: deleted")
        _, failed = delete_nodes(fleet.google, controller, keys, nodes, controller.note)
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
