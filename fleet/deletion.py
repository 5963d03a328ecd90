"""Delete nodes, and wait until Google lists none of them."""

import sys
import time
from collections.abc import Callable, Collection, Sequence

from fleet.controller import Store
from fleet.controller_state import ControllerState
from fleet.google import Google
from fleet.model import ObservedNode, View
from infra.google.client import RequestError
from infra.slices.nodes import Node

_POLL_S = 2.0
Doomed = Node | ObservedNode


def delete_nodes(
    google: Google,
    store: Store,
    state: ControllerState,
    keys: Collection[str],
    nodes: Sequence[Doomed],
    report: Callable[[str], None],
) -> tuple[list[Doomed], dict[str, str]]:
    """Record the deletion of members, and delete each node, regardless of failures of others.

    Args:
        google: where they are.
        store: holds the lease; it raises where that is lost, and nothing more is deleted.
        state: of the controller.
        keys: of the members, which aren't to be recovered.
        nodes: theirs, and others.
        report: receives the number of nodes that are gone.

    Returns:
        Those that are gone, and by name why others aren't.
    """
    state.deleted(keys)
    store.write(state)
    failed: dict[str, str] = {}
    for entry in nodes:
        store.renew(state)
        try:
            google.delete(entry.zone, entry.name)
        except RequestError as error:
            failed[entry.name] = str(error)
            print(f"error: {entry.name}: {error}", file=sys.stderr)
    gone = [node for node in nodes if node.name not in failed]
    left = len(gone)
    while left:
        time.sleep(_POLL_S)
        store.renew(state)
        view = google.observe(sorted({item.zone for item in gone}))
        before, left = left, sum(_maybe_there(item, view) for item in gone)
        if left != before:
            report(f"{len(gone) - left} of {len(gone)} gone")
    return gone, failed


def _maybe_there(node: Doomed, view: View) -> bool:
    zone = view.zones[node.zone]
    return zone.nodes is None or node.name in zone.nodes
