"""The methods on operations themselves, where a document has them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial

from rehearsal.cloud.collections import listing
from rehearsal.cloud.collections.entry import Entry
from rehearsal.cloud.collections.reads import aggregated
from rehearsal.cloud.collections.resources import Resources
from rehearsal.cloud.collections.shape import COMPUTE, by_collection, segments
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.operations import Operations, compute_link, versioned
from rehearsal.cloud.core.service import Call, Method

_VERBS = ("get", "list", "aggregatedList", "wait", "cancel", "delete")
_PLAIN = {"wait": "get", "aggregatedList": "list"}  # a verb by whose permission
_COLLECTION = re.compile(r"operations|(global|region|zone)Operations")
# Deprecated: https://cloud.google.com/kubernetes-engine/docs/reference/rest/v1/projects.zones.operations
_OLD_PATHS = "container.projects.zones."


def operation_methods(resources: Resources, entry: Entry) -> Iterable[tuple[str, Method]]:
    """Yield methods of operations by id."""
    entered = {collection.method for collection in entry.collections}
    for version in entry.versions:
        for collection, methods in by_collection(entry.api, version).items():
            word = collection.rpartition(".")[2]
            elsewhere = not collection.startswith((f"{entry.api}.projects.", f"{COMPUTE}."))
            below_another = collection.count(".") > 3 and collection.rpartition(".")[0] not in entered
            if elsewhere or below_another or not _COLLECTION.fullmatch(word):
                continue
            for verb in _VERBS:
                method_id = f"{collection}.{verb}"
                if verb in methods and not method_id.startswith(_OLD_PATHS):
                    permission = f"{entry.api}.{word}.{_PLAIN.get(verb, verb)}"
                    name = partial(_name, resources, methods[verb])
                    yield method_id, Method(partial(_run, resources, verb, name), permission, name)


def _name(resources: Resources, method: JsonObject, call: Call) -> str:
    """Return the full name of the operation, or of the parent that operations are listed in."""
    parts = segments(call, method)
    if parts[:2] == ["projects", resources.world.number]:
        parts[1] = resources.world.project
    verb = call.method_id.rpartition(".")[2]
    if parts[-1] == verb or (verb == "list" and parts[-1] == "operations"):
        parts.pop()
    return "/".join(parts)


async def _run(resources: Resources, verb: str, name_of: partial[str], call: Call) -> JsonObject:
    name, operations = name_of(call), resources.operations
    if verb == "get":
        return versioned(call, operations.get(name))
    if verb == "wait":
        return versioned(call, await operations.wait(name))
    if verb == "cancel":
        await operations.cancel(name)
        return {}
    if verb == "delete":
        operations.delete(name)
        return {}
    if verb == "aggregatedList":
        project = name.partition("/aggregated/")[0]
        chosen = listing.chosen(call, _bodies(operations, call.api, project))
        items = [{"scope": "/".join(path.split("/")[2:-2]), "item": item} for path, item in chosen]
        kind = "compute#operationAggregatedList"
        return versioned(call, aggregated(resources.world, call, name, kind, items, ("zones", "regions")))
    chosen = listing.chosen(call, _bodies(operations, call.api, name))
    items, token = listing.page(call, [item for _, item in chosen])
    answer: JsonObject = {"items" if call.api == COMPUTE else "operations": items}
    if call.api == COMPUTE:
        link = compute_link(f"{name}/operations")
        answer |= {"kind": "compute#operationList", "id": f"{name}/operations", "selfLink": link}
    return versioned(call, answer | ({"nextPageToken": token} if token else {}))


def _bodies(operations: Operations, api: str, parent: str) -> Iterable[tuple[str, JsonObject]]:
    return ((name, operations.get(name)) for name in operations.names(api, parent))
