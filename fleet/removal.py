"""Delete members and orphans; take another stack's members over."""

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fleet.adhoc import PHASE, AdHoc, Phase, owner
from fleet.controller import Controller
from fleet.environment import Environment, google_of, opened
from fleet.errors import FleetError, FleetInputError
from fleet.model import GOING, ObservedNode, View
from fleet.observation import Observation
from fleet.observing import report_unanswered
from fleet.request import FleetCommand
from infra.engine.named import stack_id
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.google.client import RequestError
from infra.settings.sources import ROOT
from infra.slices.nodes import Node, nodes
from views.counts import counted

_POLL_S = 2.0
_LONGEST_S = 900.0
"""Time for which a command waits until nodes are gone; a deletion takes minutes."""
_ANEW = "was made anew by its fleet's controller meanwhile: not deleted, and billed"


def delete(request: FleetCommand, *, orphans: bool = False) -> int:
    """Delete members; their checkpoints, shards and the bucket stay.

    Slices that the stack holds are deleted by name alone: `tpu down` ends them in order.

    Args:
        request: which members.
        orphans: delete nodes outside the settings, too.

    Raises:
        FleetInputError: `--zones` selects nothing but slices of the stack.
    """
    # Zones select nodes by their present place, whatever home zone the file names.
    zones, request = request.zones, replace(request, zones=())
    fleet = opened(request, allow_empty=True)
    controller = fleet.controller()
    observation = controller.step()
    unanswered = report_unanswered(observation)  # nodes there aren't deleted, and their fleet isn't forgotten
    living = [
        (member, observed)
        for member, observed in observation.nodes
        if (member.member is not None or member.name in (fleet.stack.held or ()))
        if not zones or member.zone in zones
    ]
    stacked = [] if request.slices else [node for member, node in living if member.member is None]
    living = [pair for pair in living if pair[1] not in stacked]
    # Ad hoc fleets that are deleted as a whole end.
    forgotten = (
        set[str]() if zones or unanswered else {member.slice for member in fleet.members} & fleet.adhoc.keys()
    )
    forgotten -= {node.slice for node in nodes(fleet.settings) if node not in fleet.members}
    strays = [
        orphan for orphan in observation.orphans
        if orphans or orphan.labels.get("fleet") in forgotten
        if not zones or orphan.zone in zones
    ]  # fmt: skip
    target = [*(observed for _, observed in living), *strays]
    lines = [f"  delete  {node.name} in {node.zone}" for node in target]
    lines += _left_alone(observation, forgotten)
    lines += [f"  forget  {name}, which is in no settings file" for name in sorted(forgotten)]
    empty = "nothing to delete" if stacked else "neither the stack nor Google has any: nothing to delete"
    if stacked:
        names = ", ".join(node.name for node in stacked)
        fix = f"tpu down {request.environment}; or one by its name: --slice {stacked[0].name}"
        if zones and not lines:
            raise FleetInputError(f"{names}: held by the stack; nothing was deleted\n    fix: {fix}")
        print(f"  leave   {names}, which the stack holds: {fix}", file=request.output)
    if not _show(request, lines, lines, empty):
        return max(unanswered, _report(request, "deleted", target, None))

    confirm(f"Delete {counted(len(target), 'slice')}?", request.yes)
    controller.lead()  # refused while a monitor runs, which would recreate them
    try:
        view = _require_shown(fleet, controller, observation, forgotten, target)
        keys = {member.key for member, _ in living}
        keys |= {member.key for member in fleet.members if member.slice in forgotten}
        output = partial(print, file=request.output)
        ends = dict.fromkeys(sorted(forgotten), "deleted by a command")
        gone, failed = delete_nodes(fleet, controller, view, keys, target, output, ends)
    finally:
        controller.leave()
    _advise(request, living, gone, forgotten)
    if failed:
        print("    fix: this command again", file=sys.stderr)
    return max(unanswered, _report(request, "deleted", target, failed))


def _require_shown(
    fleet: Environment,
    controller: Controller,
    observation: Observation,
    ending: Collection[str],
    shown: Sequence[ObservedNode],
) -> View:
    """Return the present view. Raises FleetError if a fleet that ends has a node that wasn't shown."""
    if not ending:
        return observation.view
    view = fleet.google.observe(sorted(observation.view.zones))
    controller.record_ids(view)
    known = {(node.zone, node.name) for node in shown}
    present = [view.node(name, zone) for zone, name in sorted(controller.own_places(view) - known)]
    if new := [node.name for node in present if node and node.labels.get("fleet") in ending]:
        problem = f"{', '.join(new)}: created since the question; nothing was deleted"
        raise FleetError(f"{problem}\n    fix: this command again")
    return view


def _left_alone(observation: Observation, fleets: Collection[str]) -> list[str]:
    """Return a line for each node in the place of a fleet's that isn't its own."""
    own = {(observed.zone, observed.name) for _, observed in observation.nodes}
    return [
        f"  leave   {item.node} in {item.zone}: {item.why.partition(chr(10))[0]}"
        for item in observation.decisions
        if item.member.slice in fleets and (item.zone, item.node) not in own
        if observation.view.node(item.node, item.zone)
    ]


def delete_nodes(
    fleet: Environment,
    controller: Controller,
    view: View,
    keys: Collection[str],
    nodes: Sequence[ObservedNode],
    report: Callable[[str], None],
    ends: Mapping[str, str],
    longest_s: float = _LONGEST_S,
) -> tuple[list[ObservedNode], dict[str, str]]:
    """Record the deletion of members, delete each node, and wait until Google lists none of them.

    The records of ad hoc fleets that end say so before the first deletion: if this process dies in between,
    or waits no longer, the next controller deletes, and creates nothing.

    Args:
        fleet: the environment, with the records as they were read.
        controller: leads; nothing more is deleted once it has lost the lease.
        view: the last observation.
        keys: of the members, which aren't to be recovered.
        nodes: of the members, and others; a node of such a name with another id is left alone.
        report: receives the number of nodes that are gone.
        ends: ad hoc fleets of which these are all nodes, with the reason of their end.
        longest_s: time to wait.

    Returns:
        The nodes that are gone, and by name the errors of the others.

    Raises:
        ConcurrentChangeError: a record has changed since it was read; nothing was deleted.
        LeaseHeldError: another controller has taken the lease.
        FleetError: the bucket doesn't answer, or a record doesn't take the ids of its nodes.
    """
    google = fleet.google
    if (problems := controller.record_ids(view)) and ends:  # others' nodes would be late ones of it
        raise FleetError("\n".join([*problems, "    nothing was deleted; fix: this command again"]))
    controller.forget(keys)
    for name, why in ends.items():
        fleet.saved.keep(name, fleet.adhoc[name], Phase.ENDING, why)
    failed: dict[str, str] = {}
    for node in nodes:
        controller.renew()
        if node.state in GOING:
            continue  # by an earlier request
        try:
            present = google.node(node.zone, node.name)
            if present is None or not _same(present, node):
                continue
            google.delete(node.zone, node.name)
        except RequestError as error:
            failed[node.name] = str(error)
            print(f"error: {node.name}: {error}", file=sys.stderr)
    left = requested = [node for node in nodes if node.name not in failed]
    until_s = time.monotonic() + longest_s
    while left and time.monotonic() < until_s:
        time.sleep(_POLL_S)
        controller.renew()
        view = google.observe(sorted({node.zone for node in left}))
        if anew := [node for node in left if _made_anew(node, view)]:
            # Unless they are entered, they are late nodes once the fleet has ended.
            problem = "; ".join(controller.record_ids(view))
            own = controller.own_places(view)
            failed |= {
                node.name: problem or _ANEW for node in anew if problem or (node.zone, node.name) in own
            }
        before, left = len(left), [node for node in left if _maybe_there(node, view)]
        if len(left) != before:
            remade = sum(node.name in failed for node in requested)
            report(f"{len(requested) - len(left) - remade} of {len(requested)} gone")
    failed |= dict.fromkeys(
        (node.name for node in left),
        f"is being deleted, and isn't known to be gone after {longest_s:.0f} s",
    )
    for node in requested:
        if node.name in failed:
            report(f"{node.name}: {failed[node.name]}")
    gone = [node for node in requested if node.name not in failed]
    for name, why in ends.items() if not failed else ():
        fleet.saved.keep(name, fleet.adhoc[name], Phase.ENDED, why)
    return gone, failed


def of_fleet(observation: Observation, name: str) -> list[ObservedNode]:
    """Return all nodes of a fleet: its members', and others with its label."""
    members = [observed for member, observed in observation.nodes if member.slice == name]
    return [*members, *(orphan for orphan in observation.orphans if orphan.labels.get("fleet") == name)]


def require_no_fleets(environment: str, resources: Sequence[Mapping[str, Any]], root: Path = ROOT) -> None:
    """Raise FleetError if ad hoc fleets stand on a stack that is to be destroyed, with or without nodes.

    Args:
        environment: its name.
        resources: of the stack.
        root: the project's folder.
    """
    if not (stack := stack_id(resources)):
        return
    saved = AdHoc(google_of(from_file(environment, root)), stack, environment)
    wanted = saved.read()
    if not wanted and not saved.unread:
        return
    lines = [f"{name}: ad hoc, of {owner(item)}, {item[PHASE]}" for name, item in sorted(wanted.items())]
    names = " ".join(f"--slice {name}" for name in sorted(wanted))
    fix = f"tpu fleet delete {environment} {names}, then this command again"
    fixes = [f"    fix: {fix}"] if wanted else []
    problem = "ad hoc fleets stand on the stack of tpu; nothing was destroyed"
    raise FleetError("\n".join([problem, *lines, *saved.unread.values(), *fixes]))


def _maybe_there(node: ObservedNode, view: View) -> bool:
    present = view.node(node.name, node.zone)
    return view.zones[node.zone].nodes is None or (present is not None and _same(present, node))


def _made_anew(node: ObservedNode, view: View) -> bool:
    present = view.node(node.name, node.zone)
    return present is not None and present.instance != node.instance


def _same(present: ObservedNode, node: ObservedNode) -> bool:
    """Return whether a node of this name is the one that was observed, and still of the same stack."""
    stack = [item.labels.get("stack") for item in (present, node)]
    return present.instance == node.instance and stack[0] == stack[1]


def _advise(
    request: FleetCommand,
    living: Sequence[tuple[Node, ObservedNode]],
    gone: Collection[ObservedNode],
    forgotten: Collection[str],
) -> None:
    """Print how many nodes are gone, whether they come back, and what the stack still holds."""
    listed = any(member.member is not None and member.slice not in forgotten for member, _ in living)
    file = f"Pulumi.{request.environment}.yaml"
    again = f"; {file} still lists them: tpu fleet create or a monitor recreates them" if listed else ""
    print(f"deleted {len(gone)}{again}", file=request.output)
    if held := [item.name for item, node in living if item.member is None and node in gone]:
        end = f"delete the entry in {file}, then tpu up {request.environment}"
        again = "tpu recover or a monitor recreates what isn't done"
        print(f"the stack still holds {', '.join(held)}, and {again}: {end}", file=request.output)


def take_over(request: FleetCommand) -> int:
    """Take another stack's members over, after a question; for a fleet whose stack is lost."""
    fleet = opened(request)
    observation = fleet.controller().step()
    target = [
        node
        for member in observation.members
        if member.member is not None and member.slice not in fleet.adhoc  # those go by their record
        if (node := observation.view.node(member.name, member.zone))
        if fleet.owner.labels.items() <= node.labels.items() and not fleet.owner.owns(node)
    ]
    lines = [
        f"  take over  {node.name} in {node.zone}, of stack {node.labels.get('stack', '?')}"
        for node in target
    ]
    if not _show(request, lines, target, "none belongs to another stack"):
        return _report(request, "taken", target, None)
    confirm(
        f"Take over {counted(len(target), 'slice')}? Their present controller must have stopped.", request.yes
    )
    labels = {**fleet.owner.labels, "stack": fleet.stack.id}
    failed: dict[str, str] = {}
    for node in target:
        try:
            present = fleet.google.node(node.zone, node.name)
            if present is None or not _same(present, node):
                failed[node.name] = "is left alone: it has changed since it was read"
                print(f"error: {node.name} {failed[node.name]}", file=sys.stderr)
                continue
            fleet.google.update(node.zone, node.name, {"labels": {**present.labels, **labels}})
        except RequestError as error:
            failed[node.name] = str(error)
            print(f"error: {node.name}: {error}", file=sys.stderr)
    return _report(request, "taken", target, failed)


def _show(request: FleetCommand, lines: Sequence[str], target: Collection[object], empty: str) -> bool:
    """Print the changes, or `empty` if there is no target; return whether to continue."""
    for line in [*lines, *([] if target else [empty])]:
        print(line, file=request.output)
    return bool(target) and not request.dry_run


def _report(
    request: FleetCommand, key: str, target: Sequence[ObservedNode], failed: Mapping[str, str] | None
) -> int:
    """Print the outcome for programs; return the exit status.

    Args:
        request: the command.
        key: name of the changed nodes in the JSON document.
        target: nodes to change.
        failed: error by node name; None if nothing was attempted.
    """
    if request.as_json:
        names = [node.name for node in target]
        changed = [] if failed is None else [name for name in names if name not in failed]
        print(json.dumps({"meant": names, key: changed, "failed": failed or {}}))
    return 1 if failed else 0
