"""Contents of the checkpoint bucket, read with Google's own client."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from google.api_core.exceptions import GoogleAPIError, NotFound
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage import Client
from requests.exceptions import RequestException

from rehearsal.errors import ScenarioFailed

# What Google's client raises once its own retries are spent.
CLIENT_ERRORS = (GoogleAPIError, GoogleAuthError, RequestException)


@dataclass(frozen=True)
class ObjectFacts:
    """Properties of an object that change with its content."""

    generation: int
    size_bytes: int
    crc32c: str


class Bucket:
    """A bucket of one environment; most of it is about the checkpoint bucket."""

    def __init__(self, project: str, name: str) -> None:
        self.project, self.name = project, name
        self._bucket = Client(project).bucket(name)

    def json(self, name: str) -> dict[str, Any] | None:
        """Return the parsed object; None if it is missing."""
        try:
            return dict(json.loads(self._bucket.blob(name).download_as_bytes()))
        except NotFound:
            return None

    def text(self, name: str) -> str:
        """Return the object's text; ScenarioFailed if it is missing."""
        try:
            return str(self._bucket.blob(name).download_as_bytes(), "utf-8")
        except NotFound as missing:
            raise ScenarioFailed(f"gs://{self.name}/{name} is not there") from missing

    def names(self, prefix: str) -> list[str]:
        """Every object below a prefix, sorted."""
        return sorted(self.facts(prefix))

    def facts(self, prefix: str) -> dict[str, ObjectFacts]:
        """Name → facts of every object below a prefix."""
        return {
            blob.name: ObjectFacts(int(blob.generation), int(blob.size or 0), str(blob.crc32c))
            for blob in self._bucket.list_blobs(prefix=prefix)
        }

    def metadata(self, prefix: str) -> dict[str, dict[str, str]]:
        """Name → metadata of every object below a prefix."""
        return {blob.name: dict(blob.metadata or {}) for blob in self._bucket.list_blobs(prefix=prefix)}

    def boots(self, node: str) -> list[dict[str, Any]]:
        """Return the newest boot status of each worker, by worker; hosts without a number first."""
        statuses = [self.json(name) for name in self.names(f"boot/{node}/worker-")]

        def number(status: dict[str, Any]) -> int:
            return -1 if status["worker"] is None else int(status["worker"])

        return sorted((status for status in statuses if status), key=number)

    def status(self, run: str) -> dict[str, Any] | None:
        """Return a run's status.json."""
        return self.json(f"runs/{run}/status.json")

    def final(self, run: str) -> dict[str, Any] | None:
        """Return a run's final.json, which exists once the run is done."""
        return self.json(f"runs/{run}/final.json")

    def events(self, run: str) -> list[dict[str, Any]]:
        """Return a run's events in the order of their times."""
        events = [self.json(name) for name in self.names(f"runs/{run}/events/")]
        return sorted((event for event in events if event), key=lambda event: str(event["time"]))

    def losses(self, run: str) -> list[tuple[int, float, str]]:
        """(step, loss, exact loss) of every step; ScenarioFailed if two segments disagree about one."""
        known: dict[int, tuple[int, float, str]] = {}
        for name in self.names(f"runs/{run}/metrics/"):
            for line in self.text(name).splitlines():
                entry = json.loads(line)
                loss = (int(entry["step"]), float(entry["loss"]), str(entry["loss_hex"]))
                if known.setdefault(loss[0], loss) != loss:
                    raise ScenarioFailed(
                        f"{run}: step {loss[0]} was recorded as {known[loss[0]][2]} and as {loss[2]}"
                    )
        return [known[step] for step in sorted(known)]
