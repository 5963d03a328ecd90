"""Types that the front door and the services share.

A service is a table of methods keyed by the discovery document's method id. The front door
has already authenticated the caller, validated the request against the discovery document and
authorized it when a handler runs, so handlers hold only the API's own work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from rehearsal.cloud.core.errors import JsonObject

Answer = JsonObject | web.StreamResponse


@dataclass(frozen=True)
class Call:
    """An authenticated, validated request.

    `path` holds the discovery document's path parameters, decoded; `query` the query parameters as
    declared (repeated ones as lists); `body` the parsed JSON or None. `raw` is for media.
    """

    api: str
    version: str
    method_id: str
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: JsonObject | None
    principal: str
    raw: web.Request


Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True)
class Method:
    """A handler and the permission that it needs on the resource `resource(call)`.

    A permission of None means that any authenticated caller may (operations, token look-ups).
    Resource names are full ones without a leading slash: `projects/P`, `projects/_/buckets/B`,
    `projects/P/serviceAccounts/EMAIL`, `projects/P/zones/Z/disks/D`. A policy on a project holds for
    all that is inside it. `list_prefix` is what conditions see as `objectListPrefix`.
    """

    handler: Handler
    permission: str | None = None
    resource: Callable[[Call], str] | None = None
    list_prefix: Callable[[Call], str] | None = None


class Service(Protocol):
    """A Google API."""

    @property
    def api(self) -> str:
        """As in the discovery document: `compute`, `tpu`."""

    @property
    def versions(self) -> tuple[str, ...]:
        """The served versions (`("v1", "beta")`), each with the same methods."""

    def methods(self) -> Mapping[str, Method]:
        """Return methods by id. Missing ids are answered with 501 and fail the rehearsal."""


class Site(Protocol):
    """A service with hosts of its own, whose requests no discovery document describes."""

    @property
    def method_id(self) -> str:
        """Name of its requests in the log and in fault rules."""

    def owns(self, host: str) -> bool:
        """Return True for the service's hosts."""

    def principal(self, host: str, path: str, bearer: str) -> str:
        """Return the account of a bearer token; "" for an invalid one."""

    async def serve(self, request: web.Request, host: str, principal: str) -> web.StreamResponse:
        """Answer a request; ApiError if it is refused."""


class Translator(Protocol):
    """A second protocol of an API, served in terms of its JSON API."""

    def translate(self, request: web.Request, host: str, path: str, query: str) -> tuple[str, str, str]:
        """Return the path and the query of the JSON API; those given for any other request.

        The third value names the feature that the request needs and the emulation lacks, "" if there is none.
        """
