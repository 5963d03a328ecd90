"""Delete members and orphans; import another stack's members."""

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from fleet.adhoc import AdHoc
from fleet.controller import Observation
from fleet.deletion import delete_nodes
from fleet.environment import Environment, opened
from fleet.model import ObservedNode
from fleet.observing import report_unanswered
from fleet.request import Request
from fleet.store import BucketStore
from infra.engine.pulumi import confirm
from infra.errors import InfraError
from infra.google.client import RequestError
from infra.slices.nodes import Node, nodes


def delete(request: Request, *, orphans: bool = False) -> int:
    """Delete members; their checkpoints, shards and the bucket stay.

    Args:
        request: which members.
        orphans: delete nodes outside the settings, too.
    """
    # Zones select nodes by their present place, whatever home zone the file names.
    zones, request = request.zones, replace(request, zones=())
    fleet = opened(request, allow_empty=True)
    observation = fleet.watcher().step(may=())
    unanswered = report_unanswered(observation)  # nodes there aren't deleted, and their fleet isn't forgotten
    members = [
        member
        for member in observation.members
        if _exists(member, observation, fleet) and (not zones or member.zone in zones)
    ]
    strays = [orphan for orphan in observation.orphans if orphans and (not zones or orphan.zone in zones)]
    target: list[Node | ObservedNode] = [*members, *strays]

    # Ad hoc fleets that are deleted as a whole are forgotten.
    saved = AdHoc(fleet.google, fleet.stack.id)
    forgotten = (
        set[str]()
        if zones or unanswered
        else {member.slice for member in fleet.members} & saved.read().keys()
    )
    forgotten -= {node.slice for node in nodes(fleet.settings) if node not in fleet.members}
    lines = [f"  delete  {node.name} in {node.zone}" for node in target]
    lines += [f"  forget  {name}, which is in no settings file" for name in sorted(forgotten)]
    if not _show(request, lines, lines, "neither the stack nor Google has any of them: nothing to delete"):
        return max(unanswered, _report(request, "deleted", target, None))

    confirm(f"Delete {len(target)} slice(s)?", request.yes)
    store = BucketStore(fleet.google, fleet.stack.id)
    state = store.read()  # refused while a monitor runs, which would recreate them
    try:
        keys = [member.key for member in members]
        output = partial(print, file=request.output)
        gone, failed = delete_nodes(fleet.google, store, state, keys, target, output)
    finally:
        with suppress(InfraError):
            store.write(state, renew=False)
    for name in forgotten if not failed else ():
        saved.keep(name, None)
    _advise(request, members, gone, forgotten)
    return max(unanswered, _report(request, "deleted", target, failed))


def _advise(
    request: Request,
    members: Sequence[Node],
    gone: Collection[Node | ObservedNode],
    forgotten: Collection[str],
) -> None:
    """Print how many nodes are gone, whether they come back, and what the stack still holds."""
    listed = any(member.slice not in forgotten for member in members)
    file = f"Pulumi.{request.environment}.yaml"
    again = f"; {file} still lists them: fleet create and a monitor recreate them" if listed else ""
    print(f"deleted {len(gone)}{again}", file=request.output)
    if held := [member.name for member in members if member.member is None and member in gone]:
        refresh = f"pulumi refresh -s {request.environment}"
        print(f"the stack still holds {', '.join(held)}: `{refresh}`", file=request.output)


def _exists(member: Node, observation: Observation, fleet: Environment) -> bool:
    """Return whether this stack has a node of the member."""
    node = observation.view.node(member.name, member.zone)
    if node is None:
        return False
    return fleet.owner.owns(node) if member.member is not None else member.name in (fleet.stack.held or ())


def take_over(request: Request) -> int:
    """Adopt another stack's members, after a question; for a fleet whose stack is lost."""
    fleet = opened(request)
    observation = fleet.watcher().step(may=())
    target = [
        node
        for member in observation.members
        if member.member is not None and (node := observation.view.node(member.name, member.zone))
        if fleet.labels.items() <= node.labels.items() and not fleet.owner.owns(node)
    ]
    lines = [
        f"  take over  {node.name} in {node.zone}, of stack {node.labels.get('stack', '?')}"
        for node in target
    ]
    if not _show(request, lines, target, "none belongs to another stack"):
        return _report(request, "taken", target, None)
    confirm(f"Take over {len(target)} slice(s)? Their present controller must have stopped.", request.yes)
    labels = {**fleet.labels, "stack": fleet.stack.id}
    failed: dict[str, str] = {}
    for node in target:
        try:
            fleet.google.update(node.zone, node.name, {"labels": {**node.labels, **labels}})
        except RequestError as error:
            failed[node.name] = str(error)
            print(f"error: {node.name}: {error}", file=sys.stderr)
    return _report(request, "taken", target, failed)


def _show(request: Request, lines: Sequence[str], target: Collection[object], empty: str) -> bool:
    """Print the changes, or `empty` if there is no target; return whether to continue."""
    for line in [*lines, *([] if target else [empty])]:
        print(line, file=request.output)
    return bool(target) and not request.dry_run


def _report(
    request: Request, key: str, target: Sequence[Node | ObservedNode], failed: Mapping[str, str] | None
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
