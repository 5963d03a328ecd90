"""A change of a resource of a collection, as its hooks receive it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from rehearsal.cloud.collections.entry import Collection
from rehearsal.cloud.collections.resources import Resources
from rehearsal.cloud.collections.shape import Shape
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.runtime import Runtime
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.core.world import World


@dataclass
class Change:
    """A request on a resource, as hooks see it.

    `name` is the full name, `sent` the resource of the request without what only the server sets, `body` the
    draft that becomes the resource (hooks edit it; a server-set field too), `old` the resource before, {}
    for a new one. What is appended to `finish` runs when the operation ends, before the draft is the
    resource, and may refuse by an ApiError; what is in `waits` is awaited before, in an operation.
    """

    resources: Resources
    shape: Shape
    call: Call
    name: str
    sent: JsonObject
    body: JsonObject
    old: JsonObject
    finish: list[Callable[[], None]] = field(default_factory=list)
    waits: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    @property
    def collection(self) -> Collection:
        """The entry's collection."""
        return self.shape.collection

    @property
    def world(self) -> World:
        """The state that services share."""
        return self.resources.world

    @property
    def runtime(self) -> Runtime:
        """Collaborators: requests, logs, metrics, users' programs."""
        return self.resources.runtime

    @property
    def id(self) -> str:
        """The last segment of the name."""
        return self.name.rpartition("/")[2]

    @property
    def private(self) -> dict[str, Any]:
        """Data of the resource that is never shown; it is deleted with the resource."""
        return self.world.private.setdefault(self.name, {})
