"""The fleet's requests, sent as they are, by who keeps what failed, and can be killed at any of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import requests

from fleet.google import Google
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind

if TYPE_CHECKING:
    from tests.fleet.lab import Lab


class KilledError(BaseException):
    """End of a controller that is killed; nothing catches it."""


class Asking(Google):
    """Requests of a process.

    It may be given the number of the request, of those that change something, at which it is killed, and
    whether before it is sent or when it was carried out and before the answer is read. From then on nothing
    more is sent, by no thread.

    Attributes:
        failed: what its requests came to in the end that failed.
        changes: method and path of those that change something, in order.
    """

    def __init__(
        self, project: str, bucket: str, lab: Lab, kill_at: int | None = None, before: bool = True
    ) -> None:
        super().__init__(project, bucket, now=lab.now_s, sleep=lambda _: None)
        self._kill_at, self._before = kill_at, before
        self._turn = threading.Lock()
        self.dead = False
        self.failed: list[Failure] = []
        self.changes: list[str] = []

    def send(self, method: str, url: str, *more: Any, **named: Any) -> requests.Response:
        number = self._begin(method, url)
        if number and number == self._kill_at and self._before:
            self.dead = True
        self._live()
        try:
            answer = super().send(method, url, *more, **named)
        except RequestError as error:
            self._live()
            self.failed.append(error.failure)
            raise
        if number and number == self._kill_at:
            self.dead = True
        self._live()
        return answer

    def _begin(self, method: str, url: str) -> int:
        if method == "GET" or url.endswith(":getGuestAttributes"):
            return 0
        with self._turn:
            self.changes.append(f"{method} {url.partition('.com/')[2]}")
            return len(self.changes)

    def _live(self) -> None:
        if self.dead:
            raise KilledError

    @property
    def troubles(self) -> list[Failure]:
        """Failures except of missing objects and nodes."""
        return [item for item in self.failed if item.kind is not Kind.MISSING]
