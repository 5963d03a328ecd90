"""create, update and delete of every collection, and the verbs of entries, which change a resource too."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from typing import Any

from rehearsal.cloud.collections import masks, words
from rehearsal.cloud.collections.answers import answer
from rehearsal.cloud.collections.change import Change
from rehearsal.cloud.collections.checks import wrong_labels
from rehearsal.cloud.collections.entry import KEEP, REFUSE, Reference, Verb
from rehearsal.cloud.collections.masks import fingerprint
from rehearsal.cloud.collections.references import rewrite
from rehearsal.cloud.collections.resources import Resources, plain
from rehearsal.cloud.collections.shape import COMPUTE, CONTAINER, Shape, values
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.core.operations import compute_link
from rehearsal.cloud.core.service import Call


def create(resources: Resources, shape: Shape, method: JsonObject, call: Call) -> JsonObject:
    """Create a resource; ApiError 409 for a name that is taken, 400 if the schema or the entry refuses it."""
    if call.query.get("validateOnly"):
        raise NotEmulatedError(f"validateOnly of {call.method_id}")
    name = resources.new_name(shape, method, call)
    resources.check_parent(shape, plain(name).split("/")[:-2])
    name = resources.with_id(shape, method, name)
    if name in resources.world.directory:
        raise words.exists(shape, name)
    resources.check_idle(name)
    raw = _sent(shape, method, call)
    if shape.dialect == COMPUTE:
        _check_scope(name, raw)
    sent = shape.writable(raw)
    if missing := shape.missing(sent):
        raise words.required(shape, missing)
    body = copy.deepcopy(shape.collection.defaults)
    masks.merge(body, copy.deepcopy(sent))
    return insert(method, Change(resources, shape, call, name, sent, body, {}))


def insert(method: JsonObject, change: Change, scope: str | None = None) -> JsonObject:
    """Make the draft of a change a new resource, and answer as the method does.

    `scope` is where compute's operation is, if that isn't where the resource is.
    """
    resources, shape, name = change.resources, change.shape, change.name
    collection = shape.collection
    _identify(change)
    _check(change)
    final = shape.writable(change.body | copy.deepcopy(collection.ready), output=True)
    resources.world.directory[name] = final | copy.deepcopy(collection.creating)
    resources.iam.create(name)

    def work() -> None:
        body = resources.world.directory[name] = final
        _stamp(shape, body)
        collection.created(change)

    def undo(error: ApiError) -> None:
        if collection.failed is None:
            resources.drop(name)
        else:
            collection.failed(change, error)

    return answer(method, change, work, undo, scope=scope)


def update(resources: Resources, shape: Shape, method: JsonObject, call: Call) -> JsonObject:
    """Update the fields of the mask, or all that are sent."""
    name, raw = resources.name(shape, method, call), _sent(shape, method, call)
    if shape.collection.upsert and name not in resources.world.directory:
        return create(resources, shape, method, call)
    old = resources.ready(name, shape)
    change = Change(resources, shape, call, name, shape.writable(raw), copy.deepcopy(old), old)
    masks.check_etag(shape, change, raw)
    masks.apply(shape, method, change, raw)
    return _changed(method, change, None)


def special(verb: Verb, resources: Resources, shape: Shape, method: JsonObject, call: Call) -> JsonObject:
    """Run a method that the entry has a hook for."""
    name = resources.name(shape, method, call)
    old = resources.ready(name, shape) if verb.exists else {}
    change = Change(resources, shape, call, name, call.body or {}, copy.deepcopy(old), old)
    shown = verb.act(change)
    if shown is not None or not verb.exists:
        return shown or {}
    return _changed(method, change, verb)


def delete(resources: Resources, shape: Shape, method: JsonObject, call: Call) -> JsonObject:
    """Delete a resource; ApiError 400 if another refers to it, unless the entry declares `on_delete`."""
    name, collection = resources.name(shape, method, call), shape.collection
    if call.query.get("allowMissing"):
        raise NotEmulatedError(f"allowMissing of {call.method_id}")
    old = resources.ready(name, shape)
    change = Change(resources, shape, call, name, {}, copy.deepcopy(old), old)
    masks.check_etag(shape, change, {"etag": call.query.get("etag")})
    inside = [child for child in resources.world.directory if child.startswith(f"{name}/")]
    for user, reference in resources.references.users(name):
        if reference.on_delete == REFUSE and user not in inside:
            raise words.in_use(shape, name, user)
    guarded = collection.children == REFUSE or "force" in method.get("parameters", {})
    if inside and guarded and not call.query.get("force"):
        raise words.in_use(shape, name, inside[0])
    collection.deleting(change)
    directory = resources.world.directory
    directory[name] = old | copy.deepcopy(collection.ending)

    def work() -> None:
        for user, reference in list(resources.references.users(name)):
            if reference.on_delete not in (REFUSE, KEEP):
                rewrite(directory[user], reference.field, _replacing(resources, name, reference))
        for child in inside:
            resources.drop(child)
        collection.deleted(change)
        resources.drop(name)

    def undo(error: ApiError) -> None:
        directory[name] = old

    return answer(method, change, work, undo)


def _replacing(resources: Resources, name: str, reference: Reference) -> Callable[[str], str]:
    return lambda value: reference.on_delete if resources.references.full(value) == name else value


def _sent(shape: Shape, method: JsonObject, call: Call) -> JsonObject:
    """Return the resource in the request."""
    wrapped, body = shape.wrapped(method), call.body or {}
    return (body.get(wrapped) or {}) if wrapped else body


def _changed(method: JsonObject, change: Change, verb: Verb | None) -> JsonObject:
    """Make the draft of a change the resource, and answer as the method does. A verb may change all."""
    _check(change)
    if verb is None:
        masks.check_immutable(change)
    if "updateTime" in change.shape.fields:
        change.body["updateTime"] = change.world.clock.rfc3339()

    def work() -> None:
        change.world.directory[change.name] = change.body

    return answer(method, change, work, lambda error: None, verb=verb)


# The draft


def _check(change: Change) -> None:
    """Complete a draft; ApiError if the API refuses it."""
    # A schema with user labels has others that aren't the user's to choose.
    for field in ("userLabels",) if "userLabels" in change.shape.fields else ("labels", "resourceLabels"):
        _check_labels(change.shape, field, change.body.get(field))
    _refer(change)
    change.collection.check(change)
    change.shape.restore(change.old, change.body)
    stored = change.shape.writable(change.body, output=True)
    change.body.clear()
    change.body.update(stored)
    _stamp(change.shape, change.body)


def _identify(change: Change) -> None:
    """Set the fields of a new resource that the server sets and the schema has."""
    shape, name, now = change.shape, plain(change.name), change.world.clock.rfc3339()
    number = str(next(change.resources.numbers))
    host = f"https://{shape.entry.api}.googleapis.com/{shape.version}/"
    named = shape.collection.id_field and change.body.get("name")
    made: JsonObject = {
        "name": named or (change.id if shape.dialect else name),
        "createTime": now,
        "updateTime": now,
        "creationTimestamp": now,
        "uid": str(uuid.uuid4()),
        "id": uuid.uuid4().hex if shape.dialect == CONTAINER else number,
        "selfLink": compute_link(name) if shape.dialect == COMPUTE else f"{host}{name}",
    }
    if "default" in shape.fields.get("kind", {}):
        made["kind"] = shape.fields["kind"]["default"]
    scope = "/".join(name.split("/")[:4])
    if shape.dialect == COMPUTE and name.split("/")[2] != "global":
        made[name.split("/")[2].removesuffix("s")] = compute_link(scope)
    change.body.update({key: value for key, value in made.items() if key in shape.fields})


def _stamp(shape: Shape, body: JsonObject) -> None:
    """Set the etag and the fingerprints of the body."""
    for key in shape.stamped:
        body.pop(key, None)
        body[key] = fingerprint(body)
    if "labelFingerprint" in shape.fields:
        body["labelFingerprint"] = fingerprint(body.get("labels") or {})


def _refer(change: Change) -> None:
    """Raise ApiError for a reference to a missing resource, or to one that the caller may not use."""
    shape, resources = change.shape, change.resources
    for reference in shape.collection.references:
        before = values(change.old, reference.field)
        if shape.dialect == COMPUTE:
            rewrite(change.body, reference.field, lambda v, r=reference: compute_link(_target(change, r, v)))  # type: ignore[misc]
        for value in values(change.body, reference.field):
            if value in before or value == reference.on_delete:
                continue
            name = _target(change, reference, value)
            if reference.missing:
                resources.ready(name) if shape.dialect == COMPUTE else resources.find(name)
            if reference.permission:
                resources.iam.require(change.call.principal, reference.permission, name)


def _target(change: Change, reference: Reference, value: str) -> str:
    """Return the full name for a reference; ApiError 400 if the text can't be one."""
    references = change.resources.references
    name = references.target(reference, change.name, value)
    collection = references.collection(name)
    if collection is None or collection.method not in reference.to:
        if change.shape.dialect == COMPUTE:
            raise words.invalid(f"resource.{reference.field}", value, "The URL is malformed.")
        raise bad_request(f"Invalid resource name in field {reference.field}: '{value}'.")
    return name


def _check_scope(name: str, raw: JsonObject) -> None:
    """Raise ApiError 400 if the body of a compute resource has another zone or region than the path."""
    kind, place = name.split("/")[2].removesuffix("s"), name.split("/")[3]
    if kind != "global" and raw.get(kind) and raw[kind].rpartition("/")[2] != place:
        why = f"Cross-{kind} references for this resource are not allowed."
        raise words.invalid(f"resource.{kind}", raw[kind], why)


def _check_labels(shape: Shape, field: str, labels: Any) -> None:
    """Check labels (https://cloud.google.com/compute/docs/labeling-resources#restrictions); ApiError 400."""
    if not isinstance(labels, dict) or field not in shape.fields:
        return
    if len(labels) > 64:
        raise words.invalid(f"resource.{field}", len(labels), "A resource can have at most 64 labels.")
    for key, value, part in wrong_labels(labels):
        text = key if part == "key" else value
        why = (
            f"Label {part} '{text}' violates format constraints. The {part} can only contain "
            f"lowercase letters, numeric characters, underscores and dashes. The {part} can be at "
            "most 63 characters long."
        )
        raise words.invalid(f"resource.{field}", "", why)
