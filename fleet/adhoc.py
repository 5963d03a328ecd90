"""Ad hoc fleets, outside the settings file: an object each in the controller's bucket, read by every command.

Each is an item of `tpu:slices`; with `stopWhenDone` it is deleted once its program has ended.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fleet.errors import FleetError
from fleet.google import Google
from infra.google.client import RequestError
from infra.google.failures import Kind

Item = Mapping[str, Any]
STOP_WHEN_DONE = "stopWhenDone"


def slices(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return the items in the format of `tpu:slices`."""
    return [{key: value for key, value in item.items() if key != STOP_WHEN_DONE} for item in items]


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
    """Objects of the controller's bucket, one for each fleet."""

    def __init__(self, google: Google, stack: str):
        self._google, self._folder = google, f"{stack}/fleets/"
        self._generations: dict[str, int] = {}

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the fleets by name. Raises FleetError if the bucket doesn't answer."""
        return {name: item for path in self._listed() if (item := self._parsed(path, name := _name(path)))}

    def keep(self, name: str, item: Item | None) -> None:
        """Add or replace a fleet; None removes it. Raises FleetError if it can't."""
        path = f"{self._folder}{name}.json"
        self._parsed(path, name)
        try:
            if item is None:
                self._google.remove(path)
            else:
                self._google.write(path, json.dumps(dict(item)), self._generations.get(name, 0))
        except RequestError as error:
            again = (
                "changed concurrently; repeat the command"
                if error.failure.kind is Kind.INVALID
                else str(error)
            )
            raise self._error(path, again) from None

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
            self._generations.pop(name, None)
            return None
        text, self._generations[name] = result
        try:
            return {str(key): value for key, value in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise self._error(path, f"can't be read: {error}\n    fix: repair it, or delete it") from None

    def _error(self, path: str, why: str) -> FleetError:
        return FleetError(f"gs://{self._google.controller_bucket}/{path}: {why}")


def _name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".json")
