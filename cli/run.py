"""`tpu run`: the user's own program on a slice, from a script on this machine to its last line of output.

The program is published in a bundle of its own. The slice is an ad hoc fleet of one (`fleet/adhoc.py`),
known to `tpu status`, `tpu logs`, `tpu ssh` and a monitor.
"""

import json
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import click

from cli import logs, options, variables
from cli.command import Command, end_on_signals
from cli.options import Names
from cli.publish import progress
from cli.user_code import UserCode, read_program
from fleet import hosts
from fleet.adhoc import STOP_WHEN_DONE, ConcurrentChangeError, Phase, held, in_file
from fleet.model import GOING, INSTALL, ON_THE_WAY, TAKEN_AWAY, Condition, ObservedNode
from fleet.observation import Observation
from fleet.remote_exec import Remote
from fleet.request import FleetCommand
from fleet.show import Spent, unanswered
from fleet.supervise import EndedError, Supervisor
from infra.catalog import CATALOG
from infra.engine import prices
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.errors import CommandError, InputError, listed
from infra.google import client
from infra.google.client import RequestError
from infra.google.failures import Kind
from infra.layers.network.settings import NetworkSettings
from infra.layers.storage import images
from infra.layers.storage.settings import StorageSettings
from infra.prices import run as run_price
from infra.prices.row import dollars
from infra.prices.run import RunPrice
from infra.publish.code import read as read_code
from infra.publish.environment import Target
from infra.publish.publishing import LOCKS, default_lock, publish
from infra.settings import commands, rules
from infra.settings.images import refused
from infra.settings.schema import FleetSettings, Settings
from infra.slices import inputs, nodes
from infra.slices import price as slices_price
from infra.slices.price import at_dearest
from infra.slices.settings import TpuSettings
from views.counts import counted

_LOOK_S, _POLL_S, _UPDATE_POLL_S = 10.0, 2.0, 0.5
# A host's own metadata server may follow later than Google's list of nodes.
_ONCE_UPDATED = (
    "get() { curl --silent --fail --max-time 10 --retry 3 --header 'Metadata-Flavor: Google'"
    ' "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"; }; tries=0;'
    " until [[ $(get tpu-bundle) == BUNDLE ]]; do ((tries++ < 30)) ||"
    " { echo 'the metadata server has no update to bundle BUNDLE after 30 s: nothing is restarted' >&2;"
    " exit 1; }; sleep 1; done; "
)
_INSTALL = _ONCE_UPDATED + INSTALL
# The loader of the metadata, and of the stages those that new code needs. The job's starts are counted anew.
_INSTALL_CODE = (
    _ONCE_UPDATED + "loader=$(get startup-script)"
    ' && sudo bash -c "$loader" loader code'
    " && sudo bash -c 'systemctl reset-failed tpu-job 2>&-; systemctl restart --no-block tpu-job'"
)
_PASSING = (Kind.TRANSIENT, Kind.RATE, Kind.UNKNOWN)
_ANY_BUNDLE = "0" * 64  # the settings are checked before a bundle exists


@click.command(
    cls=Command, words="ARGUMENT", examples=["dev train.py --slice v6e-16 --stop-when-done -- --lr 3e-4"]
)
@click.argument("positional", nargs=-1, metavar="[ENV] PROGRAM",
                help="environment (default: dev), then a script, its folder, or a CONFIG.toml")  # fmt: skip
@click.option("--slice", "kind", required=True, metavar="TYPE", help="Slice type: v6e-1, v6e-8, v6e-16, …")
@click.option("--zones", type=Names(), default=(), metavar="ZONE,…",
              help="Zones in order of preference; default: all that the environment covers.")  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of slice and run; default: the script's.")
@click.option("--on-demand", is_flag=True, help="Rent on demand instead of spot.")
@options.hours
@click.option("--entry", metavar="SCRIPT", help="The script of the folder that starts.")
@click.option("--requirements", type=options.PATH, metavar="FILE",
              help="Packages; default: requirements.txt of the folder, or inline metadata.")  # fmt: skip
@click.option("--image", metavar="IMAGE@sha256:…",
              help="Container image, with Python and packages of its own.")  # fmt: skip
@variables.options
@click.option("--stop-when-done", is_flag=True, help="Delete the slice when the program has ended.")
@click.option("--replace", is_flag=True, help="Take a slice of this name over from another program.")
@click.option("--detach", is_flag=True, help="Return when the slice is created.")
@click.option("--lock", type=click.Choice(LOCKS), default=default_lock, hidden=True)
@options.yes
@options.as_json
def run(
    positional: tuple[str, ...], kind: str, zones: tuple[str, ...], name: str | None, on_demand: bool,
    hours: float | None, entry: str | None, requirements: Path | None, image: str | None,
    env: tuple[str, ...], secrets: tuple[str, ...], stop_when_done: bool, replace: bool, detach: bool,
    lock: str, yes: bool, as_json: bool, words: tuple[str, ...],
) -> int:  # fmt: skip
    """Run your own program on a slice: publish it, create the slice, recover it until the end."""
    called_s = time.monotonic()
    end_on_signals()
    out = sys.stderr if as_json else sys.stdout
    environment, path = _environment(positional, out, bool(image and words))
    settings, given = from_file(environment), variables.read(env, secrets)
    with _explained(lambda: "nothing was created"), tempfile.TemporaryDirectory(prefix="tpu-run.") as work:
        program = read_program(path, entry, requirements, list(words), Path(work), image or "")
        if program.entry.endswith(".toml"):
            from cli import offline  # the trainer's modules

            program = _named(program, name)
            offline.refuse_config(shlex.split(program.run), program.folder)
        name = name or re.sub(r"[^a-z0-9]+", "-", _called(path, image)).strip("-")
        item = _item(settings, name, kind, zones, image, spot=not on_demand)
        item |= {"run": program.run} | ({STOP_WHEN_DONE: True} if stop_when_done else {})
        item |= ({"env": dict(given.env)} if env else {}) | ({"secrets": [*given.secrets]} if secrets else {})
        # Problems of the request are reported before the question.
        supervisor = Supervisor(environment, {**item, "bundle": _ANY_BUNDLE}, print)
        supervisor.require_free(replace, "")
        variables.require_readable(settings, given)
        _require_image(settings, image)
        google = client.Client(settings.project)
        inputs.require(google, environment, [inputs.Run("PROGRAM", program.run)], program.folder)
        prices.within_budget(supervisor.fleet.settings)
        predicted = _predicted(supervisor, hours)
        run_price.within_limit(predicted, settings[FleetSettings].dollars_per_run, "fleet:dollarsPerRun")
        if program.folder:
            read_code(program.folder, str(path), "tpu run")

        def settle(bundle: str = "") -> None:
            supervisor.require_free(replace, bundle)
            _introduce(supervisor, program, item, predicted, out)
            confirm(f"Run {name} on it?", yes)

        # Another program of a fleet's name is known by its bundle, which is built first.
        compared = supervisor.before is not None and not replace
        if not compared:
            settle()
        packages = str(program.requirements.resolve()) if program.requirements else None
        target = Target(
            settings[StorageSettings].bucket_name, settings[TpuSettings].tensorflow,
            str(program.folder.resolve()) if program.folder else None, packages,
            {"run": program.run}, "tpu run", str(path) if path else None,
        )  # fmt: skip
        again = shlex.join(["tpu", *sys.argv[1:]])
        published = publish(target, lock, progress(), again, accept=settle if compared else lambda _: None)
        item["bundle"] = published.bundle.id
        shown, supervisor = supervisor.before, Supervisor(environment, item, lambda text: _print(text, out))
        if shown != supervisor.before:
            raise ConcurrentChangeError(f"{name}: its record has changed meanwhile\n    fix: the same again")
    job = Job(environment, supervisor, predicted, out, called_s)
    try:
        with _explained(lambda: job.advice):
            status = job.start(detach)
    finally:
        job.run.leave()
    if as_json:
        print(json.dumps({"environment": environment, **item, **job.result}))
    return status


def _named(program: UserCode, name: str | None) -> UserCode:
    """Name a training as the slice that the user named."""
    words = shlex.split(program.run)
    return replace(program, run=shlex.join(commands.named(words, name))) if name else program


class Job:
    """A program on its slice."""

    def __init__(self, environment: str, run: Supervisor, predicted: RunPrice, out: TextIO, called_s: float):
        self.run, self._environment, self._out, self._called_s = run, environment, out, called_s
        self._predicted, self._spent = predicted, Spent()
        (self._member,) = run.fleet.members
        self._name, self._began_s = self._member.slice, time.monotonic()
        self._entries = _entries(run, self._name)
        self._began = self._newest = logs.now()
        self._no_logs = False
        self.result: dict[str, Any] = {}

    @property
    def advice(self) -> str:
        """Text on what stands by the last look, its price, and the commands for it."""
        environment, name = self._environment, self._name
        if self.run.phase is None:
            return "nothing was created"
        if self.run.phase is Phase.ENDED:
            return "its slice is deleted"
        standing = "; ".join(_standing(*pair) for pair in self.run.nodes)
        if not standing:
            standing = "its node is requested, and may come" if self.run.requested else "no slice is up"
        end = f"  take it down:    tpu fleet delete {environment} --slice {name}"
        if self.run.phase is Phase.ENDING:
            return f"its deletion isn't over: {standing}\n{end}"
        lines = [
            standing,
            f"  its output:      tpu logs {environment} {name} --follow",
            f"  keep it alive:   the same command again, or tpu fleet monitor {environment}",
            end,
        ]
        if self.run.fleet.adhoc[name].get(STOP_WHEN_DONE):
            lines.append("  at its end:      deleted by one of those two, and by nothing else")
        return "\n".join(lines)

    def start(self, detach: bool) -> int:
        """Run the program on the hosts, and unless `detach` wait for its end; return the exit status."""
        try:
            return self._follow(detach)
        except EndedError as end:
            self.result = {"condition": str(Condition.DONE) if end.done else "ended", "why": str(end)}
            self._print(str(end))
            return 0 if end.done else 1

    def _follow(self, detach: bool) -> int:
        ready, ended = self.run.living(patient=True)
        self.run.keep()
        earlier = {item.instance for item in ready}
        coming = {observed.name for _, observed in self.run.nodes if observed.state in ON_THE_WAY}
        if ready and self.run.changed:
            self._swap(earlier)
        elif ended:
            self._print("it had ended: started again")
            self._restart()
        while True:
            observation = self._step()
            up = {
                item.instance for _, item in observation.nodes
                if item.state == "READY" and (observation.outdated or item.name in coming)
            } - earlier  # fmt: skip
            if self.run.changed and up:  # created by the earlier record
                self._swap(up)
                earlier |= up
            (decision,) = observation.decisions
            if self.run.over(observation):
                return self._end(observation)
            observed = observation.view.node(decision.node, decision.zone)
            # What is created by the earlier record boots the earlier program.
            late = self.run.changed and observed and observed.name in coming and observed.state in ON_THE_WAY
            if self.run.changed and observation.nodes and not late and self.run.applied(observation):
                self.run.settle()
            if detach and observed and not late:
                self.result = {"condition": str(decision.condition)}
                self._print(f"detached; {self.advice}")
                return 0
            self._print_output(_LOOK_S)

    def _step(self) -> Observation:
        observation = self.run.step()
        self._spent.note(observation)
        return observation

    def _swap(self, instances: set[str]) -> None:
        """Give living hosts another bundle or command: update metadata, install, restart."""
        if not instances:
            return
        self._print("its hosts are up: once booted they install the new bundle, and the job is restarted")
        silent_s = self.run.fleet.limits.heartbeat_timeout_s
        while True:
            observation = self._step()
            ready = {observed.instance for _, observed in observation.nodes if observed.state == "READY"}
            if ready != instances and not unanswered(observation):
                return  # a new node boots by the new metadata
            # A boot that has begun installs the earlier bundle, and only one runs at a time.
            boots = hosts.booting(observation.view, observation.members, silent_s)
            applied = self.run.applied(observation)
            if ready == instances and applied and not boots:
                break
            if not applied and (why := self.run.blocked):
                fix = f"tpu fleet create {self._environment} --slice {self._name}, then the same again"
                raise CommandError(f"{self._name}: its hosts get no new metadata: {why}\n    fix: {fix}")
            time.sleep(_POLL_S if boots else _UPDATE_POLL_S)
        code = self.run.rebundled
        line = (_INSTALL_CODE if code else _INSTALL).replace("BUNDLE", str(self._member.bundle))
        self._remote("exec", lambda request, remote: hosts.execute(
            request, replace(remote, probe=not code), [line]
        ))  # fmt: skip
        if not code:
            self._restart()
        workers, took_s = self._member.kind.hosts, time.monotonic() - self._called_s
        self._print(f"restarted on {counted(workers, 'worker')} after {took_s:.1f} s")
        self.run.settle()

    def _restart(self) -> None:
        self._remote("restart", hosts.restart)

    def _remote(self, name: str, command: Callable[[FleetCommand, Remote], int]) -> None:
        """Run a command of the fleet on the hosts. Raises CommandError if it fails."""
        self.run.leave()
        request = FleetCommand(self._environment, slices=(self._name,), yes=True)
        folder = Path(tempfile.mkdtemp(prefix="tpu-run."))
        if command(request, Remote(logs=folder)):
            again = shlex.join(["tpu", *sys.argv[1:]])
            why = f"tpu fleet {name} failed on the hosts above: the program isn't started there"
            raise CommandError(f"{why}\n    fix: once tpu status {self._environment} shows them, {again}")
        shutil.rmtree(folder)

    def _end(self, observation: Observation) -> int:
        (decision,) = observation.decisions
        self._print_output(0)
        done = decision.condition is Condition.DONE
        minutes = (time.monotonic() - self._began_s) / 60
        spent = None if self._spent.unknown else self._spent.dollars
        predicted, hours = self._predicted, self._spent.chip_hours
        price = "" if spent is None else f"; ${spent:,.2f} for {hours:,.1f} chip-hours by Google's clock"
        price += "" if predicted.dollars is None else f", predicted {predicted}"
        self._print(f"{decision.condition} after {minutes:.0f} min{price}")
        self.result = {
            "condition": str(decision.condition), "why": decision.why, "minutes": round(minutes, 1),
            **predicted.beside(spent), "deleted": False,
        }  # fmt: skip
        if self.run.fleet.adhoc[self._name].get(STOP_WHEN_DONE):
            self.run.take_down(str(decision.condition))
            self.result["deleted"] = True
            self._print("its slice is deleted; what it saved stays in the bucket")
        else:
            self._print(self.advice)
        return 0 if done else 1

    def _print_output(self, seconds: float) -> None:
        """Print the output of worker 0 for so many seconds; read it at least once."""
        until_s = time.monotonic() + seconds
        while True:
            try:
                for entry in [] if self._no_logs else self._entries.since(self._newest):
                    self._newest = max(self._newest, entry["timestamp"])
                    if entry["timestamp"] >= self._began:  # not of an earlier run
                        print(f"  | {logs.text_of(entry)}", file=self._out, flush=True)
            except RequestError as error:
                if error.failure.kind not in _PASSING:
                    self._no_logs = True
                    self._print(f"its output can't be read here: {str(error).partition(chr(10))[0]}")
            if time.monotonic() >= until_s:
                return
            time.sleep(min(_POLL_S, max(0.0, until_s - time.monotonic())))

    def _print(self, text: str) -> None:
        _print(f"{self._name}: {text}", self._out)


@contextmanager
def _explained(advice: Callable[[], str]) -> Iterator[None]:
    """Print what is left when Ctrl+C or a signal ends the command; a terminal may be gone by then."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        with suppress(OSError):
            print(f"\nstopped; {advice()}", file=sys.stderr, flush=True)
        raise


def _standing(member: nodes.Node, observed: ObservedNode) -> str:
    """Return a node's state, and its price if it is billed."""
    (row,) = slices_price.rows([member])
    price = f"${dollars(row.hourly)} an hour"
    if observed.state in TAKEN_AWAY:
        billed = "and not billed"
    elif observed.state in ON_THE_WAY:
        billed = f"and billed once it is up: {price}"
    else:
        billed = f"and billed{' until it is gone' if observed.state in GOING else ''}: {price}"
    return f"{observed.name} is {observed.state}, {billed}"


def _print(text: str, out: TextIO) -> None:
    print(f"{datetime.now():%H:%M:%S} {text}", file=out, flush=True)


def _entries(run: Supervisor, name: str) -> logs.Entries:
    project = run.fleet.settings.project
    return logs.Entries(
        client.Client(project), project, logs.selected(project, slice=name, worker="0", unit="job")
    )


def _environment(words: Sequence[str], out: TextIO, commanded: bool) -> tuple[str, Path | None]:
    """Return the environment, `dev` unless named, and the path of the program. Raises UsageError.

    `commanded`: an image has the program, if no word is the path of one.
    """
    if len(words) == 2:
        return words[0], options.PATH.convert(words[1], None, None)
    if len(words) > 2:
        raise click.UsageError(
            f"one program, not {len(words) - 1}; pass the program's own arguments after --"
        )
    if words and commanded and not Path(words[0]).exists():
        return words[0], None
    if not words and not commanded:
        raise click.UsageError("no PROGRAM; pass a script, or --image and a command of the image after --")
    print("environment: dev (default)", file=out)
    return "dev", options.PATH.convert(words[0], None, None) if words else None


def _called(path: Path | None, image: str | None) -> str:
    """Return the name that a run has by its script, else by its image."""
    return (path.resolve().stem if path else str(image).partition("@")[0].rpartition("/")[2]).lower()


def _require_image(settings: Settings, image: str | None) -> None:
    """Raise InputError for an image that isn't there, or that hosts may not pull."""
    if image and (
        wrong := list(images.problems(client.Client(settings.project), settings, image, "--image"))
    ):
        raise InputError(listed("the command", wrong))


def _item(
    settings: Settings, name: str, kind: str, zones: Sequence[str], image: str | None, *, spot: bool
) -> dict[str, Any]:
    """Return the slice as an item of `tpu:slices`. Raises InputError with all problems of the flags."""
    covered, problems = nodes.zones(settings), []
    kinds = [known.name for known in CATALOG.types]
    file = f"Pulumi.{settings.environment}.yaml"
    if kind not in kinds:
        problems.append(f"--slice {kind}: is none of {', '.join(kinds)}\n    fix: one of these")
    if elsewhere := [zone for zone in zones if zone not in CATALOG.zones]:
        flag = f"--zones {','.join(elsewhere)}"
        problems.append(f"{flag}: v6e is in {', '.join(CATALOG.zones)}\n    fix: one of these")
    missing = [zone for zone in zones if zone not in covered and zone not in elsewhere]
    if missing or not covered:
        flag = f"--zones {','.join(missing)}" if missing else "no --zones"
        desired = ", ".join(missing) or "us-east5-b"
        problems.append(
            f"{flag}: {file} covers {', '.join(covered) or 'no zone'}; others have no subnet and no disk"
            f"\n    fix: tpu:zones: [{desired}] in {file}, then tpu up {settings.environment} network data"
        )
    if not rules.RESOURCE_NAME.ok(name):
        problems.append(f"{name!r} can't be a slice's name\n    fix: --name, of a-z, 0-9 and -")
    if name in {item.name for item in settings[TpuSettings].slices}:
        problems.append(in_file(settings.environment, name, "--name"))
    if image:
        problems += map(str, refused("--image", image, settings[NetworkSettings].reaches_any_host))
    if problems:
        raise InputError("\n".join(problems))
    zone, *fallbacks = zones or covered
    item: dict[str, Any] = {
        "name": name, "acceleratorType": kind, "zones": [zone], "count": 1, "spot": spot,
        "checkpointFolder": f"jobs/{name}", **({"image": image} if image else {}),
    }  # fmt: skip
    return {**item, "fallbackZones": fallbacks} if fallbacks else item


def _predicted(run: Supervisor, hours: float | None) -> RunPrice:
    """Return the price of the run in the dearest of the zones where the slice may be created."""
    (row,) = slices_price.rows([at_dearest(member) for member in run.fleet.members])
    return run_price.of_hours(row.hourly, hours)


def _introduce(
    run: Supervisor, program: UserCode, item: dict[str, Any], predicted: RunPrice, out: TextIO
) -> None:
    """Print the program, the slice, its zones and its price."""
    (member,), bucket = run.fleet.members, run.fleet.settings[StorageSettings].bucket_name
    (row,) = slices_price.rows([member])
    folder = item["checkpointFolder"]
    query = {"prefix": f"{folder}/", "fields": "items(name),nextPageToken", "maxResults": "1"}
    earlier = next(run.fleet.google.items(f"{client.bucket_url(bucket)}/o", "items", query), None)
    zones = " or ".join([*item["zones"], *item.get("fallbackZones", ())])
    paid = "spot" if member.spot else "on demand"
    stops = item.get(STOP_WHEN_DONE)
    after = "deleted at its end, by this command or a monitor" if stops else "stays up after its end"
    price = f"${dollars(row.hourly)} an hour"
    hosts = counted(member.kind.hosts, "host")
    note = ", which holds files of an earlier run" if earlier else ""
    lines = {
        "program": program.reason,
        "command": item["run"],
        **({"image": item["image"]} if "image" in item else {}),
        "slice": f"{member.kind.name} ({hosts}), {paid}, in {zones}: {price}; {after}",
        **({} if predicted.dollars is None else {"price": f"{predicted}, predicted"}),
        "saves to": f"CHECKPOINT_DIR, gs://{bucket}/{folder}{note}",
        **({"present": held(run.before)} if run.before else {}),
    }
    for key, text in lines.items():
        print(f"{key:<9} {text}", file=out, flush=True)
