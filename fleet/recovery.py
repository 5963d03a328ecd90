"""Create and recover members: observe once, show the changes and their price, ask, act until each is up."""

import sys
import time
from collections.abc import Callable, Collection, Sequence

from fleet.adhoc import PHASE
from fleet.controller import Controller
from fleet.environment import Environment, opened
from fleet.errors import FleetError
from fleet.model import Action, Cause, Condition, Decision, changeover
from fleet.observation import Observation
from fleet.observing import print_status, progress, report_unanswered
from fleet.request import FleetCommand
from infra.engine.prices import within_budget
from infra.engine.pulumi import confirm
from infra.engine.roles import with_roles
from infra.google.failures import Failure, Kind
from infra.layers.tpu.published import unpublished
from infra.prices import table as prices_table
from infra.settings.sources import ROOT
from infra.slices import inputs, preflight
from infra.slices import price as slices_price
from infra.slices.nodes import Node
from infra.slices.settings import TpuSettings
from views.counts import counted

_POLL_S = 2.0
_PATIENCE_S = 300.0  # with a zone that doesn't answer


def create(request: FleetCommand, later: Collection[str] = ()) -> int:
    """Create the members that don't exist; `later`: settings whose folders a program doesn't need yet."""
    return _change(request, "create", lambda decision, _: decision.action is Action.CREATE, later=later)


def recover(request: FleetCommand) -> int:
    """Recreate the members that Google preempted or deleted."""
    return _change(request, "recover", was_lost, updates=False)


def was_lost(decision: Decision, controller: Controller) -> bool:
    """Return whether a member existed and is gone: preempted, being recovered, or held by the stack."""
    held = controller.owner.held or {}
    recovering = controller.state.recovery_cause(decision.member.key) is not None
    absent = decision.action is Action.CREATE
    return decision.cause is Cause.PREEMPTION or (absent and (recovering or decision.node in held))


def _change(
    request: FleetCommand,
    verb: str,
    selects: Callable[[Decision, Controller], bool],
    updates: bool = True,
    later: Collection[str] = (),
) -> int:
    """Carry out the decisions that `selects` accepts; `updates`: also give living nodes new settings."""
    with progress():
        fleet = opened(request)
        controller = fleet.controller(updates=updates, manual=True, unheld=verb == "create")
        observation = controller.step()
    due = {
        decision.member.key
        for decision in observation.decisions
        if decision.cause and decision.action is not Action.HOLD and selects(decision, controller)
    }
    members = [member for member in observation.members if member.key in due]
    adds = request.adhoc is not None and PHASE not in fleet.adhoc[request.adhoc["name"]]
    if verb == "create":
        _require_read(request, fleet, members, later)
    for line in _plan(observation, due, members):
        print(line, file=request.output)
    changes = bool(due or observation.outdated or adds)
    if not changes:
        print(f"nothing to {verb}", file=request.output)
    if request.dry_run or not changes:
        return print_status(observation, as_json=True) if request.as_json else report_unanswered(observation)

    updated = [member.slice for member in observation.members if member.key in observation.outdated]
    _require_startable(fleet)
    if members:
        confirm(f"{verb.capitalize()} {counted(len(members), 'slice')}?", request.yes)
    controller.lead()
    try:
        if adds and request.adhoc:
            fleet.add(request.adhoc["name"])
        attempts = max((len(member.places) for member in members), default=1)
        observation, failures = _until_up(controller, due, attempts, request)
    finally:
        release(controller)
    return _report(request, observation, failures, bool(due), [*dict.fromkeys(updated)])


def _plan(observation: Observation, due: Collection[str], members: Sequence[Node]) -> list[str]:
    """Return the changes, the price of new nodes, and updates of living ones."""
    lines = [
        f"  {decision.action:<8} {decision.node}: {decision.why}"
        for decision in observation.decisions
        if decision.member.key in due or decision.action in (Action.WAIT, Action.HOLD)
    ]
    lines += [prices_table.table(slices_price.rows(members))] if members else []
    if observation.outdated:
        names = ", ".join(observation.outdated)
        lines.append(f"  update   {names}: new settings, which hosts have after their next boot")
    return lines


def _require_read(
    request: FleetCommand, fleet: Environment, members: Sequence[Node], later: Collection[str]
) -> None:
    """Raise InfraError for what the members' programs would refuse, or read and isn't there."""
    code, own = fleet.settings[TpuSettings].code, fleet.settings[TpuSettings].bundle
    read = [member for member in members if member.bundle == own]
    inputs.require(fleet.google, request.environment, inputs.of(read), ROOT / (code or ""), later)
    for verdict in preflight.of(read, code):
        print(verdict.line, file=request.output)


def _require_startable(fleet: Environment) -> None:
    """Raise FleetError if the bundle isn't published, InfraError above the budget."""
    bundles = {member.bundle for member in fleet.members}
    if missing := unpublished(fleet.settings, bundles, fleet.google.bucket, fleet.google.is_there):
        raise FleetError("\n    fix: ".join(missing))
    within_budget(fleet.settings)


def _until_up(
    controller: Controller, due: Collection[str], attempts: int, request: FleetCommand
) -> tuple[Observation, dict[str, Failure]]:
    """Step until each due member is up, refused `attempts` times, or unknown for too long.

    Returns:
        The last observation, and the failure of each member that isn't up, by key.
    """
    silent_since_s: dict[str, float] = {}  # by zone
    failures: dict[str, Failure] = {}
    refused: dict[str, int] = {}
    while True:
        pending = {key for key in due if refused.get(key, 0) < attempts}
        observation = controller.step(only=pending)
        for event in observation.events:
            print(event, file=request.output, flush=True)
        for key, failure in observation.failures.items():
            refused[key] = refused.get(key, 0) + 1
            failures[key] = failure

        # A pending member is given up if it is held, or if its zone doesn't answer for minutes.
        decisions = {decision.member.key: decision for decision in observation.decisions}
        held = {key: decisions[key].why for key in pending if decisions[key].action is Action.HOLD}
        held |= _out_of_reach(observation, pending, silent_since_s)
        up = {key for key in due if decisions[key].action is Action.LEAVE}
        failures = {key: failure for key, failure in failures.items() if key not in up}
        settled = pending | {*controller.under_way} <= up | held.keys()
        if settled and not (observation.outdated and observation.begun):
            for key, why in held.items():
                failures.setdefault(key, Failure(Kind.UNKNOWN, why))
            return observation, failures
        time.sleep(_POLL_S)


def _out_of_reach(
    observation: Observation, keys: Collection[str], silent_since_s: dict[str, float]
) -> dict[str, str]:
    """Return the members that are unknown since a zone hasn't answered for 5 min, with the reason.

    Args:
        observation: the present one.
        keys: of the members in question.
        silent_since_s: by zone, the first observation without an answer; updated.
    """
    now_s = observation.view.at_s
    silent = {zone for zone, view in observation.view.zones.items() if view.failure}
    for zone in silent_since_s.keys() - silent:
        del silent_since_s[zone]
    late = sorted(zone for zone in silent if now_s - silent_since_s.setdefault(zone, now_s) >= _PATIENCE_S)
    why = f"{', '.join(late)} didn't answer for {_PATIENCE_S / 60:.0f} min"
    return {
        decision.member.key: why
        for decision in observation.decisions
        if late and decision.action is Action.WAIT and decision.member.key in keys
        if decision.zone in late or decision.condition is Condition.UNKNOWN
    }


def _report(
    request: FleetCommand,
    observation: Observation,
    failures: dict[str, Failure],
    new: bool,
    updated: Sequence[str],
) -> int:
    """Print the outcome; return the exit status. `new`: nodes are; `updated`: slices with living ones."""
    if request.as_json:
        print_status(observation, as_json=True)
    elif not failures:
        print(f"done{'; new nodes boot now' if new else ''}; next: tpu status {request.environment} --watch")
        if updated:
            now = changeover(request.environment, updated)
            print(f"living nodes start with the new settings at their next boot, or now: {now}")
    for key, failure in failures.items():
        print(f"error: {key}: {with_roles(str(failure))}", file=sys.stderr)
    if failures:
        retry = f"next: repeat the command, or let tpu fleet monitor {request.environment} retry"
        print(retry, file=sys.stderr)
    return 1 if failures else 0


def release(controller: Controller) -> None:
    """Release the lease; print the operations that continue without it."""
    if controller.busy:
        nodes = ", ".join(controller.under_way)
        print(f"{nodes}: operations continue at Google; see tpu status", file=sys.stderr)
    controller.leave()
