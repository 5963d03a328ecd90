"""Declarations of services and collections: the facts that their discovery documents lack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.world import World

REFUSE, KEEP = "refuse", "keep"

# Hooks get a `Change`, and `new_id` the `Resources` first; both are made of collections, so that this module
# can't import them.
Hook = Callable[[Any], None]
Act = Callable[[Any], JsonObject | None]


def nothing(change: object) -> None:
    """Do nothing; the default of hooks."""


@dataclass(frozen=True)
class Reference:
    """A field with the name of a resource of another collection.

    Attributes:
        field: its dotted path; lists on the way are walked through (`dataDisks.sourceDisk`).
        to: the ids of the collections that it may name (`compute.networks`).
        permission: what the caller needs on the resource named.
        on_delete: REFUSE to delete the resource named, KEEP the name as it is, or the text that replaces it.
        missing: whether a name that leads nowhere is refused (404).
        short: the full name of a value without a slash, of {project}, {region} and {id}.
    """

    field: str
    to: tuple[str, ...]
    permission: str = ""
    on_delete: str = REFUSE
    missing: bool = True
    short: str = ""


@dataclass(frozen=True)
class Verb:
    """A method of the collection with a hook.

    `act` gets the change with `body` as a draft of the resource and `sent` as the request's body, and edits
    the draft, refuses by an ApiError, or returns the answer where that is neither the resource nor an
    operation. Its permission is by default the collection's with the method's own name. `seconds` is the
    operation's length where the method has one.
    `operation` is its type where GKE's API answers. `exists`: whether the resource must be there, and no
    operation be changing it; without, `body` and `old` are {}.
    """

    act: Act
    seconds: float | None = None
    operation: str = ""
    exists: bool = True


@dataclass(frozen=True)
class Collection:
    """A collection of a discovery document, by the prefix of its method ids, and the facts that it lacks.

    Attributes:
        method: `pubsub.projects.topics`.
        permission: what its permissions begin with; by default the API and the last word (`pubsub.topics`).
        permissions: exceptions, by verb of the method id: `{"patch": "compute.networks.updatePolicy"}`.
        omit: methods of the document that aren't served although they are plain.
        kind: what Google's messages call the resource; by default its schema.
        pattern: the regex of ids.
        id_field: the dotted field of the body that has the id, where no `…Id` parameter has it.
        new_id: makes the id where the server does, for the collection's full name.
        named: the full name that a new one gets, for its collection's and the id that was sent.
        qualified: keep these names apart from those of an API that has the same ones.
        alias: the full name that another spelling of it stands for.
        defaults: what the API sets where the request doesn't; merged below what is sent.
        creating, ready: fields while the operation runs that creates the resource, and after it.
        ending: fields while it is being deleted.
        seconds: how long creating and deleting take, in virtual seconds, where they are operations.
        change_seconds: how long changing takes, if not as long.
        required, immutable: dotted fields, beside those of the document.
        mutable: if given, the only fields that an update may change.
        mask_required: whether an update without a mask is refused.
        upsert: whether an update makes what isn't there.
        references: fields that name other resources.
        check: refuses a new or changed resource by an ApiError, or completes it; runs with the whole draft.
        shows_deleted: whether the operation that deletes a resource ends with it, and not with nothing.
        failed: what becomes of a resource whose creation failed; by default it goes.
        created, deleted: run when that has happened. `deleting` may refuse a deletion.
        shown: the resource as it is read; gets a copy.
        listed: whether a list has the resource.
        verbs: methods that aren't plain, or differ from the plain ones, by the last word of their ids.
        not_found, exists: Google's words, of {name}, {id}, {kind}, {parent} and {local}, the id up to an @.
        children: what becomes of resources below a deleted one: they go as well, or REFUSE.
    """

    method: str
    permission: str = ""
    permissions: Mapping[str, str] = field(default_factory=dict)
    omit: tuple[str, ...] = ()
    kind: str = ""
    pattern: str = ""
    id_field: str = ""
    new_id: Callable[[Any, str], str] = lambda resources, collection: str(next(resources.numbers))
    named: Callable[[World, str], str] = lambda world, name: name
    qualified: bool = False
    alias: Callable[[World, str], str] = lambda world, name: name
    defaults: JsonObject = field(default_factory=dict)
    creating: JsonObject = field(default_factory=dict)
    ready: JsonObject = field(default_factory=dict)
    ending: JsonObject = field(default_factory=dict)
    seconds: float = 10.0
    change_seconds: float | None = None
    required: tuple[str, ...] = ()
    immutable: tuple[str, ...] = ()
    mutable: tuple[str, ...] | None = None
    mask_required: bool = False
    upsert: bool = False
    references: tuple[Reference, ...] = ()
    check: Hook = nothing
    shows_deleted: bool = False
    failed: Callable[[Any, ApiError], None] | None = None
    created: Hook = nothing
    deleting: Hook = nothing
    deleted: Hook = nothing
    shown: Hook = nothing
    listed: Callable[[Any], bool] = lambda change: True
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    not_found: str = ""
    exists: str = ""
    children: str = ""


@dataclass(frozen=True)
class Entry:
    """A service: its API, the versions of its document that are served, and its collections.

    Attributes:
        api, versions: as the discovery documents are called.
        package: the Protocol Buffers package of its messages; an operation's `@type` begins so. It may have
            `{version}`.
        metadata: the message of its operations' metadata; "" where that is the resource itself.
        own_operations: whether the operations' own methods are served too, and not by another service.
        location_unknown: Google's words for a location that isn't; `{location}`.
    """

    api: str
    versions: tuple[str, ...]
    collections: tuple[Collection, ...]
    package: str = ""
    metadata: str = "OperationMetadata"
    own_operations: bool = True
    location_unknown: tuple[int, str, str] = (
        403,
        "PERMISSION_DENIED",
        "Permission denied on 'locations/{location}' (or it may not exist).",
    )
