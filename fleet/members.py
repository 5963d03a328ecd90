"""Places of a fleet's members, read from the labels of the nodes that are there.

A member is a number in a fleet. What is there keeps its name and its zone, whatever the settings say since;
what is not gets the name that the settings give it, or the next free one. So a new zone renames nobody.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count

from fleet.model import TAKEN_AWAY, ObservedNode, Owner, View
from infra.slices.names import fleet_member
from infra.slices.nodes import Node

Placements = Mapping[str, tuple[str, str]]
"""By a member's key, zone and name of the node that was asked for."""


def placed(wanted: Sequence[Node], view: View, owner: Owner, asked: Placements) -> list[Node]:
    """Return the members, each with its present or intended zone and name.

    Args:
        wanted: as the settings spread them.
        view: what is there.
        owner: whose nodes count; a member that another stack has is there, and is left to it.
        asked: creations that Google's list may not show yet.
    """
    there = _by_member(view, owner)
    taken = {(observed.zone, observed.name) for observed in view.all()} | {*asked.values()}
    found: list[Node] = []
    requested = dict(asked)
    for node in wanted:
        if node.member is None or node.together:
            found.append(node)
        elif observed := there.get((node.slice, node.member)):
            found.append(_at(node, observed.zone, observed.name))
        elif node.key in asked:
            found.append(_at(node, *asked[node.key]))
        else:
            if (node.zone, node.name) in taken:
                node = in_zone(node, node.zone, view, wanted, requested)
            found.append(node)
            requested[node.key] = node.zone, node.name
    return found


def _at(node: Node, zone: str, name: str) -> Node:
    return node if (node.zone, node.name) == (zone, name) else replace(node, zone=zone, name=name)


def in_zone(node: Node, zone: str, view: View, wanted: Sequence[Node], asked: Placements) -> Node:
    """Return a member in a zone, by a name that is neither used, reserved nor requested there."""
    taken = {observed.name for observed in view.all()}
    taken |= {one.name for one in wanted if one.key != node.key} | {name for _, name in asked.values()}
    home = next((one for one in wanted if one.key == node.key and one.zone == zone), None)
    if home and home.name not in taken:
        return home
    free = (fleet_member(zone, number) for number in count())
    return replace(node, zone=zone, name=next(name for name in free if name not in taken))


def orphans(members: Collection[Node], view: View, owner: Owner) -> list[ObservedNode]:
    """Return this stack's nodes without a member; of two nodes of one member, the younger."""
    target = {(one.zone, one.name) for one in members}
    return [
        observed
        for observed in view.all()
        if owner.owns(observed) and (observed.zone, observed.name) not in target
    ]


def _by_member(view: View, owner: Owner) -> dict[tuple[str, int], ObservedNode]:
    """Of two nodes that are one member, ours, then the one that lives, then the older one."""
    found: dict[tuple[str, int], ObservedNode] = {}
    ours = [observed for observed in view.all() if owner.labels.items() <= observed.labels.items()]
    for observed in sorted(
        ours, key=lambda one: (not owner.owns(one), one.state in TAKEN_AWAY, one.created_s)
    ):
        number = observed.labels.get("member", "")
        if number.isdecimal():
            found.setdefault((observed.labels.get("fleet", ""), int(number)), observed)
    return found
