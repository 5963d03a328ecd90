"""Training on a slice of its own: an ad hoc fleet of one, which the function keeps as a monitor does.

The function writes the fleet's record, and once a sweep observes, recovers, and deletes what has ended, with
the code of `tpu fleet monitor`, unless another controller holds the lease.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fleet.adhoc import (
    OWNER,
    PHASE,
    STOP_WHEN_DONE,
    WHY,
    WRITTEN,
    AdHoc,
    ConcurrentChangeError,
    Phase,
    slices,
)
from fleet.controller import Controller, Observation
from fleet.environment import add, opened
from fleet.errors import FleetError
from fleet.google import Google
from fleet.model import Condition
from fleet.request import FleetCommand
from fleet.store import LeaseHeldError
from fleet.supervise import take_down_ended
from infra.engine.prices import BudgetError
from infra.engine.settings import from_file
from infra.errors import SettingsError
from infra.google.failures import FOR_PEOPLE, Failure, Kind
from infra.layers.pipeline import handoff, paths
from infra.layers.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings
from pipeline.decide import Progress, Training
from pipeline.record import Run
from pipeline.training import Description, TrainingError

_SETTLED_S, _POLL_S = 20.0, 2.0
_ENDING_S = 900.0  # a deletion takes minutes
_LATE_S = 600.0  # after the last slice has ended: a node that was requested before may still appear


class SliceTrainer:
    """Ad hoc fleets of one slice; their records are read at each call."""

    def __init__(self, settings: Settings, google: Google, stack: str):
        self._settings, self._google, self._stack = settings, google, stack
        self._owner = {
            "who": paths.account(settings, paths.ORCHESTRATOR), "from": f"pipeline {settings.environment}"
        }  # fmt: skip
        self._until_s = 0.0  # until which slices are looked for
        self._unseen: Failure | None = None  # by the last look at slices
        self._requested = False  # a person's submission or retry has started training since the last look

    def described(self, run: Run) -> Description:
        """See `Trainer`."""
        name, desired = run.training_name, self._settings[PipelineSettings]
        ended_by = f"tpu fleet delete {self._settings.environment} --slice {name}"
        return Description(f"slice {name} ({desired.train_slice}, {desired.train_zone})", ended_by)

    def start(self, run: Run) -> None:
        """See `Trainer`."""
        records, name, item = self._records(), run.training_name, self._item(run)
        fleets: Mapping[str, Mapping[str, Any]] = records.read()
        if self._started(records, name):
            return
        try:
            listed = slices({**fleets, name: item}.values())
            settings = from_file(self._settings.environment, slices=listed)
        except SettingsError as error:
            raise TrainingError("refused", str(error)) from None
        try:
            add(settings, records, item)
            self._requested = True
        except BudgetError as error:
            raise TrainingError("too_dear", str(error)) from None
        except ConcurrentChangeError:
            if not self._started(records, name):
                raise

    def look(self, run: Run) -> Training | None:
        """See `Trainer`."""
        record = self._records().record(run.training_name)
        if record is None or not self._owns(record):
            return None
        logs = f"tpu logs {self._settings.environment} {run.training_name}"
        why = str(record.get(WHY) or "")
        if record[PHASE] is not Phase.ENDED:
            return Training(Progress.RUNNING, why, logs, unseen=self._unseen)
        if why == Condition.DONE:
            return Training(Progress.DONE, why, logs)
        if refusal := _refusal(record):
            return Training(Progress.REFUSED, why.partition(": ")[2], logs, refusal)
        failed = why.startswith(Condition.FAILED)
        return Training(Progress.FAILED if failed else Progress.ENDED, why, logs)

    def end(self, run: Run, why: str) -> None:
        """See `Trainer`."""
        records = self._records()
        record = records.record(run.training_name)
        if record is not None and self._owns(record) and record[PHASE] is Phase.WANTED:
            try:
                records.keep(run.training_name, record, Phase.ENDING, why)
            except ConcurrentChangeError:
                return  # the next sweep reads who changed it

    def keep(self, report: Callable[[str], None]) -> None:
        """Observe the pipeline's fleets, and do what follows, unless another controller does.

        Raises:
            FleetError: the bucket doesn't answer, or another controller has taken the lease, or doesn't
                delete what has ended.
            InfraError: the settings don't fit the records.
        """
        fleet = opened(FleetCommand(self._settings.environment), allow_empty=True)
        if any(map(self._owns, fleet.adhoc.values())):
            self._until_s = time.monotonic() + _LATE_S
        elif time.monotonic() > self._until_s:
            return
        kept = {name: item for name, item in fleet.adhoc.items() if self._owns(item)}
        members = tuple(member for member in fleet.members if member.slice in kept)
        fleet = replace(fleet, members=members, adhoc=kept)
        try:
            controller = fleet.controller(lead=True, manual=self._requested)
        except LeaseHeldError as error:
            self._unseen = None  # that controller's
            self._require_ended(kept, str(error).partition("\n")[0])
            return
        self._requested, self._unseen = False, None
        try:
            until_s = time.monotonic() + _SETTLED_S
            while True:
                observation = controller.step()
                for event in observation.events:
                    report(event)
                take_down_ended(fleet, controller, observation, max(_POLL_S, until_s - time.monotonic()))
                if not controller.busy or time.monotonic() > until_s:
                    self._unseen = _unseen(observation)
                    self._give_up(controller, observation)
                    return
                time.sleep(_POLL_S)
        finally:
            controller.leave()

    @staticmethod
    def _require_ended(fleets: Mapping[str, Mapping[str, Any]], leader: str) -> None:
        """Raise FleetError if the controller that leads doesn't delete fleets, as one of a part doesn't."""
        latest_s = time.time() - _ENDING_S
        if late := [
            name
            for name, item in sorted(fleets.items())
            if item[PHASE] is Phase.ENDING and float(item.get(WRITTEN) or 0.0) < latest_s
        ]:
            fix = "stop that controller, or start it without --slice and --zones"
            raise FleetError(f"{', '.join(late)}: ended, not deleted, and billed: {leader}\n    fix: {fix}")

    def _give_up(self, controller: Controller, observation: Observation) -> None:
        """Begin to end the slices that Google refuses to create until a person acts."""
        living = {member.key for member, _ in observation.nodes}
        for member in observation.members:
            refusal = controller.state.refusal(member.key, member.zone)
            if not refusal.stopped or member.key in living:
                continue
            records = self._records()
            record = records.record(member.slice)
            if record is not None and record[PHASE] is Phase.WANTED:
                with suppress(ConcurrentChangeError):  # the next sweep reads who changed it
                    records.keep(member.slice, record, Phase.ENDING, refusal.why)

    def _started(self, records: AdHoc, name: str) -> bool:
        """Return whether the pipeline has such a record, and Google didn't refuse its slice.

        Raises TrainingError if somebody else has it.
        """
        record = records.record(name)
        if record is not None and not self._owns(record):
            raise TrainingError("conflict", f"a fleet {name} is there already, and isn't the pipeline's")
        return record is not None and not _refusal(record)

    def _records(self) -> AdHoc:
        return AdHoc(self._google, self._stack, self._settings.environment)

    def _owns(self, record: Mapping[str, Any]) -> bool:
        known = record.get(OWNER)
        return isinstance(known, dict) and known.get("from") == self._owner["from"]

    def _item(self, run: Run) -> dict[str, Any]:
        """Return the fleet, as `tpu run` describes one."""
        desired, member = self._settings[PipelineSettings], handoff.node(self._settings, run.run, run.folder)
        return {
            "name": run.training_name, "acceleratorType": desired.train_slice, "zones": [member.zone],
            "count": 1, "spot": desired.train_spot, "run": member.run, "bundle": member.bundle,
            STOP_WHEN_DONE: True, OWNER: self._owner,
        }  # fmt: skip


def _unseen(observation: Observation) -> Failure | None:
    """Return why a zone, or what hosts report, couldn't be read; None if all was."""
    zones = {member.zone for member in observation.members}
    failures = [observation.view.zones[zone].failure for zone in sorted(zones & {*observation.view.zones})]
    return next(filter(None, [*failures, observation.view.failure]), None)


def _refusal(record: Mapping[str, Any]) -> Kind | None:
    """Return the kind of the refusal that ended a fleet; None if it is wanted or has ended otherwise."""
    kind = str(record.get(WHY) or "").partition(": ")[0]
    return Kind(kind) if record[PHASE] is Phase.ENDED and kind in FOR_PEOPLE else None
