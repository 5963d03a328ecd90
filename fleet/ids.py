"""Ids of a fleet's nodes in its record: which of Google's nodes is a member's.

An entry is written before the request that makes its node, and gets Google's id of it at the first look that
shows it. Labels can be copied, and names used again: a node is a member's by labels, place and id together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from settings_schema import foreign
from settings_schema.foreign import ForeignError

NODES = "nodes"
_MOST_OTHERS = 20


class SharedIdError(ForeignError):
    """Two nodes have one id."""


@dataclass(frozen=True)
class RecordedNode:
    """Node of a member, by the fleet's record.

    Attributes:
        zone, name: of the node; empty: none was requested yet.
        instance: Google's id of it; empty: not known yet.
        requested: a request for another node of this place may be under way, whose id isn't known yet.
        others: ids of nodes that somebody else made in this place.
        record: id of the record, which the node has as a label.
    """

    zone: str = ""
    name: str = ""
    instance: str = ""
    requested: bool = False
    others: tuple[str, ...] = ()
    record: str = ""

    def has(self, instance: str) -> bool:
        """Return whether a node of this place is the member's, by its id."""
        known = instance == self.instance or self.requested
        return bool(instance) and known and instance not in self.others

    def at(self, zone: str, name: str) -> "RecordedNode":
        """Return the entry before a request at this place."""
        if (zone, name) == (self.zone, self.name):
            return replace(self, requested=True)
        return RecordedNode(zone, name, requested=True, others=self.others, record=self.record)

    def with_other(self, instance: str) -> "RecordedNode":
        """Return the entry with the id of a node that somebody else made."""
        return replace(self, others=(*self.others, instance)[-_MOST_OTHERS:])


def stored(nodes: Mapping[int, RecordedNode]) -> dict[str, dict[str, Any]]:
    """Return the stored form, by the members' numbers."""
    return {
        str(member): {
            "zone": item.zone, "name": item.name, "id": item.instance,
            **({"requested": True} if item.requested else {}),
            **({"others": [*item.others]} if item.others else {}),
        }
        for member, item in sorted(nodes.items())
        if item.name or item.others
    }  # fmt: skip


def others_of(record: Mapping[str, Any]) -> dict[int, RecordedNode]:
    """Return entries with the ids of nodes that somebody else made, for the next record of this name."""
    return {n: RecordedNode(others=item.others) for n, item in recorded(record).items() if item.others}


def recorded(record: Mapping[str, Any]) -> dict[int, RecordedNode]:
    """Return the nodes of a record, by the members' numbers.

    Raises:
        SharedIdError: two nodes have one id, or one place.
        ForeignError: they can't be read.
    """
    label, result = foreign.text(record, "id"), dict[int, RecordedNode]()
    for key, value in foreign.group(record, NODES).items():
        number = key.isdecimal() and key.isascii() and len(key) < 7 and key == str(int(key))
        if not (number and isinstance(value, dict)):
            raise ForeignError(f"{NODES} = {key[:40]!a}: must be objects by a member's number")
        others = value.get("others", [])
        if not isinstance(others, list) or not all(isinstance(other, str) for other in others):
            raise ForeignError(f"{NODES}.{key}.others: must be a list of texts")
        zone, name = (foreign.text(value, field, "[a-z0-9-]{1,63}") for field in ("zone", "name"))
        instance = foreign.text(value, "id", "[0-9a-z-]{1,63}")
        pending = value.get("requested") is True
        result[int(key)] = RecordedNode(zone, name, instance, pending, tuple(others), label)
    _require_apart(result)
    return result


def _require_apart(nodes: Mapping[int, RecordedNode]) -> None:
    """Raise SharedIdError if two members have one node."""
    seen = dict[tuple[str, ...], int]()
    for member, item in nodes.items():
        for shared in ((item.instance,), (item.zone, item.name)):
            if shared[-1] and seen.setdefault(shared, member) != member:
                what = f"the id {shared[0]}" if len(shared) == 1 else f"the place {'/'.join(shared)}"
                raise SharedIdError(f"its nodes {seen[shared]} and {member} have both {what}")
