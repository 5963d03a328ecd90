"""Answers to changes: the resource at once, or an operation of the method's style."""

from __future__ import annotations

import re
from collections.abc import Callable

from rehearsal.cloud.collections.change import Change
from rehearsal.cloud.collections.entry import Collection, Verb
from rehearsal.cloud.collections.reads import shown
from rehearsal.cloud.collections.resources import busy_name, plain
from rehearsal.cloud.collections.shape import COMPUTE, CONTAINER, NONE
from rehearsal.cloud.core.errors import ApiError, JsonObject

_VERBS = {"insert": "create", "patch": "update"}
# What an operation's metadata has where the document doesn't describe it.
_COMMON = ("createTime", "target", "verb", "apiVersion")


def _seconds(collection: Collection, did: str, verb: Verb | None) -> float:
    if verb is not None and verb.seconds is not None:
        return verb.seconds
    if did in ("create", "insert", "delete") or collection.change_seconds is None:
        return collection.seconds
    return collection.change_seconds


def answer(
    method: JsonObject,
    change: Change,
    work: Callable[[], None],
    undo: Callable[[ApiError], None],
    *,
    verb: Verb | None = None,
    scope: str | None = None,
) -> JsonObject:
    """Do the work, now or in an operation; `undo` reverts the beginning of one that fails."""
    shape, resources, name = change.shape, change.resources, change.name
    did = change.call.method_id.rpartition(".")[2]
    busy, style = busy_name(name), shape.style(method)
    seconds = _seconds(shape.collection, did, verb)

    def run() -> None:
        for step in change.finish:
            step()
        work()
        resources.operations.busy.pop(busy, None)

    def failed(error: ApiError) -> None:
        resources.operations.busy.pop(busy, None)
        undo(error)

    if style == NONE:
        run()
        shows = method.get("response", {}).get("$ref") == shape.schema and name in resources.world.directory
        return shown(resources, shape, change.call, name) if shows else {}
    begun = _begun(style, change, verb, seconds, run, failed, scope)
    resources.operations.busy[busy] = begun["name"]
    return begun


def _begun(
    style: str,
    change: Change,
    verb: Verb | None,
    seconds: float,
    run: Callable[[], None],
    failed: Callable[[ApiError], None],
    scope: str | None,
) -> JsonObject:
    """Start the operation that does the work."""
    shape, resources, name, call = change.shape, change.resources, change.name, change.call
    did = call.method_id.rpartition(".")[2]
    if style == COMPUTE:
        target_id = (change.old or change.body)["id"]
        return resources.operations.compute(
            call, verb=did, target=name, target_id=target_id, duration_s=seconds, work=run, on_error=failed,
            scope=scope, waits=change.waits,
        )  # fmt: skip
    if style == CONTAINER:
        thing = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", shape.schema).upper()
        kind = verb.operation if verb and verb.operation else f"{did.upper()}_{thing}"
        return resources.operations.container(
            kind=kind, target=name, duration_s=seconds, work=run, on_error=failed, waits=change.waits
        )

    async def work() -> JsonObject | None:
        await resources.world.clock.sleep(seconds)
        for wait in change.waits:
            await wait()
        run()
        return gone if did == "delete" else shown(resources, shape, call, name)

    gone = shown(resources, shape, call, name) if shape.collection.shows_deleted else None
    operation = resources.operations.longrunning(
        api=call.api,
        parent=_place(name),
        metadata=_metadata(change, _VERBS.get(did, did)),
        response_type="google.protobuf.Empty" if did == "delete" and gone is None else shape.message,
        work=work,
        on_error=failed,
        ends="endTime" if shape.entry.metadata == "OperationMetadata" else "",
    )
    if "operation" in shape.fields and not change.old:
        resources.world.directory[name]["operation"] = operation["name"]
    return operation


def _place(name: str) -> str:
    """Return the parent of an operation on a resource: `projects/P/locations/L`, or `…/global`."""
    parts = plain(name).split("/")[:4]
    return "/".join(parts if parts[2:3] == ["locations"] else [*parts[:2], "locations", "global"])


def _metadata(change: Change, verb: str) -> JsonObject:
    """Return an operation's metadata with fields of the entry's message: official clients refuse others."""
    shape, name = change.shape, plain(change.name)
    if not shape.entry.metadata:
        shows = shown(change.resources, shape, change.call, change.name)
        return {"@type": f"type.googleapis.com/{shape.message}", **shows}
    fields: JsonObject = {
        "createTime": change.world.clock.rfc3339(),
        "target": name,
        "verb": verb,
        "apiVersion": change.call.version,
        "batch": name,
        "operationType": "BATCH",
    }
    known = shape.document.definitions.get(shape.entry.metadata, {}).get("properties", _COMMON)
    if "build" in known:
        fields["build"] = shown(change.resources, shape, change.call, change.name)
    typed = {"@type": f"type.googleapis.com/{shape.package}.{shape.entry.metadata}"}
    return typed | {key: value for key, value in fields.items() if key in known}
