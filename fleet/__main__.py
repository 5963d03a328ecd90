"""python -m fleet: create slices, look at them, bring back what Google took away, watch over them."""

import argparse
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from fleet import deploy as plans
from fleet import provision, show
from fleet.adopt import ours
from fleet.books import Borrowed, BucketBooks
from fleet.dashboard import Dashboard, serve
from fleet.decide import Limits
from fleet.errors import FleetError
from fleet.google import Google
from fleet.loop import Books, Builder, Keeper, Look
from fleet.roster import Wish, members, within_budget
from fleet.show import Rates
from fleet.state import Action, Cause
from infra import names, prices
from infra.cli import run
from infra.nodes import Node, nodes
from infra.settings import Settings, from_file

_POLL_S = 2.0
_BUSY_S = 10.0  # between looks while an update is under way
_ASKED_AGAIN_S = 300.0  # what the stack holds, by those who only look


@dataclass(frozen=True)
class Fleet:
    """What every command needs: the settings, the members that are meant, Google."""

    settings: Settings
    members: tuple[Node, ...]
    google: Google

    @property
    def labels(self) -> dict[str, str]:
        """What every slice of this environment's stack carries."""
        return names.labels(self.settings.environment, provision.LAYER)

    @property
    def limits(self) -> Limits:
        """As the settings say."""
        fleet = self.settings.fleet
        return Limits(fleet.preemptions_per_day, fleet.failures_per_day, fleet.silence_s)

    def watcher(self) -> Keeper:
        """One that only looks."""
        return self._keeper(_Nobody(self.settings.environment), Borrowed(self.google))

    def keeper(self) -> Keeper:
        """One that may act."""
        books = BucketBooks(self.google)
        return self._keeper(provision.Updates(self.settings.environment), books)

    def _keeper(self, builder: Builder, books: Books) -> Keeper:
        everyone = nodes(self.settings)
        return Keeper(self.members, self.google, builder, books, self.limits, self.labels, everyone=everyone)


class _Nobody:
    """A builder for those who only look; it asks the stack again every few minutes."""

    def __init__(self, environment: str):
        self._environment, self._at_s = environment, -math.inf
        self._held: Collection[str] | None = None

    def held(self) -> Collection[str] | None:
        """See `loop.Builder`."""
        if time.monotonic() - self._at_s > _ASKED_AGAIN_S:
            self._held, self._at_s = provision.asked(self._environment), time.monotonic()
        return self._held

    def start(self, nodes: Sequence[str]) -> None:
        """See `loop.Builder`."""
        raise AssertionError(f"{nodes} were to be brought back by somebody who only looks")

    def ended(self) -> None:
        """See `loop.Builder`."""


def _open(options: argparse.Namespace) -> Fleet:
    settings = from_file(options.environment)
    meant = members(settings, Wish(options.slice, options.zones, options.workers_per_zone))
    if not meant:
        raise FleetError(f"Pulumi.{options.environment}.yaml lists no slices\n    fix: tpu:slices")
    return Fleet(settings, meant, Google(settings.gcp.project, settings.storage.bucket_name))


def status(options: argparse.Namespace) -> int:
    """Look once: every member, what Google and its workers say of it, and what would be done."""
    fleet = _open(options)
    look = fleet.watcher().step(may=())
    return _told(fleet, look, options.json)


def list_nodes(options: argparse.Namespace) -> int:
    """Every node that carries this environment's labels, orphans too."""
    fleet = _open(options)
    look = fleet.google.look(sorted({one.zone for one in nodes(fleet.settings)}))
    wanted = {(one.zone, one.name): one for one in nodes(fleet.settings)}
    found = [
        seen
        for zone in look.zones.values()
        for seen in (zone.nodes or {}).values()
        if fleet.labels.items() <= seen.labels.items() or (seen.zone, seen.name) in wanted
    ]
    if options.json:
        print(json.dumps([{"name": one.name, "zone": one.zone, "state": one.state} for one in found]))
    else:
        print(show.listed(found, wanted) if found else "Google lists no node of ours")
    failed = [f"{zone} didn't answer: {view.failure}" for zone, view in look.zones.items() if view.failure]
    if failed:
        print("\n".join(failed), file=sys.stderr)
    return 1 if failed else 0


def create(options: argparse.Namespace) -> int:
    """Create the members that aren't there."""
    return _mend(options, {Cause.NEW}, "create")


def recreate_preempted(options: argparse.Namespace) -> int:
    """Bring back what Google took away, and what isn't there; leave everything else alone."""
    return _mend(options, {Cause.NEW, Cause.PREEMPTION}, "bring back")


def delete(options: argparse.Namespace) -> int:
    """Delete members; their checkpoints, shards and the bucket stay."""
    fleet = _open(options)
    there = provision.known(options.environment)
    view = fleet.google.look(sorted({one.zone for one in fleet.members}))
    seen = {one.name: view.seen(one.name, one.zone) for one in fleet.members}
    strays = {name for name, one in seen.items() if one and name not in there and ours(one, fleet.labels)}
    meant = [one.name for one in fleet.members if one.name in there or one.name in strays]
    for name in meant:
        print(f"  delete  {name}{' (the stack does not hold it: taken in first)' if name in strays else ''}")
    if not meant:
        print("neither the stack nor Google has any of them: nothing to delete")
        return 0
    if options.dry_run:
        return 0
    _confirm(f"Delete {len(meant)} slice(s)?", options.yes)
    books = BucketBooks(fleet.google)
    memory = books.read()  # refuses beside a monitor, which would bring them back
    books.write(memory)
    updates = provision.Updates(options.environment)
    updates.remove(meant)
    while (outcome := updates.ended()) is None:
        time.sleep(_POLL_S)
        books.sign(memory)
    books.write(memory, sign=False)
    failed = {node: failure for node, failure in outcome.items() if failure}
    for node, failure in failed.items():
        print(f"error: {node}: {failure}", file=sys.stderr)
    file = f"Pulumi.{options.environment}.yaml"
    again = "fleet create and a monitor that is begun make them again"
    print(f"deleted {len(meant) - len(failed)}; {file} still lists them: {again}")
    return 1 if failed else 0


def deploy(options: argparse.Namespace) -> int:
    """Deal samples out, publish the workload, create the slices, and wait until all of them work."""
    fleet = _open(options)
    if not options.skip_dataset and not options.source:
        raise FleetError("no samples\n    fix: --source FILE, or --skip-dataset where the streams are there")
    samples = ["--max-samples", str(options.max_samples)] if options.max_samples else []
    dataset = None if options.skip_dataset else ["--source", *options.source, *samples, *options.streams]
    wish = plans.plan(options.environment, fleet.members, dataset)
    if options.dry_run:
        print("\n".join(f"would run: python {shlex.join(line)}" for line in wish.commands()))
        return 0
    plans.prepare(wish)
    if options.skip_launch:
        print(f"prepared; to create the slices: python -m fleet create {options.environment}")
        return 0
    if options.create_tpus and (code := create(options)):
        return code
    plans.wait_for_all(fleet.watcher(), options.timeout_s)
    print(f"all {len(fleet.members)} work")
    return monitor(options) if options.monitor else 0


def monitor(options: argparse.Namespace) -> int:
    """Watch, and bring back what is lost, until Ctrl+C; which leaves everything as it is."""
    fleet = _open(options)
    if options.watch:
        keeper = fleet.watcher()
    else:
        within_budget(fleet.settings)
        keeper = fleet.keeper()
    title = f"fleet {options.environment}"
    with Dashboard(title, fleet.members) as dashboard:
        page = serve(dashboard, options.port) if options.port is not None else None
        try:
            while True:
                dashboard.show(keeper.step(may=() if options.watch else frozenset(Cause)))
                time.sleep(min(options.monitor_interval, _BUSY_S if keeper.busy else math.inf))
        finally:
            if page:
                page.shutdown()
            if not options.watch:
                _left(keeper)


def _mend(options: argparse.Namespace, may: Collection[Cause], verb: str) -> int:
    fleet = _open(options)
    before = fleet.watcher()
    before.memory.acted()  # a person asks: zones that refused are tried again
    look = before.step(may=())
    due = {one.node for one in look.decisions if one.cause in may and one.action is not Action.HOLD}
    meant = [one for one in fleet.members if one.name in due]
    if not options.json:
        _say_what(look, may)
    if not meant or options.dry_run:
        if options.json:
            return _told(fleet, look, as_json=True)
        print(f"nothing to {verb}" if not meant else f"would {verb} {len(meant)} slice(s)")
        return 0
    within_budget(fleet.settings)
    if not options.json:
        print(prices.table(meant))
    _confirm(f"{verb.capitalize()} {len(meant)} slice(s)?", options.yes)
    keeper = fleet.keeper()
    keeper.memory.acted()
    names = {one.name for one in meant}
    begun = False
    try:
        while True:
            look = keeper.step(may=() if begun else may, only=names)
            begun = begun or keeper.busy
            for event in look.events:
                print(event, file=sys.stderr if options.json else sys.stdout, flush=True)
            if not keeper.busy:
                break
            time.sleep(_POLL_S)
    finally:
        _left(keeper)
    if not begun:
        print("error: nothing was begun: see above, or look again with fleet status", file=sys.stderr)
        return 1
    left = {node: failure for node, failure in keeper.outcome.items() if failure}
    if options.json:
        _told(fleet, look, as_json=True)
    elif not left:
        print(f"done; their hosts boot now: python -m fleet monitor {options.environment}")
    for node, failure in left.items():
        print(f"error: {node}: {failure}", file=sys.stderr)
    return 1 if left else 0


def _left(keeper: Keeper) -> None:
    """Gives the keeper's place up; says what goes on without it."""
    if keeper.busy:
        print(f"{', '.join(keeper.under_way)}: the update goes on, and ends by itself", file=sys.stderr)
    keeper.leave()


def _say_what(look: Look, may: Collection[Cause]) -> None:
    for one in look.decisions:
        if one.cause in may or one.action in (Action.WAIT, Action.HOLD):
            print(f"  {one.action:<8} {one.node}: {one.why}")


def _told(fleet: Fleet, look: Look, as_json: bool) -> int:
    found = show.rows(look, Rates())
    if as_json:
        print(json.dumps(show.as_json(look, found, fleet.members)))
    else:
        print(show.table(found))
        print(show.summary(found))
        for seen in look.orphans:
            print(f"orphan: {seen.name} in {seen.zone}, {seen.state}: asked for by nobody")
    silent = [
        f"{zone} didn't answer: {view.failure}" for zone, view in look.view.zones.items() if view.failure
    ]
    if look.view.failure:
        silent.append(f"the bucket didn't answer: {look.view.failure}")
    for line in silent:
        print(line, file=sys.stderr)
    return 1 if silent else 0


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise FleetError(f"{question} There is no terminal to ask at\n    fix: --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise FleetError("nothing was changed")


COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], int], str]] = {
    "create": (create, "dev --zones us-east5-b --workers-per-zone 2"),
    "delete": (delete, "dev --slice extract --yes"),
    "status": (status, "dev --json"),
    "list": (list_nodes, "dev"),
    "recreate-preempted": (recreate_preempted, "dev --yes"),
    "deploy": (deploy, "dev --slice extract --source prompts.jsonl --create-tpus --monitor -- --id id"),
    "monitor": (monitor, "dev --monitor-interval 30 --port 8899"),
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m fleet",
        description="Keeps the slices of an environment working; Pulumi.ENV.yaml says which there are.",
        epilog="example: python -m fleet monitor dev",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (does, example) in COMMANDS.items():
        about = (does.__doc__ or "").strip().rstrip(".")
        command = commands.add_parser(
            name, help=about[0].lower() + about[1:], description=about + ".",
            epilog=f"example: python -m fleet {name} {example}",
        )  # fmt: skip
        command.add_argument(
            "environment", metavar="ENV", help="dev, prod, …: the settings in Pulumi.ENV.yaml"
        )
        command.add_argument(
            "--slice",
            action="append",
            default=[],
            metavar="NAME",
            help="only this item of tpu:slices (again for more)",
        )
        command.add_argument(
            "--zones", type=lambda text: text.split(","), default=[], metavar="ZONE,…", help="only these"
        )
        command.add_argument(
            "--workers-per-zone", type=_count, metavar="N", help="only the first N slices in each zone"
        )
        if name not in ("monitor", "deploy"):
            command.add_argument("--json", action="store_true", help="for programs")
        if name in ("create", "delete", "recreate-preempted", "deploy"):
            command.add_argument("--yes", action="store_true", help="don't ask")
            command.add_argument("--dry-run", action="store_true", help="say what would be done, and stop")
        if name == "deploy":
            _add_deployment(command)
        if name in ("monitor", "deploy"):
            command.add_argument("--watch", action="store_true", help="only look; bring nothing back")
            command.add_argument(
                "--monitor-interval", type=_count, default=60, metavar="S", help="seconds between looks (60)"
            )
            command.add_argument(
                "--port", type=int, metavar="PORT", help="the same as a page on this machine; 0: any free one"
            )
        command.set_defaults(run=does)
    return top


def _add_deployment(command: argparse.ArgumentParser) -> None:
    command.add_argument("--source", nargs="+", metavar="PATH", help="samples: files, folders")
    command.add_argument("--max-samples", type=_count, metavar="N", help="of each stream, for a trial")
    command.add_argument("--skip-dataset", action="store_true", help="the streams are in the bucket already")
    command.add_argument("--create-tpus", action="store_true", help="create the slices that aren't there")
    command.add_argument("--skip-launch", action="store_true", help="prepare and publish only")
    command.add_argument("--monitor", action="store_true", help="watch over the fleet afterwards")
    command.add_argument(
        "--timeout-s", type=_count, default=3600, metavar="S", help="until all must work (3600)"
    )
    command.epilog = f"{command.epilog} (after --: more for `workload data streams`)"
    command.set_defaults(json=False)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of 1 or more")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run the command; the exit status."""
    line = sys.argv[1:] if arguments is None else arguments
    mine, rest = (line[: line.index("--")], line[line.index("--") + 1 :]) if "--" in line else (line, [])
    options = parser().parse_args(mine)
    options.streams = rest
    code = run(lambda: int(options.run(options)))
    if code == 130 and options.command == "monitor":
        print(
            f"the fleet is as it was; to come back: python -m fleet monitor {options.environment}",
            file=sys.stderr,
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
