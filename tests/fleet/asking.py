"""The fleet's requests, sent as they are, by who keeps what failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import requests

from fleet.google import Google
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind

if TYPE_CHECKING:
    from tests.fleet.lab import Lab


class Asking(Google):
    """Requests of a process.

    Attributes:
        failed: what its requests came to in the end that failed.
        changes: method and path of those that change something, in order.
    """

    def __init__(self, project: str, bucket: str, lab: Lab) -> None:
        super().__init__(project, bucket, now=lab.now_s, sleep=lambda _: None)
        self.failed: list[Failure] = []
        self.changes: list[str] = []

    def send(self, method: str, url: str, *more: Any, **named: Any) -> requests.Response:
        if method != "GET" and not url.endswith(":getGuestAttributes"):
            self.changes.append(f"{method} {url.partition('.com/')[2]}")
        try:
            return super().send(method, url, *more, **named)
        except RequestError as error:
            self.failed.append(error.failure)
            raise

    @property
    def troubles(self) -> list[Failure]:
        """Failures except of missing objects and nodes."""
        return [item for item in self.failed if item.kind is not Kind.MISSING]
