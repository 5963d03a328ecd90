"""Nodes of ours that live at Google and that the stack doesn't hold.

A creation whose answer was lost, or whose update was killed, leaves one: Google lists it as fine, `pulumi up`
fails with 409, and nothing deletes it. It is taken into the stack as it is (`pulumi import`, which only reads
it); what Google has taken away is then replaced like all that the stack holds. A node of a member's name
without our labels is somebody else's: it is said, and left alone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fleet.failures import Failure, Kind
from fleet.google import Google
from fleet.state import GOING, Action, Cause, Condition, Decision, Seen, View

_FOREIGN = "a node of this name is there without our labels\n    fix: delete it by hand, or rename the slice"


def told(
    found: Sequence[Decision], view: View, held: Collection[str] | None, labels: Mapping[str, str]
) -> list[Decision]:
    """The decisions, changed where they are about nodes that the stack doesn't hold.

    Args:
        found: one for each member.
        view: what they were made from.
        held: members that the stack holds; None where nobody can say, which changes nothing.
        labels: what all nodes of ours carry.
    """
    return [_told(one, view.seen(one.node, one.zone), held, labels) for one in found]


def _told(
    one: Decision, seen: Seen | None, held: Collection[str] | None, labels: Mapping[str, str]
) -> Decision:
    if held is None or one.node in held or seen is None or seen.state in GOING:
        return one
    if not ours(seen, labels):
        return replace(one, action=Action.HOLD, condition=Condition.UNKNOWN, why=_FOREIGN, cause=None)
    if seen.state != "READY":
        return one
    why = "; ".join(filter(None, ["the stack doesn't hold it: taken in as it is", one.why]))
    return replace(one, action=Action.ADOPT, why=why, cause=Cause.NEW, instance="")


def ours(seen: Seen, labels: Mapping[str, str]) -> bool:
    """Whether a node carries all of our labels."""
    return labels.items() <= seen.labels.items()


def strays(nodes: Sequence[str], google: Google, zones: Sequence[str]) -> list[Seen]:
    """Nodes of these names that Google lists now; where a zone doesn't answer, none."""
    views = [google.zone(zone) for zone in zones]
    return [seen for view in views for name, seen in (view.nodes or {}).items() if name in nodes]


def refusal(seen: Seen, labels: Mapping[str, str], states: Collection[str]) -> Failure | None:
    """Why a node isn't taken in now; None if it is."""
    if not ours(seen, labels):
        return Failure(Kind.EXISTS, f"{seen.name}: {_FOREIGN}")
    if seen.state not in states:
        return Failure(Kind.EXISTS, f"{seen.name} is there already, and {seen.state}: not taken in yet")
    return None
