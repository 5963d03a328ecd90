"""Ad hoc fleets, outside the settings file: a record each in the controller's bucket, read by every command.

Each is an item of `tpu:slices` with a phase; with `stopWhenDone` it is deleted once its program has ended. A
node is created only for a record that wants it. A record is written only on the generation that was read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from fleet.errors import FleetError
from fleet.google import Google
from infra.google.client import RequestError
from infra.google.failures import Kind

Item = Mapping[str, Any]
STOP_WHEN_DONE = "stopWhenDone"
PHASE, WHY = "phase", "why"
_BESIDE = (STOP_WHEN_DONE, PHASE, WHY)


class Phase(StrEnum):
    """Phase of an ad hoc fleet, stored with its item; a record without one is wanted."""

    WANTED = "wanted"
    ENDING = "ending"  # written before the first deletion; nothing is created any more
    ENDED = "ended"  # written after the last one


class ConcurrentChangeError(FleetError):
    """Another command has changed the record since it was read."""


def slices(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return the items in the format of `tpu:slices`."""
    return [{key: value for key, value in item.items() if key not in _BESIDE} for item in items]


def wanted(item: Item) -> Item:
    """Return an item as a command asked for it: without what its end has added."""
    return {key: value for key, value in item.items() if key not in (PHASE, WHY)}


def described(
    kind: str, slices: Sequence[str], zones: Sequence[str], per_zone: int, *, spot: bool, run: str | None
) -> dict[str, Any]:
    """Return a fleet as an item of `tpu:slices`.

    Args:
        kind: accelerator type, such as v6e-8.
        slices: the name of the fleet, at most one.
        zones: its zones.
        per_zone: slices in each zone.
        spot: rent spot capacity.
        run: command line of the hosts; None: none.

    Raises:
        FleetError: no zones, or several names.
    """
    if not zones or len(slices) > 1:
        problem = f"{len(slices)} names" if zones else "no --zones"
        raise FleetError(
            f"--tpu-type {kind}: {problem}\n    fix: --zones us-east5-a,us-east5-b, and one --slice"
        )
    item: dict[str, Any] = {
        "name": slices[0] if slices else "adhoc", "acceleratorType": kind, "zones": [*zones],
        "count": per_zone * len(zones), "spot": spot,
    }  # fmt: skip
    return {**item, "run": run} if run else item


class AdHoc:
    """Records in the controller's bucket, one for each fleet."""

    def __init__(self, google: Google, stack: str):
        self._google, self._folder = google, f"{stack}/fleets/"
        self._generations: dict[str, int] = {}

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the fleets that haven't ended, by name. Raises FleetError if a record can't be read."""
        self._generations.clear()
        records = {name: item for path in self._listed() if (item := self._parsed(path, name := _name(path)))}
        return {name: item for name, item in records.items() if item[PHASE] is not Phase.ENDED}

    def record(self, name: str) -> dict[str, Any] | None:
        """Return the present record of a fleet, ended or not; None: there is none. Raises FleetError."""
        return self._parsed(f"{self._folder}{name}.json", name)

    def keep(self, name: str, item: Item, phase: Phase = Phase.WANTED, why: str = "") -> None:
        """Add a fleet, or replace the record that `read` returned.

        Args:
            name: its name.
            item: as `tpu:slices` has one, with `stopWhenDone`.
            phase: of the fleet.
            why: reason of its end.

        Raises:
            ConcurrentChangeError: there is another record by now.
            FleetError: the bucket doesn't answer.
        """
        path = f"{self._folder}{name}.json"
        record = {**wanted(item), PHASE: phase, **({WHY: why} if why else {})}
        before = self._generations.get(name, 0)
        try:
            self._generations[name] = self._google.write(path, json.dumps(record), before)
        except RequestError as error:
            if error.failure.kind is not Kind.INVALID:
                raise self._error(path, str(error)) from None
            if self._parsed(path, name) != record:  # else only the answer to our own write was lost
                self._generations[name] = before
                where = f"gs://{self._google.controller_bucket}/{path}"
                raise ConcurrentChangeError(f"{where}: changed concurrently; repeat the command") from None

    def _listed(self) -> list[str]:
        try:
            return self._google.saved(self._folder)
        except RequestError as error:
            raise FleetError(f"gs://{self._google.controller_bucket}: {error}") from None

    def _parsed(self, path: str, name: str) -> dict[str, Any] | None:
        """Return a fleet; None if it was removed since the listing."""
        try:
            result = self._google.read(path)
        except RequestError as error:
            raise self._error(path, str(error)) from None
        if result is None:
            return None
        text, self._generations[name] = result
        try:
            item = {str(key): value for key, value in json.loads(text).items()}
            return {**item, PHASE: Phase(item.get(PHASE, Phase.WANTED))}
        except (ValueError, TypeError, AttributeError) as error:
            raise self._error(path, f"can't be read: {error}\n    fix: repair it, or delete it") from None

    def _error(self, path: str, why: str) -> FleetError:
        return FleetError(f"gs://{self._google.controller_bucket}/{path}: {why}")


def _name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".json")
