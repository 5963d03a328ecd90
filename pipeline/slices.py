"""Training on a slice of its own: an ad hoc fleet of one, which the function keeps as a monitor does.

The function writes the fleet's record; once a sweep fleet/owned.py does the rest.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fleet.adhoc import PHASE, STOP_WHEN_DONE, WHY, AdHoc, ConcurrentChangeError, Phase
from fleet.google import Google
from fleet.model import Condition
from fleet.observation import Observation
from fleet.owned import OwnedFleets
from infra.engine.prices import BudgetError
from infra.errors import SettingsError
from infra.google.failures import FOR_PEOPLE, Failure, Kind
from infra.layers.pipeline import handoff, paths
from infra.layers.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings
from pipeline.decide import Progress, Training
from pipeline.record import Run
from pipeline.training import Description, TrainingError


class SliceTrainer:
    """Ad hoc fleets of one slice; their records are read at each call."""

    def __init__(self, settings: Settings, google: Google, stack: str):
        self._settings = settings
        owner = {
            "who": paths.account(settings, paths.ORCHESTRATOR),
            "from": f"pipeline {settings.environment}",
        }
        self._fleets = OwnedFleets(google, stack, settings.environment, owner)
        self._unseen: Failure | None = None  # by the last look at slices
        self._requested = False  # a person's submission or retry has started training since the last look

    def described(self, run: Run) -> Description:
        """See `Trainer`."""
        name, desired = run.training_name, self._settings[PipelineSettings]
        ended_by = f"tpu fleet delete {self._settings.environment} --slice {name}"
        return Description(f"slice {name} ({desired.train_slice}, {desired.train_zone})", ended_by)

    def start(self, run: Run) -> None:
        """See `Trainer`."""
        records, name = self._fleets.records(), run.training_name
        fleets = records.read()
        if self._started(records, name):
            return
        try:
            self._fleets.want(records, fleets, [self._item(run)])
            self._requested = True
        except SettingsError as error:
            raise TrainingError("refused", str(error)) from None
        except BudgetError as error:
            raise TrainingError("too_expensive", str(error)) from None
        except ConcurrentChangeError:
            if not self._started(records, name):
                raise

    def look(self, run: Run) -> Training | None:
        """See `Trainer`."""
        record = self._fleets.records().record(run.training_name)
        if record is None or not self._fleets.owns(record):
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
        self._fleets.end(run.training_name, why)

    def keep(self, report: Callable[[str], None]) -> None:
        """Observe the pipeline's fleets, and do what follows, unless another controller does.

        Raises:
            FleetError: the bucket doesn't answer, or another controller has taken the lease, or doesn't
                delete what has ended.
            InfraError: the settings don't fit the records.
        """
        look = self._fleets.look(report, manual=self._requested)
        self._unseen = _unseen(look.observation) if look else None  # else another controller's
        self._requested = self._requested and look is None

    def _started(self, records: AdHoc, name: str) -> bool:
        """Return whether the pipeline has such a record, and Google didn't refuse its slice.

        Raises TrainingError if somebody else has it.
        """
        record = records.record(name)
        if record is not None and not self._fleets.owns(record):
            raise TrainingError("conflict", f"a fleet {name} is there already, and isn't the pipeline's")
        return record is not None and not _refusal(record)

    def _item(self, run: Run) -> dict[str, Any]:
        """Return the fleet, as `tpu run` describes one."""
        desired, member = self._settings[PipelineSettings], handoff.node(self._settings, run.run, run.folder)
        return {
            "name": run.training_name, "acceleratorType": desired.train_slice, "zones": [member.zone],
            "count": 1, "spot": desired.train_spot, "run": member.run, "bundle": member.bundle,
            STOP_WHEN_DONE: True,
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
