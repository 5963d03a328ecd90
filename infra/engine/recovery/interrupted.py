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
from graphlib import TopologicalSorter
from importlib.metadata import version
from typing import Any

from infra.core.layer import directory
from infra.engine.recovery import ids
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
    resumed = [(record, doing) for record in marked(deployment) if (doing := mark_of(record)[0])]
    return [f"{MARK} {doing} {called(record)}" for record, doing in pending + resumed]


def mark_pending(deployment: Record, project: str, find: Find = ids.find_id) -> None:
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
            if id_ is None and ids.lookup(record["type"]):
                known = {str(resource.get("id")) for resource in resources}
                id_ = find(record["type"], record.get("inputs", {}), place, known)
                if id_ is None:
                    continue  # it was never made: the next update makes it
            if id_ is None:
                raise CommandError(
                    f"{MARK} creating {called(record)}, and nothing here says what Google calls it\n"
                    f"    fix: delete it at Google if it is there; then {_clear(record)}"
                )
            created[record["urn"]] = _marked_as(record, doing, at) | {"id": id_}
            continue
        for number, resource in enumerate(resources):
            if resource["urn"] == record["urn"] and resource.get("id") == record.get("id"):
                resources[number] = _marked_as(resource, doing, at)
    deployment["pending_operations"] = []
    # Pulumi refuses a state in which a resource comes before one that it depends on.
    needed = {
        urn: [other for other in record.get("dependencies") or () if other in created]
        for urn, record in created.items()
    }
    for urn in TopologicalSorter(needed).static_order():
        _enter(resources, created[urn], project)


def _clear(record: Record) -> str:
    """Return the command that drops operations from the state that a resource is in."""
    _, _, environment, _, layer, *_ = record["urn"].split(":")
    return f"pulumi -C {directory(layer)} refresh --clear-pending-creates -s {environment}"


def _enter(resources: list[Record], record: Record, project: str) -> None:
    """Insert a created resource at its place, and all resources that it depends on."""
    _complete(resources, record, project)
    for number, resource in enumerate(resources):
        if resource["urn"] != record["urn"] or resource.get("delete"):
            continue
        id_ = google_id(resource["type"], resource.get("inputs", {}), _project(resource, resources, project))
        if id_ == record["id"] and not resource.get("pendingReplacement"):
            return  # an update that came later has made it
        resources[number] = record
        if not resource.get("pendingReplacement"):  # the one that it replaces is deleted by the next update
            resources.append({**resource, "delete": True})
        break
    else:
        resources.append(record)


def _complete(resources: list[Record], record: Record, project: str) -> None:
    """Restore parts that a `destroy` in between removed from the state: provider, parent, dependencies."""
    urns = {resource["urn"] for resource in resources}
    provider, _, id_ = record.get("provider", "").rpartition("::")
    if provider and f"{provider}::{id_}" not in {
        f"{resource['urn']}::{resource.get('id')}" for resource in resources
    }:
        held = next((resource for resource in resources if resource["urn"] == provider), None)
        if held:
            record["provider"] = f"{provider}::{held['id']}"
        elif f":{_PROVIDER}::" not in provider:
            raise CommandError(
                f"{called(record)} may be on a cluster that this state no longer knows\n"
                f"    fix: kubectl delete it there, if it is; then {_clear(record)}"
            )
        else:
            settings = {"project": project, "version": version("pulumi_gcp")}
            resources.insert(0, {
                "urn": provider, "custom": True, "type": _PROVIDER, "id": id_,
                "inputs": settings, "outputs": settings,
            })  # fmt: skip
    parent = record.get("parent")
    if parent and parent not in urns:
        kind = parent.split("::")[2].rpartition("$")[2]
        resources.insert(0, {"urn": parent, "custom": False, "type": kind})
    urns = {resource["urn"] for resource in resources}
    record["dependencies"] = [urn for urn in record.get("dependencies") or () if urn in urns]
    record["propertyDependencies"] = {
        name: [urn for urn in needed or () if urn in urns]
        for name, needed in (record.get("propertyDependencies") or {}).items()
    }


def _project(record: Record, resources: Iterable[Record], project: str) -> str:
    """Return the project of a record's provider; `project` where the state has none."""
    urn = record.get("provider", "").rpartition("::")[0]
    projects = [resource.get("inputs", {}).get("project") for resource in resources if resource["urn"] == urn]
    return str(next(filter(None, projects), project))


def _marked_as(record: Record, doing: str, at: str) -> Record:
    return {**record, "initErrors": [f"{MARK} {doing} it, at {at}"]}


def mark_of(record: Record) -> tuple[str, float]:
    """Return the interrupted operation and its time, in seconds since the epoch; "" and 0 without a mark."""
    for output in record.get("initErrors") or ():
        if match := _MARKED.match(output):
            return match[1], datetime.fromisoformat(match[2]).timestamp()
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
        resource
        for resource in deployment.get("resources") or ()
        if _is_googles(resource) and (mark_of(resource)[0] or state_of(resource) in PASSING)
    ]


def _is_googles(record: Record) -> bool:
    return bool(record.get("custom")) and not record["type"].startswith("pulumi:")


def state_of(record: Record) -> str:
    """Return a node's state as last seen; "" for other resources."""
    return str((record.get("outputs") or {}).get("state", "")) if record["type"] == NODE_TYPE else ""


def called(record: Record) -> str:
    """Return a resource's type and name for messages."""
    return f"{record['type'].rpartition(':')[2]} {record['urn'].rpartition('::')[2]}"
