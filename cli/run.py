"""`tpu run`: the user's own program on a slice, from a script on this machine to its last line of output.

The program goes into a bundle of its own; the slice is an ad hoc fleet of one (`fleet/adhoc.py`), so that
`tpu status`, `tpu logs`, `tpu ssh` and a monitor know it.
"""

import argparse
import difflib
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from cli import logs
from cli.program import Program, program
from fleet.adhoc import STOP_WHEN_DONE
from fleet.controller import Observation
from fleet.model import Condition
from fleet.show import Spent
from fleet.supervise import Supervisor
from infra.catalog import CATALOG
from infra.engine import prices
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.google import client
from infra.google.client import RequestError
from infra.google.failures import Kind
from infra.layers.storage.settings import StorageSettings
from infra.prices import run as run_price
from infra.prices.row import dollars
from infra.prices.run import RunPrice
from infra.publish.__main__ import LOCKS, default_lock, publish
from infra.publish.environment import Target
from infra.settings import rules
from infra.settings.schema import FleetSettings, Settings
from infra.slices import nodes
from infra.slices import price as slices_price
from infra.slices.price import at_dearest
from infra.slices.settings import TpuSettings

_LOOK_S, _POLL_S = 10.0, 2.0
_PASSING = (Kind.TRANSIENT, Kind.RATE, Kind.UNKNOWN)
_ANY_BUNDLE = "0" * 64  # the settings are checked before there is a bundle


def main(arguments: Sequence[str]) -> int:
    """Run a program of your own on a slice: published, created, kept until it has ended."""
    line = list(arguments)
    mine, words = (line[: line.index("--")], line[line.index("--") + 1 :]) if "--" in line else (line, [])
    parser = _parser()
    options = parser.parse_args(mine)
    out = sys.stderr if options.json else sys.stdout
    environment, path = _environment(parser, options.words, out)
    settings = from_file(environment)
    with tempfile.TemporaryDirectory(prefix="tpu-run.") as work:
        found = program(path, options.entry, options.requirements, words, Path(work))
        item = _item(settings, options, path, found)
        # What is wrong with it is said before the question.
        run = Supervisor(environment, {**item, "bundle": _ANY_BUNDLE}, print)
        prices.within_budget(run.fleet.settings)
        predicted = _predicted(run, options.hours)
        run_price.within_limit(predicted, settings[FleetSettings].dollars_per_run, "fleet:dollarsPerRun")
        _introduce(run, found, item, predicted, options, out)
        confirm(f"Run {path.name} on it?", options.yes)
        target = Target(
            settings[StorageSettings].bucket_name, settings[TpuSettings].tensorflow,
            str(found.folder.resolve()), str(found.requirements.resolve()) if found.requirements else None,
            {"run": found.run}, "tpu run", str(path),
        )  # fmt: skip
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        again = " ".join(["tpu run", *arguments])
        item["bundle"] = publish(target, options.lock, console, again).bundle.id
    job = Job(environment, Supervisor(environment, item, lambda text: _say(text, out)), predicted, out)
    try:
        status = job.start(options.detach)
    except (KeyboardInterrupt, SystemExit):
        print(f"\nstopped looking; {job.advice}", file=sys.stderr)
        raise
    finally:
        job.run.leave()
    if options.json:
        print(json.dumps({"environment": environment, **item, **job.result}))
    return status


class Job:
    """A program on its slice."""

    def __init__(self, environment: str, run: Supervisor, predicted: RunPrice, out: TextIO):
        self.run, self._environment, self._out = run, environment, out
        self._predicted, self._spent = predicted, Spent()
        (self._member,) = run.fleet.members
        self._name, self._began_s = self._member.slice, time.monotonic()
        self._entries = _entries(run, self._name)
        self._began = self._newest = logs.now()
        self._no_logs = False
        self.result: dict[str, Any] = {}

    @property
    def advice(self) -> str:
        """What continues without this command, and what doesn't."""
        environment, name = self._environment, self._name
        return (
            f"the slice is up, and billed\n"
            f"  its output:      tpu logs {environment} {name} --follow\n"
            f"  keep it alive:   the same command again, or tpu fleet monitor {environment}\n"
            f"  take it down:    tpu fleet delete {environment} --slice {name}"
        )

    def start(self, detach: bool) -> int:
        """Has hosts run it, and unless `detach` stays until it has ended; the exit status."""
        ready, ended = self.run.living()
        self.run.keep()
        if ready and self.run.changed:
            self._swap({one.instance for one in ready})
        elif ended:
            self._tell("it has ended before: started again")
            self._fleet("restart", "--yes")
        while True:
            observation = self._step()
            (decision,) = observation.decisions
            if self.run.over(observation):
                return self._end(observation)
            if detach and observation.view.node(decision.node, decision.zone):
                self.result = {"condition": str(decision.condition)}
                self._tell(f"detached; {self.advice}")
                return 0
            self._print_output(_LOOK_S)

    def _step(self) -> Observation:
        observation = self.run.step()
        self._spent.note(observation)
        return observation

    def _swap(self, instances: set[str]) -> None:
        """Another bundle, or another command, for hosts that live: told, installed, restarted."""
        self._tell("its hosts are up: they install the new bundle, and the job is restarted")
        observation = self._step()
        while observation.outdated:
            time.sleep(_POLL_S)
            observation = self._step()
        if instances == {observed.instance for _, observed in observation.nodes if observed.state == "READY"}:
            self._fleet("exec", "--", "sudo", "systemctl", "restart", "google-startup-scripts")
            self._fleet("restart", "--yes")

    def _fleet(self, command: str, *more: str) -> None:
        from fleet.__main__ import main as fleet

        self.run.leave()
        with tempfile.TemporaryDirectory(prefix="tpu-run.") as folder:
            line = [command, self._environment, "--slice", self._name, "--logs", folder, *more]
            if status := fleet(line, prog="tpu"):
                raise CommandError(f"tpu fleet {command} ended with {status}: the program isn't started")

    def _end(self, observation: Observation) -> int:
        (decision,) = observation.decisions
        self._print_output(0)
        done = decision.condition is Condition.DONE
        minutes = (time.monotonic() - self._began_s) / 60
        spent, predicted = self._spent.dollars, self._predicted
        price = "" if spent is None else f"; ${spent:,.2f} since the creation of its node"
        price += "" if predicted.dollars is None else f", predicted {predicted}"
        self._tell(f"{decision.condition} after {minutes:.0f} min{price}")
        self.result = {
            "condition": str(decision.condition), "why": decision.why, "minutes": round(minutes, 1),
            **predicted.beside(spent), "deleted": False,
        }  # fmt: skip
        if self.run.fleet.adhoc[self._name].get(STOP_WHEN_DONE):
            self.run.take_down()
            self.result["deleted"] = True
            self._tell("its slice is deleted; what it saved stays in the bucket")
        else:
            self._tell(self.advice)
        return 0 if done else 1

    def _print_output(self, seconds: float) -> None:
        """What worker 0 prints, for so long; at least once."""
        until_s = time.monotonic() + seconds
        while True:
            try:
                for entry in [] if self._no_logs else self._entries.since(self._newest):
                    self._newest = max(self._newest, entry["timestamp"])
                    if entry["timestamp"] >= self._began:  # not what ran there before
                        print(f"  | {logs.text_of(entry)}", file=self._out, flush=True)
            except RequestError as error:
                if error.failure.kind not in _PASSING:
                    self._no_logs = True
                    self._tell(f"its output can't be read here: {str(error).partition(chr(10))[0]}")
            if time.monotonic() >= until_s:
                return
            time.sleep(min(_POLL_S, max(0.0, until_s - time.monotonic())))

    def _tell(self, text: str) -> None:
        _say(f"{self._name}: {text}", self._out)


def _say(text: str, out: TextIO) -> None:
    print(f"{datetime.now():%H:%M:%S} {text}", file=out, flush=True)


def _entries(run: Supervisor, name: str) -> logs.Entries:
    project = run.fleet.settings.project
    return logs.Entries(
        client.Client(project), project, logs.selected(project, slice=name, worker="0", unit="job")
    )


def _environment(parser: argparse.ArgumentParser, words: Sequence[str], out: TextIO) -> tuple[str, Path]:
    """Which environment, and which path; `dev` unless named."""
    if len(words) == 2:
        return words[0], Path(words[1])
    if len(words) > 2:
        parser.error(f"one program, not {len(words) - 1}; the program's own arguments stand behind --")
    print("environment: dev, as none was named", file=out)
    return "dev", Path(words[0])


def _item(settings: Settings, options: argparse.Namespace, path: Path, found: Program) -> dict[str, Any]:
    """The slice, as an item of `tpu:slices`. Raises CommandError with all that is wrong with the flags."""
    covered, problems = nodes.zones(settings), []
    kinds = [kind.name for kind in CATALOG.types]
    if options.slice not in kinds:
        near = difflib.get_close_matches(options.slice, kinds, 1)
        problems.append(
            f"--slice {options.slice}: is one of {', '.join(kinds)}"
            f"\n    fix: {f'perhaps {near[0]} was meant' if near else 'one of these'}"
        )
    file = f"Pulumi.{settings.environment}.yaml"
    missing = [zone for zone in options.zones if zone not in covered]
    if missing or not covered:
        what = f"--zones {','.join(missing)}" if missing else "no --zones"
        desired = ", ".join(missing) or "us-east5-b"
        problems.append(
            f"{what}: {file} covers {', '.join(covered) or 'no zone'}; others have no subnet and no disk"
            f"\n    fix: tpu:zones: [{desired}] in {file}, then tpu up {settings.environment} network data"
        )
    name = options.name or re.sub(r"[^a-z0-9]+", "-", path.resolve().stem.lower()).strip("-")
    if not rules.RESOURCE_NAME.ok(name):
        problems.append(f"{name or path.stem!r} can't be a slice's name\n    fix: --name, of a-z, 0-9 and -")
    if name in {one.name for one in settings[TpuSettings].slices}:
        problems.append(f"{name}: {file} has a slice of this name\n    fix: --name ANOTHER")
    if problems:
        raise CommandError("\n".join(problems))
    zone, *others = options.zones or covered
    item: dict[str, Any] = {
        "name": name, "acceleratorType": options.slice, "zones": [zone], "count": 1,
        "spot": not options.on_demand, "run": found.run, "checkpointFolder": f"jobs/{name}",
    }  # fmt: skip
    item |= {"fallbackZones": others} if others else {}
    return {**item, STOP_WHEN_DONE: True} if options.stop_when_done else item


def _predicted(run: Supervisor, hours: float | None) -> RunPrice:
    """Its price wherever the slice may be made, at the dearest of these places."""
    (row,) = slices_price.rows([at_dearest(member) for member in run.fleet.members])
    return run_price.of_hours(row.hourly, hours)


def _introduce(
    run: Supervisor,
    found: Program,
    item: dict[str, Any],
    predicted: RunPrice,
    options: argparse.Namespace,
    out: TextIO,
) -> None:
    """What will be done, where, at what price."""
    (member,), bucket = run.fleet.members, run.fleet.settings[StorageSettings].bucket_name
    (row,) = slices_price.rows([member])
    folder = item["checkpointFolder"]
    query = {"prefix": f"{folder}/", "fields": "items(name),nextPageToken", "maxResults": "1"}
    earlier = next(run.fleet.google.items(f"{client.STORAGE}/storage/v1/b/{bucket}/o", "items", query), None)
    zones = " or ".join([*item["zones"], *item.get("fallbackZones", ())])
    paid = "spot" if member.spot else "on demand"
    after = "deleted when it has ended" if options.stop_when_done else "stays up when it has ended"
    there = f"${dollars(row.hourly)} an hour{', is there already' if run.before else ''}"
    left = ", where an earlier run has left something" if earlier else ""
    lines = {
        "program": found.why,
        "command": item["run"],
        "slice": f"{member.kind.name} ({member.kind.hosts} hosts), {paid}, in {zones}: {there}; {after}",
        **({} if predicted.dollars is None else {"price": f"{predicted}, predicted"}),
        "saves to": f"CHECKPOINT_DIR, gs://{bucket}/{folder}{left}",
    }
    for key, text in lines.items():
        print(f"{key:<9} {text}", file=out, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tpu run",
        usage="tpu run [ENV] PROGRAM --slice TYPE [options] [-- ARGUMENT …]",
        description=main.__doc__,
        epilog="example: tpu run dev train.py --slice v6e-16 --stop-when-done -- --lr 3e-4",
    )
    parser.add_argument(
        "words", nargs="+", metavar="[ENV] PROGRAM",
        help="the environment (dev), then a script, or a folder with train.py or main.py",
    )  # fmt: skip
    parser.add_argument("--slice", required=True, metavar="TYPE", help="v6e-1, v6e-8, v6e-16, …")
    parser.add_argument("--zones", type=lambda text: text.split(","), default=[], metavar="ZONE,…",
                        help="where, in this order (all that the environment covers)")  # fmt: skip
    parser.add_argument("--name", metavar="NAME", help="of the run; the script's, unless given")
    parser.add_argument("--on-demand", action="store_true", help="not spot")
    parser.add_argument("--hours", type=run_price.hours, metavar="N",
                        help="how long it takes, for its price; it isn't ended then")  # fmt: skip
    parser.add_argument("--entry", metavar="SCRIPT", help="of a folder: which script starts")
    parser.add_argument("--requirements", type=Path, metavar="FILE",
                        help="packages (requirements.txt of the folder, or inline metadata)")  # fmt: skip
    parser.add_argument(
        "--stop-when-done", action="store_true", help="delete the slice when the program has ended"
    )
    parser.add_argument("--detach", action="store_true", help="return when the slice is created")
    parser.add_argument("--lock", choices=LOCKS, default=default_lock(), help=argparse.SUPPRESS)
    parser.add_argument("--yes", action="store_true", help="don't ask; required without a terminal")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser
