"""tpu fleet: create slices, look at them, bring back what Google took away, watch over them."""

import argparse
import json
import math
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from typing import TextIO, TypeVar

from rich.console import Console

from fleet import deploy as plans
from fleet import doctor as fleets
from fleet import hosts, show
from fleet.adhoc import AdHoc
from fleet.arguments import parser
from fleet.controller import Controller, Observation, ZoneTimeouts, busy_s
from fleet.dashboard import Dashboard, serve
from fleet.deletion import delete_nodes
from fleet.environment import Environment, described, followed, from_flags, google_of, opened
from fleet.errors import FleetError
from fleet.model import Action, Cause, Decision, ObservedNode
from fleet.show import Rates
from fleet.store import RENEW_S, BucketStore
from fleet.supervise import take_down_ended
from fleet.unit import unit
from infra.doctor.checks import Target, checks
from infra.doctor.report import format_report, healthy, run_checks
from infra.engine.named import read_stack
from infra.engine.prices import within_budget
from infra.engine.pulumi import confirm, run
from infra.engine.roles import with_roles
from infra.engine.settings import from_file
from infra.errors import InfraError
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.layers.storage.names import controller_account_email
from infra.layers.storage.settings import StorageSettings
from infra.layers.tpu.published import unpublished
from infra.prices import table as prices_table
from infra.settings.schema import FleetSettings, GcpSettings
from infra.slices import price as slices_price
from infra.slices.nodes import Node, nodes

_POLL_S = 2.0
T = TypeVar("T", Node, ObservedNode, Node | ObservedNode)


def status(options: argparse.Namespace) -> int:
    """Look once: every member, what Google and its workers say of it, and what would be done."""
    with _asking():
        observation = opened(options).watcher().step(may=())
    return _told(observation, options.json)


def list_nodes(options: argparse.Namespace) -> int:
    """Every node of this environment, in whatever zone, orphans too unless a slice is named."""
    with _asking():
        observation = opened(options).watcher().step(may=())
    desired = {(one.zone, one.name): one for one in observation.members}
    found = [
        observed for one in observation.members if (observed := observation.view.node(one.name, one.zone))
    ]
    if not options.slice:
        found += [
            observed
            for observed in observation.orphans
            if not options.zones or observed.zone in options.zones
        ]
    if options.json:
        print(json.dumps([_listed(one, desired.get((one.zone, one.name))) for one in found]))
    else:
        print(show.plain(show.listed(found, desired)) if found else "Google lists no node of ours")
    return _complain(observation)


def _listed(observed: ObservedNode, member: Node | None) -> dict[str, str | None]:
    slice_name = member.slice if member else None  # of an orphan
    return {"name": observed.name, "zone": observed.zone, "state": observed.state, "slice": slice_name}


def _asking() -> AbstractContextManager[object]:
    """A spinner while Pulumi and Google are asked, which takes seconds; on a terminal alone."""
    console = Console(stderr=True)
    return console.status("asking Pulumi and Google …") if console.is_terminal else nullcontext()


def create(options: argparse.Namespace) -> int:
    """Create the members that aren't there."""
    return _mend(options, "create", lambda one, _: _absent(one))


def recover(options: argparse.Namespace) -> int:
    """Bring back what Google took away, and nothing else."""
    return _mend(options, "bring back", _was_there, updates=False)


def _absent(one: Decision) -> bool:
    return one.action is Action.CREATE


def _was_there(one: Decision, controller: Controller) -> bool:
    """Whether a member is gone that was there: Google says so, its attempt is open, or the stack holds it."""
    held = controller.owner.held or {}
    recovery_cause = controller.state.recovery_cause(one.member.key) is not None
    return one.cause is Cause.PREEMPTION or (_absent(one) and (recovery_cause or one.node in held))


def delete(options: argparse.Namespace) -> int:
    """Delete members; their checkpoints, shards and the bucket stay."""
    zones, options.zones = options.zones, []  # where they are, whatever the file says by now
    fleet = opened(options)
    observation = fleet.watcher().step(may=())
    silent = _complain(observation)  # what lives there isn't deleted, and its fleet isn't forgotten
    there = [
        one
        for one in observation.members
        if _is_there(one, observation, fleet) and one.zone in (zones or [one.zone])
    ]
    strays = [one for one in observation.orphans if options.orphans and one.zone in (zones or [one.zone])]
    target: list[Node | ObservedNode] = [*there, *strays]
    saved = AdHoc(fleet.google, fleet.stack.id)
    whole = set[str]() if zones or silent else {one.slice for one in fleet.members} & saved.read().keys()
    whole -= {one.slice for one in nodes(fleet.settings) if one not in fleet.members}
    shown = [f"  delete  {one.name} in {one.zone}" for one in target]
    shown += [f"  forget  {name}, which stands in no file" for name in sorted(whole)]
    nothing = "neither the stack nor Google has any of them: nothing to delete"
    if not _is_to_do(options, shown, shown, nothing):
        return max(silent, _done(options, "deleted", target, None))
    confirm(f"Delete {len(target)} slice(s)?", options.yes)
    store = BucketStore(fleet.google, fleet.stack.id)
    state = store.read()  # refuses beside a monitor, which would bring them back
    say = partial(print, file=_out(options))
    try:
        keys = [one.key for one in there]
        gone, failed = delete_nodes(fleet.google, store, state, keys, target, say)
    finally:
        with suppress(InfraError):
            store.write(state, renew=False)
    for name in whole if not failed else ():
        saved.keep(name, None)
    again = f"Pulumi.{options.environment}.yaml still lists them: fleet create and a monitor make them again"
    print(f"deleted {len(gone)}; {again}", file=_out(options))
    if held := [one.name for one in there if one.member is None and one in gone]:
        what = f"pulumi refresh -s {options.environment}"
        print(f"the stack still holds {', '.join(held)}: `{what}`", file=_out(options))
    return max(silent, _done(options, "deleted", target, failed))


def _is_there(node: Node, observation: Observation, fleet: Environment) -> bool:
    """Whether there is a node to delete that is ours."""
    observed = observation.view.node(node.name, node.zone)
    if observed is None:
        return False
    return fleet.owner.owns(observed) if node.member is not None else node.name in (fleet.stack.held or ())


def take_over(options: argparse.Namespace) -> int:
    """Make another stack's members ours, after a yes: for a fleet whose stack is lost."""
    fleet = opened(options)
    observation = fleet.watcher().step(may=())
    target = [
        observed
        for one in observation.members
        if one.member is not None and (observed := observation.view.node(one.name, one.zone))
        if fleet.labels.items() <= observed.labels.items() and not fleet.owner.owns(observed)
    ]
    shown = [
        f"  take over  {one.name} in {one.zone}, of stack {one.labels.get('stack', '?')}" for one in target
    ]
    if not _is_to_do(options, shown, target, "none is of another stack"):
        return _done(options, "taken", target, None)
    confirm(f"Take over {len(target)} slice(s)? Whoever keeps them now must have stopped.", options.yes)
    ours = {**fleet.labels, "stack": fleet.stack.id}
    failed = _each(
        target, lambda one: fleet.google.update(one.zone, one.name, {"labels": {**one.labels, **ours}})
    )
    return _done(options, "taken", target, failed)


def _out(options: argparse.Namespace) -> TextIO:
    """For people; standard output is JSON alone where a program asks."""
    return sys.stderr if options.json else sys.stdout


def _is_to_do(
    options: argparse.Namespace, shown: Sequence[str], meant: Collection[object], nothing: str
) -> bool:
    """Shows what is meant; False where that is nothing, or it was only to be shown."""
    for line in [*shown, *([] if meant else [nothing])]:
        print(line, file=_out(options))
    return bool(meant) and not options.dry_run


def _each(nodes: Sequence[T], change: Callable[[T], None]) -> dict[str, str]:
    """Changes each, whatever becomes of the others; why, by name, where it failed."""
    failed = {}
    for one in nodes:
        try:
            change(one)
        except RequestError as error:
            failed[one.name] = str(error)
            print(f"error: {one.name}: {error}", file=sys.stderr)
    return failed


def _done(
    options: argparse.Namespace,
    what: str,
    meant: Sequence[Node | ObservedNode],
    failed: Mapping[str, str] | None,
) -> int:
    """What came of a command, None where nothing was done; its exit status."""
    if options.json:
        names = [one.name for one in meant]
        done = [] if failed is None else [name for name in names if name not in failed]
        print(json.dumps({"meant": names, what: done, "failed": failed or {}}))
    return 1 if failed else 0


def deploy(options: argparse.Namespace) -> int:
    """Deal samples out, publish the workload, create the slices, and wait until all of them work."""
    fleet = opened(options)
    if not options.skip_dataset and not options.source:
        raise FleetError("no samples\n    fix: --source FILE, or --skip-dataset where the streams are there")
    samples = ["--max-samples", str(options.max_samples)] if options.max_samples else []
    dataset = None if options.skip_dataset else ["--source", *options.source, *samples, *options.rest]
    lines = plans.commands(options.environment, fleet.members, dataset)
    if options.dry_run:
        print("\n".join(f"would run: python {shlex.join(line)}" for line in lines))
        return create(options) if options.create_tpus else 0
    plans.prepare(lines)
    if options.skip_launch:
        print(f"prepared; to create the slices: tpu fleet create {options.environment}")
        return 0
    if options.create_tpus and (code := create(options)):
        return code
    plans.wait_for_all(fleet.watcher(), options.timeout_s)
    print(f"all {len(fleet.members)} work")
    return monitor(options) if options.monitor else 0


def monitor(options: argparse.Namespace) -> int:
    """Watch, and bring back what is lost, until Ctrl+C; which leaves everything as it is."""
    fleet = opened(options)
    if options.watch:
        controller = fleet.watcher()
    else:
        within_budget(fleet.settings)
        controller = fleet.controller()
    title = f"fleet {options.environment}"
    with Dashboard(title, project=fleet.settings.project) as dashboard:
        page = serve(dashboard, options.port) if options.port is not None else None
        try:
            while True:
                fleet = _followed(options, fleet, controller)
                if options.watch:
                    controller.state = controller.store.read()  # what whoever acts has noted since
                observation = controller.step(may=() if options.watch else frozenset(Cause))
                dashboard.show(observation)
                if not options.watch:
                    take_down_ended(fleet, controller, observation, controller.say)
                pause_s = busy_s(len(fleet.members)) if controller.busy else math.inf
                _rest(controller, min(options.monitor_interval, pause_s))
        finally:
            if page:
                page.shutdown()
            if not options.watch:
                _left(controller)


def _rest(controller: Controller, seconds: float) -> None:
    """Sleeps, and renews the lease meanwhile."""
    while seconds > 0:
        nap_s = min(seconds, RENEW_S / 2)
        time.sleep(nap_s)
        controller.renew()
        seconds -= nap_s


def _followed(options: argparse.Namespace, fleet: Environment, controller: Controller) -> Environment:
    """The fleet as its file says by now; as it was before, while the file can't be followed."""
    try:
        new = followed(options, fleet)
        if new.settings == fleet.settings:
            return fleet
        if not options.watch:
            within_budget(new.settings)
        for stored, section in (("gcp", GcpSettings), ("storage", StorageSettings), ("fleet", FleetSettings)):
            if new.settings[section] != fleet.settings[section]:
                raise FleetError(f"{stored}: has changed; to take it up: Ctrl+C, and monitor again")
    except InfraError as error:
        controller.say(f"the settings aren't followed: {error}")
        return fleet
    keys = [{one.key for one in some.members} for some in (fleet, new)]
    changed = [f"{one} is new" for one in sorted(keys[1] - keys[0])]
    changed += [f"{one} is asked for no more" for one in sorted(keys[0] - keys[1])]
    new.follow(controller)
    if changed:
        controller.say(f"the settings changed: {', '.join(changed)}")
    return new


def doctor(options: argparse.Namespace) -> int:
    """Say what would keep the fleet from working: login, APIs, roles, quotas, zones, stacks, bundle."""
    settings, target = from_flags(options)
    if sys.stderr.isatty():
        print("asking Google and Pulumi …", file=sys.stderr)
    google = google_of(settings)
    findings = run_checks([*checks(Target(settings, target, google)), *fleets.checks(settings, google)])
    print(json.dumps([asdict(one) for one in findings]) if options.json else format_report(findings))
    return 0 if healthy(findings) else 1


def _mend(
    options: argparse.Namespace,
    verb: str,
    wanted: Callable[[Decision, Controller], bool],
    updates: bool = True,
) -> int:
    with _asking():
        fleet = opened(options)
        before = fleet.watcher(updates)
        before.state.retry_now()  # a user asks: zones that refused are retried
        observation = before.step(may=())
    due = {
        one.member.key
        for one in observation.decisions
        if one.cause and one.action is not Action.HOLD and wanted(one, before)
    }
    target = [one for one in observation.members if one.key in due]
    shown = [
        f"  {one.action:<8} {one.node}: {one.why}"
        for one in observation.decisions
        if one.member.key in due or one.action in (Action.WAIT, Action.HOLD)
    ]
    shown += [prices_table.table(slices_price.rows(target))] if target else []
    if observation.outdated:
        shown.append(
            f"  update   {', '.join(observation.outdated)}: new settings, taken over at the next boot"
        )
    if not _is_to_do(options, shown, {*due, *observation.outdated}, f"nothing to {verb}"):
        return _told(observation, as_json=True) if options.json else _complain(observation)
    bundles = {one.bundle for one in fleet.members}
    if missing := unpublished(fleet.settings, bundles, fleet.google.bucket, fleet.google.is_there):
        raise FleetError("\n    fix: ".join(missing))
    within_budget(fleet.settings)
    if target:
        confirm(f"{verb.capitalize()} {len(target)} slice(s)?", options.yes)
    controller = fleet.controller(updates)
    controller.state.retry_now()
    if item := described(options):
        AdHoc(fleet.google, fleet.stack.id).keep(item["name"], item)
    try:
        tries = max((len(one.places) for one in target), default=1)
        observation, failures = _brought(controller, due, frozenset(Cause), tries, options.json)
    finally:
        _left(controller)
    if options.json:
        _told(observation, as_json=True)
    elif not failures:
        print(f"done; their hosts boot now: tpu fleet monitor {options.environment}")
    for key, failure in failures.items():
        print(f"error: {key}: {with_roles(str(failure))}", file=sys.stderr)
    if failures:
        print(f"next: the same again, or tpu fleet monitor {options.environment}", file=sys.stderr)
    return 1 if failures else 0


def _brought(
    controller: Controller, due: Collection[str], may: Collection[Cause], tries: int, as_json: bool
) -> tuple[Observation, dict[str, Failure]]:
    """Steps until each member that is due is there, refused in all its zones, or long unknown; those, why."""
    timeouts, failures = ZoneTimeouts(), dict[str, Failure]()
    refused: dict[str, int] = {}
    while True:
        left = {key for key in due if refused.get(key, 0) < tries}
        observation = controller.step(may=may, only=left)
        for event in observation.events:
            print(event, file=sys.stderr if as_json else sys.stdout, flush=True)
        for key, failure in (observation.failures or {}).items():
            refused[key] = refused.get(key, 0) + 1
            failures[key] = failure
        by_key = {one.member.key: one for one in observation.decisions}
        held = {key: by_key[key].why for key in left if by_key[key].action is Action.HOLD}
        held |= timeouts.lost(observation, left)
        there = {key for key in due if by_key[key].action is Action.LEAVE}
        failures = {key: failure for key, failure in failures.items() if key not in there}
        if left | {*controller.under_way} <= there | held.keys() and not (
            observation.outdated and observation.begun
        ):
            for key, why in held.items():
                failures.setdefault(key, Failure(Kind.UNKNOWN, why))
            return observation, failures
        time.sleep(_POLL_S)


def _left(controller: Controller) -> None:
    """Gives the lease up; says what continues without it."""
    if controller.busy:
        nodes = ", ".join(controller.under_way)
        print(f"{nodes}: operations continue; see fleet status", file=sys.stderr)
    controller.leave()


def _told(observation: Observation, as_json: bool) -> int:
    found = show.rows(observation, Rates())
    if as_json:
        print(json.dumps(show.as_json(observation, found)))
    else:
        print("\n".join([show.plain(show.table(found)), show.summary(found), *show.remarks(observation)]))
    return _complain(observation)


def _complain(observation: Observation) -> int:
    """Says who didn't answer; the exit status."""
    silent = show.unanswered(observation)
    for line in silent:
        print(line, file=sys.stderr)
    return 1 if silent else 0


def print_unit(options: argparse.Namespace) -> int:
    """Print a systemd unit that keeps a controller up on a machine with a checkout."""
    settings = from_file(options.environment)
    account = controller_account_email(settings) if settings[StorageSettings].controller_account_id else ""
    print(unit(options.environment, read_stack(options.environment).id, account), end="")
    return 0


COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], int], str]] = {
    "create": (create, "dev --tpu-type v6e-8 --zones us-east5-a,us-east5-b --workers-per-zone 2"),
    "delete": (delete, "dev --slice extract --yes"),
    "status": (status, "dev --json"),
    "list": (list_nodes, "dev"),
    "recover": (recover, "dev --yes"),
    "take-over": (take_over, "dev --slice extract"),
    "deploy": (deploy, "dev --slice extract --source prompts.jsonl --create-tpus --monitor -- --id id"),
    "monitor": (monitor, "dev --monitor-interval 30 --port 8899"),
    "exec": (hosts.execute, "dev --slice extract -- sudo systemctl restart google-startup-scripts"),
    "restart": (hosts.restart, "dev --slice extract"),
    "ssh": (hosts.login, "dev tpu-us-east5-a-0 --worker 1"),
    "doctor": (doctor, "dev"),
    "unit": (print_unit, "dev"),
}


def _end(*_: object) -> None:
    """Ends as Ctrl+C does, so that the lease is given up."""
    raise SystemExit(128 + signal.SIGTERM)


def main(arguments: list[str] | None = None, prog: str = "tpu fleet") -> int:
    """Read the command line and run the command; the exit status."""
    line = sys.argv[1:] if arguments is None else arguments
    mine, rest = (line[: line.index("--")], line[line.index("--") + 1 :]) if "--" in line else (line, [])
    options = parser(COMMANDS, prog).parse_args(mine)
    options.rest = rest
    signal.signal(signal.SIGTERM, _end)  # as service managers end a monitor
    code = run(lambda: int(options.run(options)))
    if code == 130 and options.command == "monitor":
        print(
            f"the fleet is as it was; to come back: tpu fleet monitor {options.environment}",
            file=sys.stderr,
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
