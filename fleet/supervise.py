"""Supervise an ad hoc fleet that runs a program: create, recover, and delete it when the program has ended.

A supervisor holds the lease only while there is something to do, so that several can run beside a monitor; it
only observes while another controller acts.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from fleet.adhoc import (
    OWNER,
    PHASE,
    REPLACING,
    SINCE,
    STOP_WHEN_DONE,
    WHY,
    AdHoc,
    Item,
    Phase,
    held,
    owner,
    replaced,
    require_down,
    require_same_slices,
    slices,
)
from fleet.controller import Controller
from fleet.ending import disputed, over, start_s
from fleet.environment import Environment, google_of, require_read, selected, with_records
from fleet.errors import FleetError, FleetInputError
from fleet.model import Action, Condition, ObservedNode
from fleet.observation import Observation
from fleet.removal import delete_nodes, of_fleet
from fleet.request import FleetCommand
from fleet.show import unanswered
from fleet.store import LeaseHeldError, UnreachableError
from infra.engine.named import read_stack
from infra.engine.settings import from_file
from infra.slices.nodes import Node

Report = Callable[[str], None]

_LEASE_PAUSE_S = 5.0
_COMMANDED = ("run", "image", "env", "secrets")
_PROGRAM = ("bundle", *_COMMANDED)
"""Keys by which programs differ; without the bundle until it is built."""


class EndedError(FleetError):
    """The fleet isn't wanted any more, or is another command's: this one creates nothing.

    Attributes:
        done: the program had ended with status 0.
    """

    def __init__(self, text: str, done: bool = False):
        super().__init__(text)
        self.done = done


class Supervisor:
    """Supervisor of one ad hoc fleet.

    Attributes:
        fleet: the environment, restricted to its members.
        before: the earlier fleet of this name; None: there was none.
        phase: of its record, as this command knows it; None: there is no record yet.
        nodes: those that exist, by the last look.
    """

    def __init__(self, environment: str, item: Mapping[str, Any], report: Report):
        """Read the present state; change nothing.

        Raises:
            FleetError: a fleet of this name has other slices, or a record that can't be followed.
            InfraError: the settings, the stack or the bucket can't be read.
        """
        self._item, self._report = dict(item), report
        name = self._item["name"]
        settings = from_file(environment)
        google, stack = google_of(settings), read_stack(environment)
        self._saved = AdHoc(google, stack.id, environment)
        _, fleets, unread = with_records(settings, self._saved)
        require_read(unread, [name])
        self.before = fleets.get(name)
        if self.before is not None:
            require_same_slices(environment, self.before, self._item, "--name")
        else:
            require_down(environment, name, stack.slices, "--name")
        fleets[name] = self._item
        settings = from_file(environment, slices=slices(fleets.values()))
        members = selected(settings, FleetCommand(environment, (name,)))
        self.fleet = Environment(settings, members, google, stack, fleets, self._saved, unread)
        self.phase = Phase.WANTED if self.before else None
        self.nodes: Sequence[tuple[Node, ObservedNode]] = ()
        self._reported: dict[str, str] = {}
        self._rebundled = False
        self._since_s = 0.0  # time of an earlier program's last status

    @cached_property
    def _controller(self) -> Controller:
        return self.fleet.controller()

    @property
    def changed(self) -> bool:
        """True if existing hosts run another bundle or command, or may do so after an interruption."""
        before = self.before
        return before is not None and (
            not _same_program(before, self._item) or bool(before.get(REPLACING) and self._mine)
        )

    @property
    def rebundled(self) -> bool:
        """True if this program changes nothing but the bundle in the metadata that `living` has seen."""
        return self.changed and self._rebundled and not (self.before or {}).get(REPLACING)

    @cached_property
    def _mine(self) -> bool:
        """True if the earlier fleet of this name is this login's."""
        return self.before is not None and self.before.get(OWNER) == self.fleet.google.caller()

    def require_free(self, replace: bool, bundle: str | None = None) -> None:
        """Refuse to end another program without `replace`, unless it is this login's and has ended.

        Args:
            replace: take the fleet over from whoever has it.
            bundle: in place of the item's; empty: it isn't built, and isn't compared.

        Raises:
            FleetInputError: whose the fleet is, what it runs, and the fix.
        """
        before = self.before
        item = self._item if bundle is None else {**self._item, "bundle": bundle}
        keys = _COMMANDED if bundle == "" else _PROGRAM
        if replace or before is None or all(before.get(key) == item.get(key) for key in keys):
            return
        if self._mine and self.living()[1]:
            return
        whose = "this one is another program" if self._mine else "this one isn't its owner's"
        fix = "--name ANOTHER, or --replace, which ends that program and takes the slice over"
        raise FleetInputError(f"{held(before)}; {whose}\n    fix: {fix}")

    def keep(self) -> None:
        """Store the fleet, so that every command knows it; leave the same program of another as it is.

        Raises:
            ConcurrentChangeError: there is another record by now.
            InfraError: with it all slices exceed the budget; nothing was written.
        """
        before, adhoc, name = self.before, self.fleet.adhoc, self._item["name"]
        record = dict(replaced(before, self._item) if before else self._item)
        if before and not self.changed:
            others = not self._mine
            record = dict(before) if others else record
            if not self._since_s and (others or before.get(STOP_WHEN_DONE) == record.get(STOP_WHEN_DONE)):
                adhoc[name] = before
                self.phase = Phase.WANTED
                return
        if self._since_s:
            record[SINCE] = self._since_s
        if self.changed:
            record[REPLACING] = True
        adhoc[name] = record
        self.fleet.add(name)
        self.phase = Phase.WANTED

    def settle(self) -> None:
        """Record that the hosts run this program; left for the next call if the bucket doesn't answer."""
        record = dict(self.fleet.adhoc[self._item["name"]])
        if record.pop(REPLACING, False):
            with suppress(FleetError):
                self.fleet.adhoc[self._item["name"]] = self._saved.keep(self._item["name"], record)

    def applied(self, observation: Observation) -> bool:
        """Return whether the label `spec` of each node, updated with its metadata, is this program's."""
        nodes = observation.nodes
        return all(observed.labels.get("spec") == self.fleet.spec(member) for member, observed in nodes)

    @property
    def blocked(self) -> str:
        """Reason for which no node's metadata is updated until a user acts; empty: it isn't so."""
        (member,), state = self.fleet.members, self._controller.state
        if why := state.bundles.get(member.bundle_label):
            return f"no node has booted with the bundle {member.bundle_label}: {why}"
        return state.refusal(member.key, member.key).stopped

    def living(self, *, patient: bool = False) -> tuple[list[ObservedNode], bool]:
        """Return the READY nodes, and whether their program has ended, which `over` then ignores.

        Args:
            patient: look for nodes that run another program until one is seen, or every zone answers.
        """
        observation = self._look()
        while patient and self.changed and not observation.nodes and unanswered(observation):
            self._report_once("silent", "; ".join(unanswered(observation)))
            time.sleep(_LEASE_PAUSE_S)
            observation = self._look()
        ready = [observed for _, observed in observation.nodes if observed.state == "READY"]
        bundle = (self.before or {}).get("bundle")
        self._rebundled = bool(observation.nodes) and all(
            observed.labels.get("spec") == self.fleet.body(replace(member, bundle=bundle))["labels"]["spec"]
            for member, observed in observation.nodes
        )
        claims = over(observation.decisions, self._present_since_s) if ready else {}
        ended = bool(claims) and not disputed(self.fleet, claims, observation.view.at_s)
        if ended or self.changed:
            statuses = (decision.status for decision in observation.decisions if decision.status)
            self._since_s = max(map(start_s, statuses), default=0.0)
        return ready, ended

    def step(self) -> Observation:
        """Observe and act once; report changes.

        Raises:
            EndedError: the record doesn't want this fleet any more.
        """
        controller = self._controller
        if not controller.leads:
            observation = self._look()
            if _due(observation):
                self._take_lease()
        if controller.leads:
            try:
                observation = self._look()
            except LeaseHeldError as error:  # another controller took it, as after a sleep of this machine
                self._report_once("lease", _headline(error))
                return self.step()
        if observation.unwanted:
            self.require_wanted()
        self._report_changes(observation)
        if not controller.busy and not _due(observation):
            self.leave()
        return observation

    def require_wanted(self) -> None:
        """Raise EndedError unless the record is this command's; a bucket that doesn't answer says nothing."""
        try:
            phase, why = self._recorded()
        except EndedError:
            raise
        except FleetError:
            return
        done = why == Condition.DONE
        if phase is Phase.ENDED:
            raise EndedError(f"it was ended elsewhere ({why}): nothing is created", done)
        if phase is Phase.ENDING:
            fix = f"tpu fleet delete {self.fleet.settings.environment} --slice {self._item['name']}"
            text = f"it is being ended elsewhere ({why}): nothing is created; should that have died: {fix}"
            raise EndedError(text, done)

    def _recorded(self) -> tuple[Phase, str]:
        """Return the phase of its record, and the reason of its end.

        Raises:
            EndedError: the record is of another command's program.
            FleetError: it can't be read.
        """
        record = self._saved.record(self._item["name"])
        if record is None:
            return Phase.ENDED, "its record is gone"
        if record[PHASE] is Phase.WANTED and not _same_program(record, self._item):
            raise EndedError(f"it has another program now, of {owner(record)}, and is left to that")
        self.fleet.adhoc[self._item["name"]] = record
        return record[PHASE], record.get(WHY) or "without a reason"

    @property
    def _present_since_s(self) -> float:
        return max(self._since_s, float((self.before or {}).get(SINCE) or 0.0), self._recorded_since_s)

    @property
    def _recorded_since_s(self) -> float:
        return float(self.fleet.adhoc[self._item["name"]].get(SINCE) or 0.0)

    def over(self, observation: Observation) -> bool:
        """Return whether its program has ended, by statuses that are proven."""
        if not (claims := over(observation.decisions, self._present_since_s)):
            return False
        why = disputed(self.fleet, claims, observation.view.at_s)
        delete = f"tpu fleet delete {self.fleet.settings.environment} --slice {self._item['name']}"
        self._report_once("disputed", why and f"{why}\n    fix: if its output shows the end, {delete}")
        return not why

    def leave(self) -> None:
        """Release the lease, if held; the slice stays."""
        self._controller.leave()

    def take_down(self, why: str) -> None:
        """Delete its nodes and end it; wait for the lease, unless a monitor ends it meanwhile.

        Args:
            why: reason of the end.

        Raises:
            EndedError: the record is another command's by now.
            FleetError: a node can't be deleted.
        """
        self.leave()
        name, controller, since_s = self._item["name"], self._controller, self._recorded_since_s
        while True:
            leads = self._take_lease()
            if self._recorded()[0] is Phase.ENDED:
                self.phase = Phase.ENDED
                return
            if self._recorded_since_s != since_s:
                raise EndedError("it was started again, by another command, and is left to that")
            if leads:
                # Every zone has to answer: an unseen node would be forgotten, and billed.
                observation = self._look(only=())
                self._report_once("silent", "; ".join(unanswered(observation)))
                if not unanswered(observation):
                    break
                self.leave()
            time.sleep(_LEASE_PAUSE_S)
        self.phase, nodes = Phase.ENDING, of_fleet(observation, name)
        try:
            keys = [member.key for member in self.fleet.members]
            view, ends = observation.view, {name: why}
            _, failed = delete_nodes(self.fleet, controller, view, keys, nodes, self._report, ends)
        finally:
            controller.leave()
        if failed:
            raise FleetError(f"{', '.join(failed)}: not deleted, and billed\n    fix: tpu fleet delete again")
        self.phase = Phase.ENDED

    @property
    def requested(self) -> bool:
        """True while a request for its node is under way."""
        return self._controller.busy

    def _look(self, only: Collection[str] | None = None) -> Observation:
        observation = self._controller.step(only)
        self.nodes = observation.nodes
        return observation

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


def _due(observation: Observation) -> bool:
    acts = any(
        decision.cause and decision.action in (Action.CREATE, Action.REPLACE)
        for decision in observation.decisions
    )
    return acts or bool(observation.outdated)


def _same_program(record: Item, item: Item) -> bool:
    """Return whether a record's program is an item's."""
    return all(record.get(key) == item.get(key) for key in _PROGRAM)


def _headline(error: FleetError) -> str:
    """Return the problem without its fix."""
    return str(error).partition("\n")[0]
