"""Remains of a killed `pulumi` in a state, marked so that a refresh resolves them.

Pulumi writes an operation into the state before it begins: `pending_operations`, each with the resource as
it is to be. A killed process leaves them there, and Pulumi only warns of them. `pulumi refresh
--import-pending-creates` drops the record without taking anything in (3.220: nothing in the CLI reads the
operation that it writes). Here the record of a creation becomes a resource, with the id that Google gives
it: a refresh of just that resource reads it, or drops it.

What isn't known yet carries the sentence `MARK` as an initialization error, Pulumi's own word for "look
again": settling that is killed is begun again where it was.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from infra.engine.recovery import lookups
from infra.engine.recovery.ids import google_id
from infra.errors import CommandError
from infra.slices.names import NODE_TYPE

Record = dict[str, Any]
Find = Callable[[str, Mapping[str, Any], str, Collection[str]], str | None]

PASSING = ("CREATING", "DELETING")  # states of a node that Google is at work on
MARK = "a `pulumi` was killed while"
_MARKED = re.compile(rf"{MARK} (\w+) it, at (\S+)")
_KINDS = ("creating", "updating", "deleting")  # of operations; `reading` and `importing` change nothing
_PROVIDER = "pulumi:providers:gcp"
# What can be made again: in the state alone, a service's one agent, an object. Nothing imports them.
REPEATED = (
    "pulumi-python:dynamic:",
    "gcp:projects/serviceIdentity:ServiceIdentity",
    "gcp:storage/bucketObject:BucketObject",
)


def interrupted(deployment: Mapping[str, Any]) -> list[str]:
    """Describe the interrupted operations: resource and operation."""
    pending = [(op["resource"], op["type"]) for op in _pending(deployment)]
    left = [(one, doing) for one in marked(deployment) if (doing := mark_of(one)[0])]
    return [f"{MARK} {doing} {called(one)}" for one, doing in pending + left]


def mark_pending(deployment: Record, project: str, find: Find = lookups.found) -> None:
    """Turn pending operations into marked resources, in place.

    `project` is that of the settings, for a state without a provider; `find` is asked for ids that Google
    chose. Raises CommandError for a resource whose id isn't known.
    """
    at = str(deployment.get("manifest", {}).get("time") or datetime.now(UTC).isoformat())
    resources: list[Record] = deployment.setdefault("resources", [])
    created: dict[str, Record] = {}
    for op in _pending(deployment):
        record, doing = op["resource"], op["type"]
        if doing == "creating" and record["type"].startswith(REPEATED):
            continue  # the next update makes it
        if doing == "creating":
            place = _project(record, resources, project)
            id_ = google_id(record["type"], record.get("inputs", {}), place)
            if id_ is None and lookups.lookup(record["type"]):
                known = {str(one.get("id")) for one in resources}
                id_ = find(record["type"], record.get("inputs", {}), place, known)
                if id_ is None:
                    continue  # it was never made: the next update makes it
            if id_ is None:
                raise CommandError(
                    f"{MARK} creating {called(record)}, and nothing here says what Google calls it\n"
                    "    fix: delete it at Google if it is there; then pulumi refresh --clear-pending-creates"
                )
            created[record["urn"]] = _marked_as(record, doing, at) | {"id": id_}
            continue
        for number, one in enumerate(resources):
            if one["urn"] == record["urn"] and one.get("id") == record.get("id"):
                resources[number] = _marked_as(one, doing, at)
    deployment["pending_operations"] = []
    for record in _in_order(created):
        _enter(resources, record, project)


def _enter(resources: list[Record], record: Record, project: str) -> None:
    """Insert a created resource at its place, and all resources that it depends on."""
    _complete(resources, record, project)
    for number, one in enumerate(resources):
        if one["urn"] != record["urn"] or one.get("delete"):
            continue
        id_ = google_id(one["type"], one.get("inputs", {}), _project(one, resources, project))
        if id_ == record["id"] and not one.get("pendingReplacement"):
            return  # an update that came later has made it
        resources[number] = record
        if not one.get("pendingReplacement"):  # the one that it replaces is deleted by the next update
            resources.append({**one, "delete": True})
        break
    else:
        resources.append(record)


def _complete(resources: list[Record], record: Record, project: str) -> None:
    """Restore parts that a `destroy` in between removed from the state: provider, parent, dependencies."""
    there = {one["urn"] for one in resources}
    provider, _, id_ = record.get("provider", "").rpartition("::")
    if provider and f"{provider}::{id_}" not in {f"{one['urn']}::{one.get('id')}" for one in resources}:
        held = next((one for one in resources if one["urn"] == provider), None)
        if held:
            record["provider"] = f"{provider}::{held['id']}"
        elif f":{_PROVIDER}::" not in provider:
            raise CommandError(
                f"{called(record)} may be on a cluster that this state no longer knows\n"
                "    fix: kubectl delete it there, if it is; then pulumi refresh --clear-pending-creates"
            )
        else:
            settings = {"project": project, "version": version("pulumi_gcp")}
            resources.insert(0, {
                "urn": provider, "custom": True, "type": _PROVIDER, "id": id_,
                "inputs": settings, "outputs": settings,
            })  # fmt: skip
    parent = record.get("parent")
    if parent and parent not in there:
        kind = parent.split("::")[2].rpartition("$")[2]
        resources.insert(0, {"urn": parent, "custom": False, "type": kind})
    there = {one["urn"] for one in resources}
    record["dependencies"] = [urn for urn in record.get("dependencies") or () if urn in there]
    record["propertyDependencies"] = {
        name: [urn for urn in urns or () if urn in there]
        for name, urns in (record.get("propertyDependencies") or {}).items()
    }


def _in_order(records: Mapping[str, Record]) -> list[Record]:
    """Sort resources behind those that they depend on."""
    ordered: dict[str, Record] = {}

    def place(record: Record) -> None:
        for urn in record.get("dependencies") or ():
            if urn in records and urn not in ordered:
                place(records[urn])
        ordered.setdefault(record["urn"], record)

    for record in records.values():
        place(record)
    return list(ordered.values())


def _project(record: Record, resources: Iterable[Record], project: str) -> str:
    """Return the project of a record's provider; `project` where the state has none."""
    urn = record.get("provider", "").rpartition("::")[0]
    found = [one.get("inputs", {}).get("project") for one in resources if one["urn"] == urn]
    return str(next(filter(None, found), project))


def _marked_as(record: Record, doing: str, at: str) -> Record:
    return {**record, "initErrors": [f"{MARK} {doing} it, at {at}"]}


def mark_of(record: Record) -> tuple[str, float]:
    """Return the interrupted operation and its time, in seconds since the epoch; "" and 0 without a mark."""
    for output in record.get("initErrors") or ():
        if found := _MARKED.match(output):
            return found[1], datetime.fromisoformat(found[2]).timestamp()
    return "", 0.0


def _pending(deployment: Mapping[str, Any]) -> list[Record]:
    """Operations that may have changed something at Google."""
    return [
        op
        for op in deployment.get("pending_operations") or ()
        if op["type"] in _KINDS and _is_googles(op["resource"])
    ]


def marked(deployment: Mapping[str, Any]) -> list[Record]:
    """Resources to be looked at: those that carry a mark, and nodes that were last seen passing."""
    return [
        one
        for one in deployment.get("resources") or ()
        if _is_googles(one) and (mark_of(one)[0] or state_of(one) in PASSING)
    ]


def _is_googles(record: Record) -> bool:
    return bool(record.get("custom")) and not record["type"].startswith("pulumi:")


def state_of(record: Record) -> str:
    """Return a node's state as last seen; "" for other resources."""
    return str((record.get("outputs") or {}).get("state", "")) if record["type"] == NODE_TYPE else ""


def called(record: Record) -> str:
    """Return a resource's type and name for messages."""
    return f"{record['type'].rpartition(':')[2]} {record['urn'].rpartition('::')[2]}"
