"""Field ownership, which the official provider resolves before it applies (await.go).

https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rehearsal.kubernetes.plane.api import Api, Object

# Managers that a resource's own takes over from, by the start of their names.
_APPLIED = ("kubectl",)
_WRITTEN = ("kubectl", "before-first-apply", "pulumi-kubernetes", "pulumi-resource-kubernetes")


def taken_over(entries: Sequence[Mapping[str, Any]], manager: str) -> list[Object] | None:
    """`managedFields` with theirs given to `manager`, as applied; None where there is nothing to take."""
    ours: list[Mapping[str, Any]] = []
    others: list[Object] = []
    for entry in entries:
        name, applied = entry["manager"], entry["operation"] == "Apply"
        theirs = name.startswith(_APPLIED if applied else _WRITTEN)
        if not entry.get("subresource") and (theirs or (applied and name == manager)):
            ours.append(entry)
        else:
            others.append(dict(entry))
    if all(one["manager"] == manager and one["operation"] == "Apply" for one in ours):
        return None
    fields: dict[str, Any] = {}
    for one in ours:
        fields = _merged(fields, one["fieldsV1"])
    return [*others, {**ours[0], "manager": manager, "operation": "Apply", "fieldsV1": fields}]


def write(api: Api, live: Object, entries: Sequence[Mapping[str, Any]]) -> None:
    """Set `managedFields`, unless the object changed since it was read."""
    patch = [
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
    ]
    api.request("PATCH", api.path(live), patch, "application/json-patch+json")


def leave(one: Object, live: Object, path: str) -> None:
    """Declare at `path` (names with dots) what is there, so that applying changes nothing there."""
    *parents, last = path.split(".")
    for key in parents:
        if not isinstance(live.get(key), Mapping):
            return
        one[key] = dict(one.get(key) or {})
        live, one = live[key], one[key]
    if last in live:
        one[last] = live[last]


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, **{key: _merged(one.get(key, {}), value) for key, value in other.items()}}
