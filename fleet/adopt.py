"""Nodes of ours that live at Google and that the stack doesn't hold.

A creation whose answer was lost, or whose update was killed, leaves one: Google lists it as fine, `pulumi up`
fails with 409, and nothing deletes it. It is taken into the stack as it is (`pulumi import`, which only reads
it); what Google has taken away is then replaced like all that the stack holds. A node of a member's name
without our labels is somebody else's: it is said, and left alone.
"""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from fleet.failures import Failure, Kind
from fleet.google import AskedError, Google
from fleet.provision import Outcome
from fleet.state import GOING, TAKEN_AWAY, Action, Cause, Condition, Decision, Place, Seen, View

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


def alive(places: Mapping[str, Place], held: Mapping[str, str], google: Google) -> Outcome:
    """Of nodes that the stack holds, by zone, those that mustn't be deleted to be made at their places.

    None where one lives where it is to be, else why it is left alone.

    A decision is as old as the list that it was made from, and Google is asked for each again: since then
    a person, or an update that nobody heard the end of, may have brought it back.
    """
    with ThreadPoolExecutor(8) as pool:
        some = [node for node in places if node in held]
        asked = pool.map(lambda node: _alive(node, places[node], held[node], google), some)
        return {node: outcome for node, (stays, outcome) in zip(some, asked, strict=True) if stays}


def _alive(name: str, place: Place, zone: str, google: Google) -> tuple[bool, Failure | None]:
    try:
        seen = google.node(zone, name)
    except AskedError as error:
        return True, error.failure
    if seen is None or seen.state in TAKEN_AWAY:
        return False, None
    if seen.state != "READY":
        return True, Failure(Kind.TRANSIENT, f"{name} is {seen.state}: left alone until that has ended")
    if seen.instance == place.instance:
        return False, None
    elsewhere = f"{name} lives in {zone}: `pulumi up` alone moves what lives to {place.zone}"
    return True, None if zone == place.zone else Failure(Kind.EXISTS, elsewhere)


def refusal(seen: Seen, labels: Mapping[str, str], states: Collection[str]) -> Failure | None:
    """Why a node isn't taken in now; None if it is."""
    if not ours(seen, labels):
        return Failure(Kind.EXISTS, f"{seen.name}: {_FOREIGN}")
    if seen.state not in states:
        return Failure(Kind.EXISTS, f"{seen.name} is there already, and {seen.state}: not taken in yet")
    return None
