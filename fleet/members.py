"""Zone and name of each member, from the labels of existing nodes.

A member is a number in a fleet. An existing node keeps its name and zone when the settings change; a missing
member gets the name of the settings, or the next free one. So a new zone renames no node.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count

from fleet.model import TAKEN_AWAY, ObservedNode, Owner, View
from infra.slices.names import fleet_member
from infra.slices.nodes import Node

Placements = Mapping[str, tuple[str, str]]
"""By a member's key, zone and name of the requested node."""


def requested_places(requested: Placements, owner: Owner, view: View) -> dict[str, tuple[str, str]]:
    """Return zone and name of requested nodes; of members with a record by that alone."""
    result = {key: place for key, place in requested.items() if key not in owner.recorded}
    for key, entry in owner.recorded.items():
        zone, observed = view.zones.get(entry.zone), view.node(entry.name, entry.zone)
        if observed and observed.instance != entry.instance and _of_another_member(key, observed, owner):
            continue  # which got the place when its node was gone
        listed = zone is None or zone.nodes is None or observed is not None
        if entry.name and (key in requested or listed):
            result[key] = entry.zone, entry.name
    return result


def _of_another_member(key: str, observed: ObservedNode, owner: Owner) -> bool:
    return owner.owns(observed) and key != f"{observed.labels.get('fleet')}/{observed.labels.get('member')}"


def _reserved(owner: Owner, key: str) -> set[tuple[str, str]]:
    """Return the places that records have for other members, also while no node is there."""
    return {(item.zone, item.name) for other, item in owner.recorded.items() if other != key and item.name}


def placed(wanted: Sequence[Node], view: View, owner: Owner, placements: Placements) -> list[Node]:
    """Return the members, each with its present or intended zone and name.

    Args:
        wanted: as the settings spread them.
        view: existing nodes.
        owner: of the nodes; a member of another stack exists, too, and is left to it.
        placements: creations that Google's list may not show yet, and nodes by their record.
    """
    by_member = _by_member(view, owner)
    taken = {(observed.zone, observed.name) for observed in view.all()} | {*placements.values()}
    nodes: list[Node] = []
    requested = dict(placements)
    for node in wanted:
        if node.member is None or node.together:
            nodes.append(node)
        elif node.key in owner.recorded and node.key in placements:
            nodes.append(_at(node, *placements[node.key]))
        elif (observed := by_member.get((node.slice, node.member))) and not (
            node.key in owner.recorded and observed.labels.get("stack") == owner.stack  # by its record alone
        ):
            nodes.append(_at(node, observed.zone, observed.name))
        elif node.key in placements:
            nodes.append(_at(node, *placements[node.key]))
        else:
            if (node.zone, node.name) in taken | _reserved(owner, node.key):
                node = in_zone(node, node.zone, view, wanted, requested, owner)
            nodes.append(node)
            requested[node.key] = node.zone, node.name
    return nodes


def _at(node: Node, zone: str, name: str) -> Node:
    return node if (node.zone, node.name) == (zone, name) else replace(node, zone=zone, name=name)


def in_zone(
    node: Node, zone: str, view: View, wanted: Sequence[Node], placements: Placements, owner: Owner
) -> Node:
    """Return a member in a zone, by a name that is neither used, reserved nor requested there."""
    taken = {observed.name for observed in view.all()} | {name for _, name in _reserved(owner, node.key)}
    taken |= {item.name for item in wanted if item.key != node.key} | {
        name for _, name in placements.values()
    }
    home = next((item for item in wanted if item.key == node.key and item.zone == zone), None)
    if home and home.name not in taken:
        return home
    free = (fleet_member(zone, number) for number in count())
    return replace(node, zone=zone, name=next(name for name in free if name not in taken))


def orphans(members: Collection[Node], view: View, owner: Owner) -> list[ObservedNode]:
    """Return this stack's nodes without a member; of two nodes of one member, the younger."""
    target = {
        (member.zone, member.name)
        for member in members
        if member.key not in owner.recorded
        or (observed := view.node(member.name, member.zone)) is None
        or owner.labels_of(member).items() <= observed.labels.items()
    }
    return [
        observed
        for observed in view.all()
        if owner.owns(observed) and (observed.zone, observed.name) not in target
    ]


def _by_member(view: View, owner: Owner) -> dict[tuple[str, int], ObservedNode]:
    """Return the node of each member; of two nodes, ours, then the living one, then the older one."""
    mapping: dict[tuple[str, int], ObservedNode] = {}
    observeds = [observed for observed in view.all() if owner.labels.items() <= observed.labels.items()]
    for observed in sorted(
        observeds, key=lambda item: (not owner.owns(item), item.state in TAKEN_AWAY, item.created_s)
    ):
        number = observed.labels.get("member", "")
        if number.isdecimal():
            mapping.setdefault((observed.labels.get("fleet", ""), int(number)), observed)
    return mapping


def left_over(observed: ObservedNode, members: Sequence[Node]) -> Node:
    """Return an orphan as a node, for a request."""
    return replace(members[0], slice=observed.name, name=observed.name, zone=observed.zone, member=None)
