"""Deletes nodes, and waits until Google lists none of them."""

import sys
import time
from collections.abc import Callable, Sequence

from fleet.google import Google
from fleet.model import ObservedNode, View
from infra.gcp.client import RequestError
from infra.nodes import Node

_POLL_S = 2.0
Doomed = Node | ObservedNode


def delete_nodes(
    google: Google, nodes: Sequence[Doomed], renew: Callable[[], None], say: Callable[[str], None]
) -> tuple[list[Doomed], dict[str, str]]:
    """Deletes each, whatever becomes of the others; those that are gone, and by name why others aren't.

    `renew` renews the lease, and raises where it is lost: who has lost it deletes nothing more.
    """
    failed: dict[str, str] = {}
    for one in nodes:
        renew()
        try:
            google.delete(one.zone, one.name)
        except RequestError as error:
            failed[one.name] = str(error)
            print(f"error: {one.name}: {error}", file=sys.stderr)
    gone = [one for one in nodes if one.name not in failed]
    left = len(gone)
    while left:
        time.sleep(_POLL_S)
        renew()
        view = google.observe(sorted({one.zone for one in gone}))
        before, left = left, sum(_maybe_there(one, view) for one in gone)
        if left != before:
            say(f"{len(gone) - left} of {len(gone)} gone")
    return gone, failed


def _maybe_there(node: Doomed, view: View) -> bool:
    zone = view.zones[node.zone]
    return zone.nodes is None or node.name in zone.nodes
