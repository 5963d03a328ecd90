"""Bundles by the boots of their nodes: one that failed and has booted nowhere is rolled out no further."""

from collections.abc import Sequence

from fleet.controller_state import ControllerState
from fleet.model import Claim, Decision, View

_OF_A_BUNDLE = frozenset({"script", "bundle", "python", "environment", "launch"})
"""Stages of a boot that a bundle can fail."""


def judged(decisions: Sequence[Decision], view: View, state: ControllerState) -> dict[str, tuple[str, str]]:
    """Record which bundles have booted; return by member the bundles that failed, and how.

    Such a failure counts once it is proven and the node is deleted for it.
    """
    blamed = {}
    for entry in decisions:
        observed = view.node(entry.node, entry.zone)
        bundle = observed.labels.get("bundle", "") if observed else ""
        if not bundle or entry.status is None:
            continue
        if entry.status.boot == "ready" or entry.status.work:
            state.booted(bundle)
        elif entry.claim is Claim.BOOT_FAILED and entry.status.stage in _OF_A_BUNDLE:
            blamed[entry.member.key] = bundle, f"{entry.node}: {entry.why}"
    return blamed
