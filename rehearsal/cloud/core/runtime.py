"""Collaborators of services that are made once the world is: requests, logs, metrics, users' programs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from rehearsal.cloud.core.errors import JsonObject

OAUTH2, OIDC = "OAuth2", "OIDC"
INTERNAL_HEADER = "X-Rehearsal-Internal"
"""Header of requests of Google's own services, which carries a secret of this cloud."""


@dataclass(frozen=True)
class HttpRequest:
    """An HTTP request of a service. `auth` is "", OAUTH2 or OIDC, whose token is for `audience`."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    auth: str
    audience: str
    timeout_s: float


@dataclass(frozen=True)
class Reply:
    """The answer to a `HttpRequest`."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Caller(Protocol):
    """Sends requests of Google's services through the front door."""

    async def send(self, request: HttpRequest, account: str) -> Reply:
        """Send a request, as `account` where it has `auth`.

        Raises:
            ConnectionError: nothing answers.
            TimeoutError: no answer within `timeout_s` real seconds.
            PermissionError: the account doesn't exist.
        """

    async def close(self) -> None:
        """Close the connections."""


class Functions(Protocol):
    """Builds and serves Cloud Run functions."""

    async def deploy(self, name: str, function: JsonObject, source: str) -> None:
        """Build and start a function in place of the one of this name; ApiError if that fails.

        `source`: gs:// URL of the zip to build from.
        """

    def remove(self, name: str) -> None:
        """Stop a function."""

    async def call(self, name: str, request: web.Request, path: str) -> web.StreamResponse:
        """Forward a request to a function."""

    async def close(self) -> None:
        """Close the connections."""


class Telemetry(Protocol):
    """Metrics, conditions of alert policies, and incidents."""

    def observe(self, entry: JsonObject) -> None:
        """Count a log entry in the metrics that match it."""

    def measure(
        self, metric: str, resource_labels: dict[str, str], labels: dict[str, str], value: float = 1.0
    ) -> None:
        """Add a point of one of Google's own metrics."""

    def check(self, condition: JsonObject) -> None:
        """Raise ApiError for a condition that Google refuses."""

    def descriptors(self) -> dict[str, JsonObject]:
        """Return the descriptors of the metrics that Monitoring knows, by their types."""

    def alerts(self) -> list[JsonObject]:
        """Return all incidents as the API's alerts, newest first."""


class Instances(Protocol):
    """Machines of Compute Engine's instances, by the instances' full names."""

    async def create(self, name: str) -> None:
        """Boot a new instance's machine; ApiError leaves none."""

    async def start(self, name: str) -> None:
        """Boot a machine that is off, with the boot disk that it had."""

    async def stop(self, name: str) -> None:
        """Switch a machine off in order."""

    async def reset(self, name: str) -> None:
        """Cut the power and boot again."""

    async def remove(self, name: str) -> None:
        """Switch a machine off in order and erase its boot disk."""

    def announce(self) -> None:
        """Wake those that wait for a change of metadata."""

    def guest_attributes(self, name: str, path: str) -> JsonObject:
        """Return a machine's guest attributes at a path; ApiError where they are disabled."""

    def is_on(self, name: str) -> bool | None:
        """Return True if the instance's machine runs, None if it has none."""


@dataclass(frozen=True)
class Runtime:
    """Collaborators that hooks of collections find at `Change.runtime`.

    Attributes:
        caller: sends requests to other services.
        telemetry: metrics and incidents.
        write_log: keeps a log entry of Google's own, which takes no permission.
        run_build: runs a build of Cloud Build to its end; None if nothing can run it.
        run_batch: runs a Spark batch to its end; None if nothing can run it.
        functions: builds and serves functions; None if they are recorded only.
        instances: boots the machines of instances; None if those are states only.
    """

    caller: Caller
    telemetry: Telemetry
    write_log: Callable[[JsonObject], None]
    run_build: Callable[[JsonObject], Awaitable[None]] | None = None
    run_batch: Callable[[JsonObject], Awaitable[None]] | None = None
    functions: Functions | None = None
    instances: Instances | None = None
