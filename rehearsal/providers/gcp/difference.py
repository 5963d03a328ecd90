"""Differences of an update: the program's inputs against the previous outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    before: Mapping[str, Any] | None = None,
) -> list[Difference]:
    """All differences between `inputs` and `state`, without those under a path in `ignored`.

    `before`: the inputs that made `state`. What is in a block that the program gives, but was never given
    itself, is Google's and no difference.
    """
    planned = plan(table, inputs, {}, settings)
    changes: list[Difference] = []
    for f in table.inputs:
        desired = planned[f.name] if f.name in LOCATIONS else inputs.get(f.name)
        if f.kind is Kind.LABELS:
            changes += _label_differences(f, planned, state)
        else:
            at = _Place(f.name, f.name, f.replaces, top=True)
            changes += _compare(f, desired, state.get(f.name), (before or {}).get(f.name), at)
    return [d for d in changes if not _is_ignored(d.path, ignored)]


@dataclass(frozen=True)
class _Place:
    """Location of a comparison of two values: see Difference."""

    path: str
    name: str
    replaces: bool
    top: bool = False

    def of(self, path: str, f: Field) -> _Place:
        return _Place(path, self.name, self.replaces or f.replaces)

    def differs(self, kind: str) -> list[Difference]:
        return [Difference(self.path, self.name, kind, self.replaces)]


def _compare(f: Field, wanted: Any, current: Any, before: Any, at: _Place) -> list[Difference]:
    if wanted is None and (f.computed or is_empty(current) or (before is None and not at.top)):
        return []
    if has_unknown(wanted) and f.kind is not Kind.BLOCK:
        return at.differs("UPDATE")
    if wanted is None:
        return at.differs("DELETE")
    if is_empty(wanted) and is_empty(current):
        return []
    if f.kind is Kind.BLOCK and wanted is not UNKNOWN:
        return _compare_fields(f, wanted, current or {}, before or {}, at)
    if f.kind is Kind.BLOCKS and len(wanted) == len(current or []):
        then = before if len(before or ()) == len(wanted) else [{}] * len(wanted)
        return [
            field
            for index, items in enumerate(zip(wanted, current, then, strict=True))
            for field in _compare_fields(f, *items, at.of(f"{at.path}[{index}]", f))
        ]
    if _is_same(f, wanted, current):
        return []
    return at.differs("ADD" if is_empty(current) else "UPDATE")


def _compare_fields(
    f: Field, wanted: Mapping[str, Any], current: Mapping[str, Any], before: Mapping[str, Any], at: _Place
) -> list[Difference]:
    return [
        change
        for n in f.fields
        for change in _compare(
            n, wanted.get(n.name), current.get(n.name), before.get(n.name), at.of(f"{at.path}.{n.name}", n)
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
    """Return True if the two lists are equal as multisets."""
    at = _Place("", "", False)
    for item in wanted:
        equal = next(
            (remaining for remaining in left if not _compare_fields(f, item, remaining, remaining, at)), None
        )
        if equal is None:
            return False
        left.remove(equal)
    return not left


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
