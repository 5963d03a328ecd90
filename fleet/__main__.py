"""python -m fleet: create slices, look at them, bring back what Google took away, watch over them."""

import argparse
import json
import math
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fleet import deploy as plans
from fleet import doctor as doctors
from fleet import everywhere, provision, show
from fleet.adopt import ours
from fleet.arguments import parser
from fleet.books import SIGN_S, Borrowed, BucketBooks, UnreachableError
from fleet.dashboard import Dashboard, serve
from fleet.decide import Limits, orphans
from fleet.errors import FleetError
from fleet.google import Google
from fleet.loop import Books, Builder, Keeper, Look
from fleet.roster import Wish, members, within_budget
from fleet.show import Rates
from fleet.state import Action, Cause, Decision, Place, Seen
from infra import names, prices
from infra.cli import run
from infra.errors import InfraError
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
    """A builder for those who only look; it asks the stack again every few minutes, beside their look."""

    def __init__(self, environment: str):
        self._environment, self._at_s = environment, -math.inf
        self._pool = ThreadPoolExecutor(1)
        self._held: Future[dict[str, str] | None] | None = None

    def held(self) -> Mapping[str, str] | None:
        """See `loop.Builder`."""
        return self._held.result() if self._held else None

    def start(self, places: Mapping[str, Place]) -> None:
        """See `loop.Builder`."""
        raise AssertionError(f"{places} were to be brought back by somebody who only looks")

    def ended(self) -> None:
        """See `loop.Builder`; begins to ask, so that the answer is there when the look is."""
        if time.monotonic() - self._at_s > _ASKED_AGAIN_S:
            self._held = self._pool.submit(provision.asked, self._environment)
            self._at_s = time.monotonic()


def _open(options: argparse.Namespace) -> Fleet:
    settings, meant = _meant(options)
    return Fleet(settings, meant, Google(settings.gcp.project, settings.storage.bucket_name))


def _meant(options: argparse.Namespace) -> tuple[Settings, tuple[Node, ...]]:
    settings = from_file(options.environment)
    meant = members(settings, Wish(options.slice, options.zones, options.workers_per_zone))
    if not meant:
        raise FleetError(f"Pulumi.{options.environment}.yaml lists no slices\n    fix: tpu:slices")
    return settings, meant


def status(options: argparse.Namespace) -> int:
    """Look once: every member, what Google and its workers say of it, and what would be done."""
    fleet = _open(options)
    look = fleet.watcher().step(may=())
    return _told(fleet, look, options.json)


def list_nodes(options: argparse.Namespace) -> int:
    """Every node that carries this environment's labels, orphans too unless a slice is named."""
    fleet = _open(options)
    everyone = nodes(fleet.settings)
    asked = fleet.members if options.slice or options.zones else everyone
    look = fleet.google.look(sorted({zone for one in asked for zone in one.places}))
    wanted = {(one.zone, one.name): one for one in everyone}
    found = [seen for one in fleet.members if (seen := look.seen(one.name, one.zone))]
    if not options.slice:
        strays = orphans(everyone, look, fleet.labels)
        found += [seen for seen in strays if not options.zones or seen.zone in options.zones]
    if options.json:
        print(json.dumps([_listed(one, wanted.get((one.zone, one.name))) for one in found]))
    else:
        print(show.listed(found, wanted) if found else "Google lists no node of ours")
    failed = [f"{zone} didn't answer: {view.failure}" for zone, view in look.zones.items() if view.failure]
    if failed:
        print("\n".join(failed), file=sys.stderr)
    return 1 if failed else 0


def _listed(seen: Seen, member: Node | None) -> dict[str, str | None]:
    slice_name = member.slice if member else None  # of an orphan
    return {"name": seen.name, "zone": seen.zone, "state": seen.state, "slice": slice_name}


def create(options: argparse.Namespace) -> int:
    """Create the members that aren't there."""
    return _mend(options, {Cause.NEW}, "create")


def recreate_preempted(options: argparse.Namespace) -> int:
    """Bring back what Google took away, and nothing else."""
    return _mend(options, {Cause.NEW, Cause.PREEMPTION}, "bring back", _was_there)


def _was_there(one: Decision, keeper: Keeper) -> bool:
    """Whether a member is gone that was there: the stack holds it, or it was lost and not made again yet."""
    return (
        one.cause is Cause.PREEMPTION or one.node in keeper.memory.owed or one.node in (keeper.held() or ())
    )


def delete(options: argparse.Namespace) -> int:
    """Delete members; their checkpoints, shards and the bucket stay."""
    fleet = _open(options)
    there = provision.known(options.environment)
    view = fleet.google.look(sorted({one.zone for one in fleet.members}))
    seen = {one.name: view.seen(one.name, one.zone) for one in fleet.members}
    strays = {name for name, one in seen.items() if one and name not in there and ours(one, fleet.labels)}
    meant = [one.name for one in fleet.members if one.name in there or one.name in strays]
    out = sys.stderr if options.json else sys.stdout
    for name in meant:
        first = " (the stack does not hold it: taken in first)" if name in strays else ""
        print(f"  delete  {name}{first}", file=out)
    if not meant:
        print("neither the stack nor Google has any of them: nothing to delete", file=out)
    if not meant or options.dry_run:
        return _deleted(options, meant, {})
    _confirm(f"Delete {len(meant)} slice(s)?", options.yes)
    books = BucketBooks(fleet.google)
    memory = books.read()  # refuses beside a monitor, which would bring them back
    memory.deleted(meant)
    books.write(memory)
    updates = provision.Updates(options.environment)
    updates.remove(meant)
    outcome: provision.Outcome | None = None
    try:
        while (outcome := updates.ended()) is None:
            time.sleep(_POLL_S)
            with suppress(UnreachableError):  # the update goes on whether anybody hears of it or not
                books.sign(memory)
    finally:
        if outcome is None:
            _say_left(meant)
        with suppress(UnreachableError):
            books.write(memory, sign=False)
    failed = {node: failure for node, failure in outcome.items() if failure}
    for node, failure in failed.items():
        print(f"error: {node}: {failure}", file=sys.stderr)
    file = f"Pulumi.{options.environment}.yaml"
    again = "fleet create and a monitor make them again"
    print(f"deleted {len(meant) - len(failed)}; {file} still lists them: {again}", file=out)
    return _deleted(options, meant, outcome)


def _deleted(options: argparse.Namespace, meant: list[str], outcome: provision.Outcome) -> int:
    failed = {name: str(failure) for name, failure in outcome.items() if failure}
    if options.json:
        deleted = [name for name in outcome if name not in failed]
        print(json.dumps({"meant": meant, "deleted": deleted, "failed": failed}))
    return 1 if failed else 0


def deploy(options: argparse.Namespace) -> int:
    """Deal samples out, publish the workload, create the slices, and wait until all of them work."""
    fleet = _open(options)
    if not options.skip_dataset and not options.source:
        raise FleetError("no samples\n    fix: --source FILE, or --skip-dataset where the streams are there")
    samples = ["--max-samples", str(options.max_samples)] if options.max_samples else []
    dataset = None if options.skip_dataset else ["--source", *options.source, *samples, *options.rest]
    wish = plans.plan(options.environment, fleet.members, dataset)
    if options.dry_run:
        print("\n".join(f"would run: python {shlex.join(line)}" for line in wish.commands()))
        return create(options) if options.create_tpus else 0
    plans.prepare(wish)
    if options.skip_launch:
        print(f"prepared; to create the slices: python -m fleet create {options.environment}")
        return 0
    if options.create_tpus and (code := create(options)):
        return code
    fleet = _open(options)  # where there were no chips, `create` has moved a member
    keeper = fleet.watcher()

    def follow() -> None:
        nonlocal fleet
        fleet = _followed(options, fleet, keeper)

    plans.wait_for_all(keeper, options.timeout_s, follow)
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
    with Dashboard(title) as dashboard:
        page = serve(dashboard, options.port) if options.port is not None else None
        try:
            while True:
                if not keeper.busy:
                    fleet = _followed(options, fleet, keeper)
                dashboard.show(keeper.step(may=() if options.watch else frozenset(Cause)))
                _rest(keeper, min(options.monitor_interval, _BUSY_S if keeper.busy else math.inf))
        finally:
            if page:
                page.shutdown()
            if not options.watch:
                _left(keeper)


def _rest(keeper: Keeper, seconds: float) -> None:
    """Sleeps, and shows meanwhile that the keeper is alive."""
    while seconds > 0:
        nap_s = min(seconds, SIGN_S / 2)
        time.sleep(nap_s)
        keeper.sign()
        seconds -= nap_s


def _followed(options: argparse.Namespace, fleet: Fleet, keeper: Keeper) -> Fleet:
    """The fleet as its file says by now; as it was before, while the file can't be followed."""
    try:
        settings, meant = _meant(options)
        if settings == fleet.settings:
            return fleet
        if not options.watch:
            within_budget(settings)
        for kept in ("gcp", "storage", "fleet"):
            if getattr(settings, kept) != getattr(fleet.settings, kept):
                raise FleetError(f"{kept}: has changed; to take it up: Ctrl+C, and monitor again")
    except InfraError as error:
        keeper.say(f"the settings aren't followed: {error}")
        return fleet
    names = [{one.name for one in some} for some in (fleet.members, meant)]
    changed = [f"{one} is new" for one in sorted(names[1] - names[0])]
    changed += [f"{one} is asked for no more" for one in sorted(names[0] - names[1])]
    keeper.follow(meant, nodes(settings))
    if changed:
        keeper.say(f"the settings changed: {', '.join(changed)}")
    return replace(fleet, settings=settings, members=meant)


def execute(options: argparse.Namespace) -> int:
    """Run a command on every worker at once, or on none; keep what each says, and name who failed first."""
    command = everywhere.one_line(options.rest)
    fleet = _open(options)
    run = everywhere.Everywhere(fleet.settings, Path(options.logs), options.parallel)
    out = sys.stderr if options.json else sys.stdout
    left_out, reports = run.on_all(
        fleet.google, fleet.members, command, options.timeout_s, options.partial,
        lambda line: print(line, file=out, flush=True),
    )  # fmt: skip
    if options.json:
        print(json.dumps(everywhere.as_json(run.folder, left_out, reports)))
    for name, why in left_out.items():
        print(f"left out: {name}: {why}", file=sys.stderr)
    if failed := everywhere.first_failure(reports):
        print(f"error: {failed}", file=sys.stderr)
        return 1
    print(f"{len(reports)} of {len(reports)} ok", file=out)
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Say what would keep the fleet from working: login, APIs, roles, quotas, zones, stacks, bundle."""
    settings, meant = _meant(options)
    if sys.stderr.isatty():
        print("asking Google and Pulumi …", file=sys.stderr)
    findings = doctors.examine(doctors.patient(settings, meant))
    print(json.dumps([asdict(one) for one in findings]) if options.json else doctors.told(findings))
    return 0 if doctors.healthy(findings) else 1


def _mend(
    options: argparse.Namespace,
    may: Collection[Cause],
    verb: str,
    wanted: Callable[[Decision, Keeper], bool] = lambda *_: True,
) -> int:
    fleet = _open(options)
    before = fleet.watcher()
    before.memory.acted()  # a person asks: zones that refused are tried again
    look = before.step(may=())
    due = {
        one.node
        for one in look.decisions
        if one.cause in may and one.action is not Action.HOLD and wanted(one, before)
    }
    meant = [one for one in fleet.members if one.name in due]
    if not options.json:
        _say_what(look, due)
        if meant:
            print(prices.table(meant))
    if not meant or options.dry_run:
        if options.json:
            return _told(fleet, look, as_json=True)
        print(f"nothing to {verb}" if not meant else f"would {verb} {len(meant)} slice(s)")
        return 0
    within_budget(fleet.settings)
    _confirm(f"{verb.capitalize()} {len(meant)} slice(s)?", options.yes)
    keeper = fleet.keeper()
    keeper.memory.acted()
    names = {one.name for one in meant}
    outcome: provision.Outcome = {}
    rounds = max(len(one.places) for one in meant)  # each zone once, where one after another has no chips
    try:
        while True:
            look = keeper.step(may=may if rounds else (), only=names)
            rounds -= bool(look.begun)
            outcome |= keeper.outcome
            for event in look.events:
                print(event, file=sys.stderr if options.json else sys.stdout, flush=True)
            if not keeper.busy:
                break
            time.sleep(_POLL_S)
    finally:
        _left(keeper)
    if not outcome:
        print("error: nothing was begun: see above, or look again with fleet status", file=sys.stderr)
        return 1
    left = {node: failure for node, failure in outcome.items() if failure}
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
        _say_left(keeper.under_way)
    keeper.leave()


def _say_left(nodes: Sequence[str]) -> None:
    print(f"{', '.join(nodes)}: the update goes on, and ends by itself", file=sys.stderr)


def _say_what(look: Look, due: Collection[str]) -> None:
    for one in look.decisions:
        if one.node in due or one.action in (Action.WAIT, Action.HOLD):
            print(f"  {one.action:<8} {one.node}: {one.why}")


def _told(fleet: Fleet, look: Look, as_json: bool) -> int:
    found = show.rows(look, Rates())
    if as_json:
        print(json.dumps(show.as_json(look, found)))
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
    "exec": (execute, "dev --slice extract -- sudo systemctl restart google-startup-scripts"),
    "doctor": (doctor, "dev"),
}


def _end(*_: object) -> None:
    """Ends as Ctrl+C does, so that a keeper's place is given up."""
    raise SystemExit(128 + signal.SIGTERM)


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and run the command; the exit status."""
    line = sys.argv[1:] if arguments is None else arguments
    mine, rest = (line[: line.index("--")], line[line.index("--") + 1 :]) if "--" in line else (line, [])
    options = parser(COMMANDS).parse_args(mine)
    options.rest = rest
    signal.signal(signal.SIGTERM, _end)  # as service managers end a monitor
    code = run(lambda: int(options.run(options)))
    if code == 130 and options.command == "monitor":
        print(
            f"the fleet is as it was; to come back: python -m fleet monitor {options.environment}",
            file=sys.stderr,
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
