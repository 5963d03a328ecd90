"""Fleets that stand in no file: one object of the controller's bucket, which every command reads.

Each is an item of `tpu:slices`; `stopWhenDone` beside says that it is deleted once its program has ended.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fleet.errors import FleetError
from fleet.google import Google
from infra.gcp.client import RequestError
from infra.gcp.failures import Kind

Item = Mapping[str, Any]
STOP_WHEN_DONE = "stopWhenDone"


def slices(found: Iterable[Item]) -> list[dict[str, Any]]:
    """The items alone, as `tpu:slices` takes them."""
    return [{key: value for key, value in one.items() if key != STOP_WHEN_DONE} for one in found]


class AdHoc:
    """The object."""

    def __init__(self, google: Google, stack: str):
        self._google, self._object = google, f"{stack}/fleets.json"
        self._generation = 0

    def read(self) -> dict[str, dict[str, Any]]:
        """Fleets by name. Raises FleetError where the bucket doesn't answer."""
        try:
            found = self._google.read(self._object)
        except RequestError as error:
            raise FleetError(f"gs://{self._google.controller_bucket}: {error}") from None
        if found is None:
            return {}
        text, self._generation = found
        try:
            fleets: dict[str, dict[str, Any]] = {str(name): {**one} for name, one in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError) as error:
            where = f"gs://{self._google.controller_bucket}/{self._object}"
            raise FleetError(f"{where}: can't be read: {error}\n    fix: look at it, or delete it") from None
        return fleets

    def keep(self, name: str, item: Item | None) -> None:
        """Adds or replaces a fleet; None takes it out. Raises FleetError where it can't."""
        fleets: dict[str, Any] = {key: one for key, one in self.read().items() if key != name}
        if item:
            fleets[name] = dict(item)
        try:
            self._google.write(self._object, json.dumps(fleets), self._generation)
        except RequestError as error:
            again = (
                "somebody else has changed it; again" if error.failure.kind is Kind.INVALID else str(error)
            )
            raise FleetError(f"gs://{self._google.controller_bucket}/{self._object}: {again}") from None
