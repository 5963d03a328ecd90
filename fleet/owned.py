"""Ad hoc fleets of one owner, which a program keeps that is no monitor, as the pipeline's function is.

The program writes the records, and at each look observes, recovers, and deletes what has ended, with the code
of `tpu fleet monitor`, unless another controller holds the lease.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from fleet.adhoc import OWNER, PHASE, WRITTEN, AdHoc, ConcurrentChangeError, Item, Phase, slices
from fleet.controller import Controller
from fleet.controller_state import ControllerState
from fleet.ending import take_down_ended
from fleet.environment import Environment, opened
from fleet.errors import FleetError
from fleet.google import Google
from fleet.observation import Observation
from fleet.request import FleetCommand
from fleet.store import LeaseHeldError
from infra.engine.prices import within_budget
from infra.engine.settings import from_file

_SETTLED_S, _POLL_S = 20.0, 2.0
_ENDING_S = 900.0  # a deletion takes minutes
_AT_ONCE = 16  # a record is a request
_LATE_S = 600.0  # after the last slice has ended: a node that was requested before may still appear
Report = Callable[[str], None]
Recovers = Callable[[ControllerState, str], bool]


@dataclass(frozen=True)
class Outcome:
    """Outcome of a look at an owner's fleets.

    Attributes:
        fleet: the owner's records and members, as they were read before it.
        observation: the last one.
        state: of the controller after it.
        leads: this program acted; else another controller did.
    """

    fleet: Environment
    observation: Observation
    state: ControllerState
    leads: bool


class OwnedFleets:
    """Ad hoc fleets of one owner; their records are read at each call."""

    def __init__(self, google: Google, stack: str, environment: str, owner: Mapping[str, str]):
        """Create a keeper; `owner`: of the records that it writes, known by its `from`."""
        self._google, self._stack, self._environment = google, stack, environment
        self.owner = {**owner}
        self._until_s = 0.0  # until which slices are looked for
        self._records = AdHoc(google, stack, environment)
        self._before: Environment | None = None

    def records(self) -> AdHoc:
        """Return a reader and writer of the environment's records."""
        return self._records.again()

    def owns(self, record: Item) -> bool:
        """Return whether a record is this owner's."""
        known = record.get(OWNER)
        return isinstance(known, dict) and known.get("from") == self.owner["from"]

    def want(self, records: AdHoc, fleets: Mapping[str, Item], items: Sequence[Item]) -> None:
        """Write the records of fleets: of all of them, or of none where they break a rule or the budget.

        Args:
            records: by which `fleets` were read.
            fleets: all that haven't ended.
            items: the fleets.

        Raises:
            SettingsError: an item breaks a rule.
            BudgetError: with them all slices exceed the budget.
            ConcurrentChangeError: there is another record of one by now; the others are written.
            FleetError: the bucket doesn't answer.
        """
        listed = slices({**fleets, **{item["name"]: item for item in items}}.values())
        within_budget(from_file(self._environment, slices=listed))
        if len(items) == 1:
            records.keep(items[0]["name"], {**items[0], OWNER: self.owner})
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            written = [pool.submit(records.keep, item["name"], {**item, OWNER: self.owner}) for item in items]
        if errors := [error for answer in written if (error := answer.exception())]:
            unexpected = [error for error in errors if not isinstance(error, FleetError)]
            raise unexpected[0] if unexpected else type(errors[0])("\n".join(map(str, errors)))

    def end(self, name: str, why: str) -> None:
        """Begin to end a fleet, unless it isn't this owner's, or isn't wanted any more."""
        records = self.records()
        record = records.record(name)
        if record is not None and self.owns(record) and record[PHASE] is Phase.WANTED:
            with suppress(ConcurrentChangeError):  # the next look reads who changed it
                records.keep(name, record, Phase.ENDING, why)

    def look(
        self,
        report: Report,
        *,
        manual: bool = False,
        recovers: Recovers | None = None,
        settled_s: float = _SETTLED_S,
        observes: bool = False,
        lists: bool = True,
    ) -> Outcome | None:
        """Observe the owner's fleets, and do what follows, unless another controller does.

        Args:
            report: receives events.
            manual: a person requests the attempts: zones that refused are retried.
            recovers: returns whether a member may be created or recovered, by the controller's state and
                its key; None: all may.
            settled_s: time in which requests are waited for.
            observes: look also beside another controller; else that is left to it.
            lists: list the records; else those are taken that `records` has just read, or `want` written.

        Returns:
            None without fleets, and beside another controller unless `observes`.

        Raises:
            FleetError: the bucket doesn't answer, or another controller has taken the lease, or doesn't
                delete what has ended.
            InfraError: the settings don't fit the records.
        """
        command, saved = FleetCommand(self._environment), self._records.again(lists=lists)
        fleet = self._before = opened(command, self._before, allow_empty=True, saved=saved)
        if any(map(self.owns, fleet.adhoc.values())):
            self._until_s = time.monotonic() + _LATE_S
        elif time.monotonic() > self._until_s:
            return None
        kept = {name: item for name, item in fleet.adhoc.items() if self.owns(item)}
        members = tuple(member for member in fleet.members if member.slice in kept)
        fleet = replace(fleet, members=members, adhoc=kept)
        controller = fleet.controller(manual=manual, brief=True)
        try:
            controller.lead()
        except LeaseHeldError as error:
            _require_ended(kept, str(error).partition("\n")[0])
            return Outcome(fleet, controller.step(), controller.state, False) if observes else None
        try:
            observation = self._settle(fleet, controller, report, recovers, settled_s)
            self._give_up(controller, observation)
            return Outcome(fleet, observation, controller.state, True)
        finally:
            controller.leave()

    @staticmethod
    def _settle(
        fleet: Environment, controller: Controller, report: Report,
        recovers: Recovers | None, settled_s: float,
    ) -> Observation:  # fmt: skip
        """Step until no request is under way, or the time is over; return the last observation."""
        until_s = time.monotonic() + settled_s
        while True:
            only = recovers and {item.key for item in fleet.members if recovers(controller.state, item.key)}
            observation = controller.step(only)
            for event in observation.events:
                report(event)
            take_down_ended(fleet, controller, observation, max(_POLL_S, until_s - time.monotonic()))
            if not controller.busy or time.monotonic() > until_s:
                return observation
            time.sleep(_POLL_S)

    def _give_up(self, controller: Controller, observation: Observation) -> None:
        """Begin to end the slices that Google refuses to create until a person acts."""
        living = {member.key for member, _ in observation.nodes}
        for member in observation.members:
            refusal = controller.state.refusal(member.key, member.zone)
            if refusal.stopped and member.key not in living:
                self.end(member.slice, refusal.why)


def _require_ended(fleets: Mapping[str, Item], leader: str) -> None:
    """Raise FleetError if the controller that leads doesn't delete fleets, as one of a part doesn't."""
    latest_s = time.time() - _ENDING_S
    if late := [
        name
        for name, item in sorted(fleets.items())
        if item[PHASE] is Phase.ENDING and float(item.get(WRITTEN) or 0.0) < latest_s
    ]:
        fix = "stop that controller, or start it without --slice and --zones"
        raise FleetError(f"{', '.join(late)}: ended, not deleted, and billed: {leader}\n    fix: {fix}")
