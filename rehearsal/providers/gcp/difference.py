"""Differences of an update: the program's inputs against the previous outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rehearsal.providers.gcp.field import Field, Kind
from rehearsal.providers.gcp.mapping import LOCATIONS, plan
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.table import Table
from rehearsal.providers.plugin.provider import Difference
from rehearsal.providers.plugin.values import UNKNOWN, has_unknown, is_empty


def differences(
    table: Table,
    inputs: Mapping[str, Any],
    state: Mapping[str, Any],
    settings: Settings,
    ignored: Sequence[str] = (),
) -> list[Difference]:
    """All differences between `inputs` and `state`, without those under a path in `ignored`."""
    planned = plan(table, inputs, {}, settings)
    changes: list[Difference] = []
    for f in table.inputs:
        desired = planned[f.name] if f.name in LOCATIONS else inputs.get(f.name)
        if f.kind is Kind.LABELS:
            changes += _label_differences(f, planned, state)
        else:
            changes += _compare(f, desired, state.get(f.name), f.name, f.name)
    return [d for d in changes if not _is_ignored(d.path, ignored)]


def _compare(f: Field, wanted: Any, current: Any, path: str, name: str) -> list[Difference]:
    """Return the differences of one property; `name`: of the top-level property that it belongs to.

    As in Terraform, a block that is fixed replaces the resource when it comes or goes, and not when something
    in it changes: that depends on what is in it.
    """
    if wanted is None and (f.computed or is_empty(current) or (f.same is not None and f.same(None, current))):
        return []
    if has_unknown(wanted) and f.kind is not Kind.BLOCK:
        return [Difference(path, name, "UPDATE", _forces(f, wanted, current))]
    if wanted is None:
        return [Difference(path, name, "DELETE", _forces(f, current))]
    if is_empty(wanted) and is_empty(current):
        return []
    if f.kind is Kind.BLOCK and wanted is not UNKNOWN:
        changes = _compare_fields(f, wanted, current or {}, path, name)
        return [Difference(path, name, "ADD", _forces(f, wanted))] if changes and current is None else changes
    if f.kind is Kind.BLOCKS and len(wanted) == len(current or []):
        return [
            change
            for index, items in enumerate(zip(wanted, current, strict=True))
            for change in _compare_fields(f, *items, f"{path}[{index}]", name)
        ]
    if _is_same(f, wanted, current):
        return []
    if f.kind is Kind.BLOCK_SET and len(wanted) == len(current or []):
        forces = any(_forces(n, item.get(n.name)) for item in _apart(f, wanted, current) for n in f.fields)
    else:
        forces = _forces(f, wanted, current) or (f.replaces_if is not None and f.replaces_if(wanted, current))
    return [Difference(path, name, "ADD" if is_empty(current) else "UPDATE", forces)]


def _forces(f: Field, *values: Any) -> bool:
    """Return True if adding or removing these values replaces the resource: by `f`, or by what is in it."""
    return f.replaces or any(
        _forces(n, item.get(n.name))
        for value in values
        for item in (value if isinstance(value, list) else [value])
        if isinstance(item, Mapping)
        for n in f.fields
        if not is_empty(item.get(n.name))
    )


def _compare_fields(
    f: Field, wanted: Mapping[str, Any], current: Mapping[str, Any], path: str, name: str
) -> list[Difference]:
    return [
        change
        for n in f.fields
        for change in _compare(n, wanted.get(n.name), current.get(n.name), f"{path}.{n.name}", name)
    ]


def _is_same(f: Field, wanted: Any, current: Any) -> bool:
    if f.same is not None:
        return f.same(wanted, current)
    if f.kind is Kind.SET:
        return sorted(wanted) == sorted(current or [])
    if f.kind is Kind.BLOCK_SET:
        return not _apart(f, wanted, current)
    return bool(wanted == current)


def _apart(f: Field, wanted: Sequence[Any], current: Sequence[Any] | None) -> list[Any]:
    """Return the elements of two sets of blocks that only one of them has."""
    left: list[Any] = list(current or [])
    apart: list[Any] = []
    for item in wanted:
        if item is UNKNOWN:
            apart.append({})
            continue
        equal = next((other for other in left if not _compare_fields(f, item, other, "", "")), None)
        if equal is None:
            apart.append(item)
        else:
            left.remove(equal)
    return apart + left


def _label_differences(f: Field, planned: Mapping[str, Any], state: Mapping[str, Any]) -> list[Difference]:
    """Labels differ where one of ours is missing, has another value, or is ours no longer."""
    if has_unknown(planned["pulumiLabels"]):
        return [Difference(f.name, f.name, "UPDATE", f.replaces)]
    desired, current = planned["pulumiLabels"], state.get("effectiveLabels") or {}
    own = planned.get(f.name) or {}
    changes = []
    for key, value in desired.items():
        if current.get(key) != value:
            path = f"{f.name}.{key}" if key in own else f"pulumiLabels.{key}"
            changes.append(Difference(path, f.name, "UPDATE" if key in current else "ADD", f.replaces))
    for key in state.get("pulumiLabels") or {}:
        if key not in desired and key in current:
            changes.append(Difference(f"{f.name}.{key}", f.name, "DELETE", f.replaces))
    return changes


def _is_ignored(path: str, ignored: Sequence[str]) -> bool:
    return any(path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")) for prefix in ignored)
