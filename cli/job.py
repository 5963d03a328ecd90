"""`tpu job`: training and extraction on the cluster's queue, from submission to the last line of output."""

import argparse
import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Sequence

from cli import offline
from infra.catalog import CATALOG
from infra.core import layer as core_layer
from infra.core.layer import up_command
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.google.client import Client, RequestError
from infra.google.failures import Kind
from infra.google.kubernetes import cluster_named
from infra.layers.gke import pools
from infra.layers.gke.settings import GkeSettings
from infra.layers.queue.jobs.client import COMPLETED, ENDED, FAILED, QUEUED, Jobs, Status
from infra.layers.queue.jobs.submission import Request, run_of, submission, team_of
from infra.layers.queue.kueue import PRIORITIES, Team
from infra.layers.queue.settings import QueueSettings
from infra.layers.queue.team import teams
from infra.prices import run as run_price
from infra.prices.row import dollars
from infra.prices.run import RunPrice
from infra.settings.schema import FleetSettings, Settings

_POLL_S = 2.0
_LAST_LINES = 30  # of the worker that failed first
_EPILOG = """\
examples:
  tpu job submit dev vision -- train tiny.toml
  tpu job submit dev vision --slice v6e-16 --slices 2 --priority high -- train llama-8b.toml
  tpu job submit dev vision --out job.yaml -- train tiny.toml   # for kubectl apply
  tpu job list dev
  tpu job logs dev vision train-tiny --follow
  tpu job cancel dev vision train-tiny
  tpu job tensorboard dev tiny   # the curves of a run, from the bucket
  tpu job image dev --base HOST/debian@sha256:… --out image   # to build an image of the bundle
"""


def main(arguments: Sequence[str]) -> int:
    """Submit, list, read, cancel."""
    line = list(arguments)
    mine, words = (line[: line.index("--")], line[line.index("--") + 1 :]) if "--" in line else (line, [])
    parser = _parser()
    options, others = parser.parse_known_args(mine)
    if others:
        hint = "" if words or options.command != "submit" else "; the program stands behind --"
        parser.error(f"unrecognized arguments: {shlex.join(others)}{hint}")
    settings = from_file(options.environment)
    if settings.get(QueueSettings) is None:
        raise CommandError(core_layer.off("queue", options.environment))
    if options.command == "image":
        return offline.image(settings, options)
    if options.command == "tensorboard":
        return offline.tensorboard(settings, options)
    try:
        return _on_the_cluster(settings, options, words)
    except RequestError as error:
        if error.failure.kind is not Kind.PERMISSION:
            raise
        raise CommandError(_for_members(settings, error.failure.message, options.team)) from None


def _on_the_cluster(settings: Settings, options: argparse.Namespace, words: Sequence[str]) -> int:
    if options.command == "submit":
        return _submit(settings, options, words)
    if options.command == "list":
        return _list(settings, options)
    team = team_of(settings, options.team)
    if options.command == "logs":
        return _logs(_jobs(settings, team), options)
    return _cancel(_jobs(settings, team), options)


def _jobs(settings: Settings, team: Team) -> Jobs:
    client, environment = Client(settings.project), settings.environment
    name = settings[GkeSettings].cluster_name
    try:
        return Jobs(cluster_named(client, pools.region(settings), name, environment), team, environment)
    except RequestError as error:
        if error.failure.kind is not Kind.PERMISSION:
            raise
        what = f"the cluster {name} isn't yours to see: {error.failure.message}"
        raise CommandError(_for_members(settings, what)) from None


def _for_members(settings: Settings, refused: str, team: str | None = None) -> str:
    """A refusal by IAM or by the cluster: both rights come with a team, and no role that one asks for."""
    return (
        f"{refused}\n"
        f"    fix: the platform engineer adds your account to the members of {team or 'a team'} in "
        f"queue:teams, then {up_command('queue', settings.environment)}"
    )


def _submit(settings: Settings, options: argparse.Namespace, words: Sequence[str]) -> int:
    if not words:
        raise CommandError("no program\n    fix: write it behind --, as in: -- train tiny.toml")
    asked = Request(
        options.team, words, options.name, options.slice, options.slices, options.pool, options.zone,
        options.priority, options.image,
    )  # fmt: skip
    one = submission(settings, asked)  # whose rules read the words first
    offline.refuse_config(words)
    predicted = run_price.of_hours(one.hourly, options.hours)
    run_price.within_limit(predicted, settings[FleetSettings].dollars_per_run, "fleet:dollarsPerRun")
    if options.out is not None:
        return offline.manifest(settings, one.job, options.out)
    price = dollars(one.hourly)
    print(f"job {one.job.name} of {one.job.team.name}: {one.reason}")
    print(
        f"  priority {one.job.priority}; ${price} an hour while it runs (prices read {CATALOG.prices_read})"
    )
    if predicted.dollars is not None:
        print(f"  predicted: {predicted}")
    jobs = _jobs(settings, one.job.team)
    jobs.submit(one.job)
    print("submitted")
    place = f"{settings.environment} {one.job.team.name} {one.job.name}"
    advice = (
        "  it goes on without this command\n"
        f"  output:  tpu job logs {place} --follow\n"
        f"  end it:  tpu job cancel {place}"
    )
    if run := run_of(words):
        print(f"  curves:  tpu job tensorboard {settings.environment} {run}")
    if options.detach:
        print(advice)
        return 0
    try:
        return _follow(jobs, one.job.name, one.hourly, predicted)
    except (KeyboardInterrupt, SystemExit):
        print(f"\nstopped looking\n{advice}", file=sys.stderr)
        raise


def _follow(jobs: Jobs, name: str, hourly: float | None = None, predicted: RunPrice | None = None) -> int:
    """Print what changes, and what worker 0 prints, until the job has ended, and its price; 0: it completed.

    `hourly`: US dollars an hour while it runs, None where unknown.
    """
    shown, pod, since = "", None, ""
    while True:
        status = jobs.status(name)
        if status is None:
            print(f"{name}: cancelled, by this or another command")
            return 1
        if (line := _words(status)) != shown:
            shown = line
            print(f"{name}: {line}", flush=True)
        newest = jobs.worker(name, 0)
        if newest != pod:
            pod, since = newest, ""
        for stamp, text in jobs.log(pod, since) if pod else ():
            since = stamp
            print(f"  | {text}", flush=True)
        if status.state == FAILED and (first := jobs.failed(name)):
            number, its, code = first
            print(f"{name}: worker {number} failed first, with status {code}", flush=True)
            for _, text in jobs.log(its, lines=_LAST_LINES) if its != pod else ():
                print(f"  | {text}", flush=True)
        if status.state in ENDED:
            if price := _price(status, hourly, predicted):
                print(f"{name}: {price}", flush=True)
            return 0 if status.state == COMPLETED else 1
        time.sleep(_POLL_S)


def _price(status: Status, hourly: float | None, predicted: RunPrice | None) -> str:
    """What its pools have cost since the queue admitted it last, and what was predicted; empty: unknown."""
    if hourly is None or status.admitted_s is None:
        return ""
    held = f"{status.admitted_s / 60:,.0f} min since its admission, ${hourly * status.admitted_s / 3600:,.2f}"
    return f"{held}; predicted {predicted}" if predicted and predicted.dollars is not None else held


def _words(status: Status) -> str:
    parts = [status.state]
    if status.position is not None:
        parts.append(f"number {status.position} in the queue")
    if status.state not in (*ENDED, QUEUED):
        parts.append(f"{status.running} of {status.hosts} hosts")
    if status.restarts:
        parts.append(f"restarted {status.restarts} times, {status.counted} of them counted")
    if status.why:
        parts.append(status.why)
    return ", ".join(parts)


def _list(settings: Settings, options: argparse.Namespace) -> int:
    chosen = [team_of(settings, options.team)] if options.team else list(teams(settings))
    if not chosen:
        raise CommandError(
            "queue:teams has no team, so there are no jobs\n"
            f"    fix: add one, then {up_command('queue', settings.environment)}"
        )
    every: list[tuple[str, Status]] = []
    refused = {}
    for team in chosen:
        try:
            every += [(team.name, status) for status in _jobs(settings, team).all()]
        except RequestError as error:
            if error.failure.kind is not Kind.PERMISSION:
                raise
            refused[team.name] = error
    if len(refused) == len(chosen):
        raise next(iter(refused.values()))
    if refused:
        print(f"not shown, since they are other teams': {', '.join(refused)}", file=sys.stderr)
    if options.json:
        print(json.dumps([{"team": team, **dataclasses.asdict(status)} for team, status in every]))
        return 0
    if not every:
        print("no jobs\n  next: tpu job submit", settings.environment, chosen[0].name, "-- train tiny.toml")
        return 0
    head = ("team", "job", "priority", "created", "state")
    rows = [head, *((team, one.name, one.priority, one.created, _words(one)) for team, one in every)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _require(jobs: Jobs, options: argparse.Namespace) -> Status:
    status = jobs.status(options.job)
    if status is None:
        known = ", ".join(one.name for one in jobs.all()) or "none"
        raise CommandError(
            f"{options.team} has no job {options.job}; its jobs: {known}\n"
            f"    fix: tpu job list {options.environment} {options.team}"
        )
    return status


def _logs(jobs: Jobs, options: argparse.Namespace) -> int:
    ended = _require(jobs, options)
    number = options.worker
    if number is None:
        failed = jobs.failed(options.job) if ended.state == FAILED else None
        number = failed[0] if failed else 0
    elif number >= ended.hosts:
        raise CommandError(
            f"{options.job} has no worker {number}: it has {ended.hosts}, and the first is 0\n"
            f"    fix: --worker with 0 to {ended.hosts - 1}"
        )
    since, pod, first = "", None, True
    while True:
        newest = jobs.worker(options.job, number)
        if newest != pod:
            pod, since = newest, ""
        for stamp, text in jobs.log(pod, since, options.lines if first else None) if pod else ():
            since = stamp
            print(text, flush=True)
        first = False
        status = jobs.status(options.job)
        if not options.follow or status is None or status.state in ENDED:
            if pod is None:
                print(
                    f"worker {number} has no pod: {_words(status) if status else 'gone'}",
                    file=sys.stderr,
                )
            return 0
        time.sleep(_POLL_S)


def _cancel(jobs: Jobs, options: argparse.Namespace) -> int:
    status = _require(jobs, options)
    if status.state not in ENDED:
        confirm(f"Cancel {options.job}, which is {_words(status)}?", options.yes)
    jobs.cancel(options.job)
    print(f"{options.job} is cancelled; what it saved stays in the bucket")
    return 0


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: a number from 0")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tpu job", description="Jobs on the cluster's queue.", epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, about: str) -> argparse.ArgumentParser:
        one = commands.add_parser(
            name, help=about, description=about, epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        one.add_argument("environment", metavar="ENV", help="the name in Pulumi.ENV.yaml")
        return one

    submit = command("submit", "put a program into the queue, and follow it to its end")
    submit.add_argument("team", metavar="TEAM", help="a team of queue:teams")
    submit.add_argument("--name", default="", help="name of the job; by the program, unless given")
    submit.add_argument("--slice", default="", metavar="SIZE", help="accelerator type or topology of a slice")
    submit.add_argument("--slices", type=int, default=1, metavar="N", help="slices of a multislice job")
    submit.add_argument("--pool", default="", help="name of an item of gke:tpuPools")
    submit.add_argument("--zone", default="", help="zone of the pools")
    submit.add_argument("--priority", default="medium", help=f"one of {', '.join(PRIORITIES)}")
    submit.add_argument("--image", default="", help="image of the containers, by digest")
    submit.add_argument("--hours", type=run_price.hours, metavar="N",
                        help="how long it takes, for its price; it isn't ended then")  # fmt: skip
    submit.add_argument("--detach", action="store_true", help="return once it is in the queue")
    submit.add_argument(
        "--out", metavar="FILE", help="write the manifest, for kubectl, and submit nothing; -: print"
    )
    listing = command("list", "all jobs, their states and their places in the queue")
    listing.add_argument("team", metavar="TEAM", nargs="?", help="of this team alone")
    listing.add_argument("--json", action="store_true", help="as one JSON document")
    logs = command("logs", "what a worker printed")
    which = "which one, over all slices; 0, or of a failed job the one that failed first"
    logs.add_argument("--worker", type=_count, metavar="K", help=which)
    logs.add_argument("--lines", type=_count, default=None, metavar="N", help="the last N alone")
    logs.add_argument("--follow", action="store_true", help="go on until the job has ended")
    cancel = command("cancel", "end a job; what it saved stays in the bucket")
    cancel.add_argument("--yes", action="store_true", help="don't ask")
    board = command("tensorboard", "show the curves of a run, or of all, from the bucket")
    board.add_argument("run", metavar="RUN", nargs="?", default="", help="its name, as in runs/RUN")
    board.add_argument("--port", type=int, default=6006, help="where the page is served, on this machine")
    built = command("image", "write what an image of the published bundle is built from")
    built.add_argument("--base", default="", metavar="IMAGE@sha256:…",
                       help="what it begins with: Debian or Ubuntu (queue:image)")  # fmt: skip
    built.add_argument("--repository", default="", metavar="HOST/PATH", help="where it goes, without a tag")
    built.add_argument("--account", default="", metavar="EMAIL", help="service account that builds")
    built.add_argument("--out", required=True, metavar="DIR", help="folder of the build's context")
    for one in (logs, cancel):
        one.add_argument("team", metavar="TEAM", help="a team of queue:teams")
        one.add_argument("job", metavar="JOB", help="name of the job")
    return parser
