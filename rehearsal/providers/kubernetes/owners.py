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
    own: list[Mapping[str, Any]] = []
    managers: list[Object] = []
    for entry in entries:
        name, applied = entry["manager"], entry["operation"] == "Apply"
        foreign = name.startswith(_APPLIED if applied else _WRITTEN)
        if not entry.get("subresource") and (foreign or (applied and name == manager)):
            own.append(entry)
        else:
            managers.append(dict(entry))
    if all(our["manager"] == manager and our["operation"] == "Apply" for our in own):
        return None
    fields: dict[str, Any] = {}
    for our in own:
        fields = _merged(fields, our["fieldsV1"])
    return [*managers, {**own[0], "manager": manager, "operation": "Apply", "fieldsV1": fields}]


def write(api: Api, live: Object, entries: Sequence[Mapping[str, Any]]) -> None:
    """Set `managedFields`, unless the object changed since it was read."""
    patch = [
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
    ]
    api.request("PATCH", api.path(live), patch, "application/json-patch+json")


def _merged(base: Mapping[str, Any], addition: Mapping[str, Any]) -> dict[str, Any]:
    return {**base, **{key: _merged(base.get(key, {}), value) for key, value in addition.items()}}
