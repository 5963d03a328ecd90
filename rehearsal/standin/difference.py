"""What an update would change: the program's inputs held against the outputs of before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rehearsal.standin.mapping import LOCATIONS, plan
from rehearsal.standin.settings import Settings
from rehearsal.standin.table import Field, Kind, Table
from rehearsal.standin.values import has_unknown, is_empty


@dataclass(frozen=True)
class Difference:
    """One property that differs: `path` as Pulumi spells it, `name` of the top-level property."""

    path: str
    name: str
    kind: str  # "ADD", "UPDATE" or "DELETE"
    replaces: bool


def differences(
    table: Table,
    inputs: Mapping[str, Any],
    state: Mapping[str, Any],
    settings: Settings,
    ignored: Sequence[str] = (),
) -> list[Difference]:
    """All differences between `inputs` and `state`, without those under a path in `ignored`."""
    planned = plan(table, inputs, {}, settings)
    found: list[Difference] = []
    for f in table.inputs:
        wanted = planned[f.name] if f.name in LOCATIONS else inputs.get(f.name)
        if f.kind is Kind.LABELS:
            found += _label_differences(f, planned, state)
        else:
            found += _compare(f, wanted, state.get(f.name), f.name, f.name, f.replaces)
    return [d for d in found if not _is_ignored(d.path, ignored)]


def _compare(f: Field, wanted: Any, current: Any, path: str, name: str, replaces: bool) -> list[Difference]:
    replaces = replaces or f.replaces
    if wanted is None and (f.computed or is_empty(current)):
        return []
    if has_unknown(wanted) and f.kind is not Kind.BLOCK:
        return [Difference(path, name, "UPDATE", replaces)]
    if wanted is None:
        return [Difference(path, name, "DELETE", replaces)]
    if is_empty(wanted) and is_empty(current):
        return []
    if f.kind is Kind.BLOCK:
        return _compare_fields(f, wanted, current or {}, path, name, replaces)
    if f.kind is Kind.BLOCKS and len(wanted) == len(current or []):
        return [
            found
            for index, item in enumerate(wanted)
            for found in _compare_fields(f, item, current[index], f"{path}[{index}]", name, replaces)
        ]
    if _is_same(f, wanted, current):
        return []
    return [Difference(path, name, "ADD" if is_empty(current) else "UPDATE", replaces)]


def _compare_fields(
    f: Field, wanted: Mapping[str, Any], current: Mapping[str, Any], path: str, name: str, replaces: bool
) -> list[Difference]:
    return [
        found
        for nested in f.fields
        if not nested.output
        for found in _compare(
            nested, wanted.get(nested.name), current.get(nested.name), f"{path}.{nested.name}", name, replaces
        )
    ]


def _is_same(f: Field, wanted: Any, current: Any) -> bool:
    if f.same is not None:
        return f.same(wanted, current)
    if f.kind is Kind.SET:
        return sorted(wanted) == sorted(current or [])
    if f.kind is Kind.BLOCK_SET:
        return _is_same_set(f, wanted, list(current or []))
    return bool(wanted == current)


def _is_same_set(f: Field, wanted: Sequence[Mapping[str, Any]], left: list[Mapping[str, Any]]) -> bool:
    """Whether every wanted element has its own equal one among those that are there, and none is left."""
    for item in wanted:
        equal = next((other for other in left if not _compare_fields(f, item, other, "", "", False)), None)
        if equal is None:
            return False
        left.remove(equal)
    return not left


def _label_differences(f: Field, planned: Mapping[str, Any], state: Mapping[str, Any]) -> list[Difference]:
    """Labels differ where one of ours is missing, has another value, or is ours no longer."""
    if has_unknown(planned["pulumiLabels"]):
        return [Difference(f.name, f.name, "UPDATE", False)]
    wanted, there = planned["pulumiLabels"], state.get("effectiveLabels") or {}
    own = planned.get(f.name) or {}
    found = []
    for key, value in wanted.items():
        if there.get(key) != value:
            path = f"{f.name}.{key}" if key in own else f"pulumiLabels.{key}"
            found.append(Difference(path, f.name, "UPDATE" if key in there else "ADD", False))
    for key in state.get("pulumiLabels") or {}:
        if key not in wanted and key in there:
            found.append(Difference(f"{f.name}.{key}", f.name, "DELETE", False))
    return found


def _is_ignored(path: str, ignored: Sequence[str]) -> bool:
    return any(path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")) for prefix in ignored)
