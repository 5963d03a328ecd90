"""get, list and aggregatedList of every collection."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from rehearsal.cloud.collections import listing
from rehearsal.cloud.collections.change import Change
from rehearsal.cloud.collections.resources import Resources
from rehearsal.cloud.collections.shape import COMPUTE, Shape
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.operations import compute_link
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.core.world import World


def shown(resources: Resources, shape: Shape, call: Call, name: str) -> JsonObject:
    """Render a resource as the called version shows it."""
    body = resources.world.directory[name]
    change = Change(resources, shape, call, name, {}, copy.deepcopy(body), body)
    shape.collection.shown(change)
    return shape.writable(change.body, output=True)


def get(resources: Resources, shape: Shape, method: JsonObject, call: Call) -> JsonObject:
    """Return a resource; ApiError 404 if it doesn't exist."""
    name = resources.name(shape, method, call)
    resources.find(name, shape)
    return shown(resources, shape, call, name)


def list_(resources: Resources, shape: Shape, method: JsonObject, call: Call) -> JsonObject:
    """List a page of the resources directly below the parent."""
    path = resources.path(shape, method, call)
    resources.check_parent(shape, path[:-1])
    prefix = "/".join(path)
    items = [item for _, item in _chosen(resources, shape, call, resources.key(shape, prefix))]
    fields = shape.properties(method["response"]["$ref"])
    page, token = listing.page(call, items)
    answer: JsonObject = {}
    if shape.dialect == COMPUTE:
        answer = {"kind": fields["kind"]["default"], "id": prefix, "selfLink": compute_link(prefix)}
    answer |= {shape.list_key: page} if page else {}
    if "totalSize" in fields:
        answer["totalSize"] = len(items)
    return answer | ({"nextPageToken": token} if token else {})


def aggregated_list(resources: Resources, shape: Shape, method: JsonObject, call: Call) -> JsonObject:
    """List every zone or region of the project, with its resources."""
    path = resources.path(shape, method, call)
    project, word = "/".join(path[:2]), shape.item[-2]
    every = ("zones/-", "regions/-", "global")
    items = [
        {"scope": "/".join(name.split("/")[2:-2]), "item": item}
        for scope in every
        for name, item in _chosen(resources, shape, call, f"{project}/{scope}/{word}")
    ]
    kind = shape.properties(method["response"]["$ref"])["kind"]["default"]
    return aggregated(resources.world, call, f"{project}/aggregated/{word}", kind, items, shape.item[2:3])


def aggregated(
    world: World, call: Call, name: str, kind: str, items: list[JsonObject], scopes: Iterable[str]
) -> JsonObject:
    """Group a page of `items` ({scope, item}) by scope, empty ones included; `scopes`: "zones", "regions"."""
    page, token = listing.page(call, items)
    project, _, word = name.partition("/aggregated/")
    parts = (path.split("/") for path in world.directory if path.startswith(f"{project}/"))
    places = sorted("/".join(part[2:]) for part in parts if len(part) == 4 and part[2] in scopes)
    by_scope: dict[str, JsonObject] = {scope: _empty(scope) for scope in places}
    for entry in page:
        in_scope = by_scope.get(entry["scope"], {})
        by_scope[entry["scope"]] = {word: [*in_scope.get(word, ()), entry["item"]]}
    answer: JsonObject = {"kind": kind, "id": name, "items": by_scope, "selfLink": compute_link(name)}
    return answer | ({"nextPageToken": token} if token else {})


def _chosen(resources: Resources, shape: Shape, call: Call, prefix: str) -> list[tuple[str, JsonObject]]:
    """Select the resources of a collection that the list shows, with their names, filtered and in order."""
    all_shown = []
    for name, body in resources.below(prefix):
        if shape.collection.listed(Change(resources, shape, call, name, {}, body, body)):
            all_shown.append((name, shown(resources, shape, call, name)))
    return listing.chosen(call, all_shown)


def _empty(scope: str) -> JsonObject:
    text = f"There are no results for scope '{scope}' on this page."
    data = [{"key": "scope", "value": scope}]
    return {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": text, "data": data}}
