"""Checks of a fleet, beside those of its environment (infra/doctor)."""

import time
from collections.abc import Iterator
from functools import partial

from fleet.adhoc import AdHoc
from fleet.google import Google
from fleet.members import orphans, placed
from fleet.model import ObservedNode, Owner, View, ZoneView
from fleet.store import BucketStore
from infra.core import names
from infra.doctor.finding import MISSING, OK, OPTIONAL, Finding
from infra.doctor.report import Check
from infra.engine.named import LAYER, read_stack
from infra.settings.schema import Settings
from infra.slices.nodes import nodes


def checks(settings: Settings, google: Google) -> list[tuple[str, Check]]:
    """Return the checks of the controller, of members held until manual action, and of orphans."""
    return [
        ("controller", partial(_controller, settings.environment, google)),
        ("orphans", partial(_orphans, settings, google)),
    ]


def _controller(environment: str, google: Google, what: str) -> Iterator[Finding]:
    state, leader = BucketStore(google, read_stack(environment).id).leader()
    yield Finding(what, OK, leader or "none acts")
    for name, refusal in sorted(state.refusals.items()):
        if refusal.stopped:
            fix = f"resolve it, then tpu recover {environment}"
            yield Finding(f"held {name}", MISSING, refusal.why, fix)


def _orphans(settings: Settings, google: Google, what: str) -> Iterator[Finding]:
    """Find nodes of this stack without a member, in any zone, and nodes of other stacks."""
    stack, labels = read_stack(settings.environment), names.labels(settings.environment, LAYER)
    observeds = [observed for observed in google.all_nodes() if labels.items() <= observed.labels.items()]
    zones: dict[str, dict[str, ObservedNode]] = {}
    for observed in observeds:
        zones.setdefault(observed.zone, {})[observed.name] = observed
    view = View(time.time(), {zone: ZoneView(listed) for zone, listed in zones.items()}, None)
    owner = Owner(labels, stack.id)
    members = placed(nodes(settings), view, owner, {})
    saved = AdHoc(google, stack.id).read()
    delete = f"tpu fleet delete {settings.environment} --orphans"
    result = [
        (observed, "orphaned, and billed", delete)
        for observed in orphans(members, view, owner)
        if observed.labels.get("fleet") not in saved
    ]
    leave = "leave it to its owner; tpu fleet take-over, if it has none"
    result += [
        (observed, f"of another stack, {observed.labels.get('stack', 'none')}", leave)
        for observed in observeds
        if observed.labels.get("stack") != stack.id and observed.name not in (stack.held or ())
    ]
    for observed, why, fix in result:
        yield Finding(what, OPTIONAL, f"{observed.name} in {observed.zone}, {observed.state}: {why}", fix)
    if not result:
        yield Finding(what, OK, "none")
