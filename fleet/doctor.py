"""What would keep a fleet from working beside what its environment lacks (infra/doctor)."""

import time
from collections.abc import Iterator
from functools import partial

from fleet.environment import AdHoc
from fleet.google import Google
from fleet.members import orphans, placed
from fleet.state import Owner, Seen, View, ZoneView
from fleet.store import leader_of
from infra import names
from infra.doctor.report import Check
from infra.named import LAYER, read_stack
from infra.nodes import nodes
from infra.settings import Settings
from tools.doctor import MISSING, OK, OPTIONAL, Finding


def checks(settings: Settings, google: Google) -> list[tuple[str, Check]]:
    """Who keeps the fleet, what is held until a person has acted, and nodes that nobody asks for."""
    return [
        ("controller", partial(_controller, settings.environment, google)),
        ("orphans", partial(_orphans, settings, google)),
    ]


def _controller(environment: str, google: Google, what: str) -> Iterator[Finding]:
    memory, leader = leader_of(google, read_stack(environment).id, time.time())
    yield Finding(what, OK, leader or "none at work")
    for name, refusal in sorted(memory.refusals.items()):
        if refusal.stopped:
            fix = f"mend that, then python -m fleet recreate-preempted {environment}"
            yield Finding(f"held {name}", MISSING, refusal.why, fix)


def _orphans(settings: Settings, google: Google, what: str) -> Iterator[Finding]:
    """Nodes of this stack, in whatever zone, that no setting asks for; and nodes of other stacks."""
    stack, labels = read_stack(settings.environment), names.labels(settings.environment, LAYER)
    there = [seen for seen in google.everywhere() if labels.items() <= seen.labels.items()]
    zones: dict[str, dict[str, Seen]] = {}
    for seen in there:
        zones.setdefault(seen.zone, {})[seen.name] = seen
    view = View(time.time(), {zone: ZoneView(listed) for zone, listed in zones.items()}, None)
    owner = Owner(labels, stack.id)
    members = placed(nodes(settings), view, owner, {})
    saved = AdHoc(google, stack.id).read()
    delete = f"python -m fleet delete {settings.environment} --orphans"
    found = [
        (seen, "asked for by nobody, and paid for", delete)
        for seen in orphans(members, view, owner)
        if seen.labels.get("fleet") not in saved
    ]
    leave = "leave it to whose it is; python -m fleet take-over, if nobody's"
    found += [
        (seen, f"of another stack, {seen.labels.get('stack', 'none')}", leave)
        for seen in there
        if seen.labels.get("stack") != stack.id and seen.name not in (stack.held or ())
    ]
    for seen, why, fix in found:
        yield Finding(what, OPTIONAL, f"{seen.name} in {seen.zone}, {seen.state}: {why}", fix)
    if not found:
        yield Finding(what, OK, "none")
