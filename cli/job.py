"""`tpu job`: training and extraction on the cluster's queue, from submission to the last line of output."""

import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from cli import offline, options, variables
from cli.command import Group, end_on_signals
from infra.catalog import CATALOG
from infra.core.layer import up_command
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.errors import CommandError, InputError
from infra.google.client import Client, RequestError, member
from infra.google.failures import Kind
from infra.google.kubernetes import cluster_named
from infra.layers.gke import pools
from infra.layers.gke.settings import GkeSettings
from infra.layers.queue.jobs.client import COMPLETED, ENDED, FAILED, QUEUED, Jobs, Status
from infra.layers.queue.jobs.submission import JobRequest, Submission, run_of, submission, team_of
from infra.layers.queue.kueue import PRIORITIES, Team
from infra.layers.queue.settings import QueueSettings
from infra.layers.queue.team import first_job, reader, teams
from infra.prices import run as run_price
from infra.prices.row import dollars
from infra.prices.run import RunPrice
from infra.settings.schema import FleetSettings, Settings
from infra.settings.sources import ROOT
from infra.slices import inputs
from infra.slices.settings import TpuSettings
from views.counts import counted
from views.table import aligned

_POLL_S = 2.0
_LAST_LINES = 30  # of the worker that failed first
_EPILOG = """\b
Examples:
  tpu job submit dev vision -- train tiny.toml
  tpu job submit dev vision --slice v6e-16 --slices 2 --priority high -- train llama-8b.toml
  tpu job submit dev vision --out job.yaml -- train tiny.toml   # for kubectl
  tpu job list dev
  tpu job logs dev vision train-tiny --follow
  tpu job cancel dev vision train-tiny
  tpu job image dev --base HOST/debian@sha256:… --out image     # context of an image
"""


_TEAM = click.argument("team", metavar="TEAM", help="a team of queue:teams")
_JOB = click.argument("name", metavar="JOB", help="name of the job")
_FROM_0 = click.IntRange(0)


@click.group(cls=Group, epilog=_EPILOG)
def job() -> None:
    """Submit and watch jobs on the cluster's queue."""


def _settings(environment: str) -> Settings:
    return options.with_layer("queue", QueueSettings, from_file(environment))


@contextmanager
def _explained(settings: Settings, team: str | None) -> Iterator[None]:
    """Add the fix to a refusal by IAM or by the cluster."""
    try:
        yield
    except RequestError as error:
        if error.failure.kind is not Kind.PERMISSION:
            raise
        raise CommandError(_for_members(settings, error.failure.message, team)) from None


@job.command(words="PROGRAM", examples=["dev vision -- train tiny.toml"])
@options.environment
@_TEAM
@click.option("--name", default="", help="Name of the job; default: by the program.")
@click.option("--slice", "size", default="", metavar="SIZE", help="Accelerator type or topology of a slice.")
@click.option("--slices", type=int, default=1, metavar="N", help="Number of slices of a multislice job.")
@click.option("--pool", default="", help="Name of an item of gke:tpuPools.")
@click.option("--zone", default="", help="Zone of the pools.")
@click.option("--priority", default="medium", show_default=True, help=f"One of {', '.join(PRIORITIES)}.")
@click.option("--image", "container", default="", help="Image of the containers, by digest.")
@variables.options
@options.hours
@click.option("--detach", is_flag=True, help="Return once the job is queued.")
@options.unasked
@click.option(
    "--out",
    metavar="FILE",
    type=options.LocalPath(),
    help="Write the manifest for kubectl, and submit nothing; -: print it.",
)
def submit(
    environment: str, team: str, name: str, size: str, slices: int, pool: str, zone: str, priority: str,
    container: str, env: tuple[str, ...], secrets: tuple[str, ...], hours: float | None, detach: bool,
    out: str | None, words: tuple[str, ...],
) -> int:  # fmt: skip
    """Put a program into the queue, and follow it to its end."""
    settings = _settings(environment)
    if not words:
        raise InputError("no program\n    fix: write it behind --, as in: -- train tiny.toml")
    given = variables.read(env, secrets)
    request = JobRequest(team, words, name, size, slices, pool, zone, priority, container, given)
    with _explained(settings, team):
        chosen = submission(settings, request)  # checks the words first
        offline.refuse_config(chosen.program)
        predicted = run_price.of_hours(chosen.hourly, hours)
        run_price.within_limit(predicted, settings[FleetSettings].dollars_per_run, "fleet:dollarsPerRun")
        if out is not None:
            return offline.manifest(settings, chosen.job, out)
        variables.require_readable(settings, chosen.variables, reader(settings, chosen.job.team))
        code = ROOT / (settings[TpuSettings].code or "")
        line = inputs.Run("-- PROGRAM", shlex.join(words))
        inputs.require(Client(settings.project), environment, [line], code)
        _introduce(chosen, predicted)
        jobs = _jobs(settings, chosen.job.team)
        jobs.submit(chosen.job)
        print("submitted")
        path = f"{environment} {chosen.job.team.name} {chosen.job.name}"
        advice = (
            "  the job continues without this command\n"
            f"  output:  tpu job logs {path} --follow\n"
            f"  end it:  tpu job cancel {path}"
        )
        if run := run_of(chosen.program):
            print(f"  curves:  tpu runs show {environment} {run}")
        if detach:
            print(advice)
            return 0
        end_on_signals()
        try:
            return _follow(jobs, chosen.job.name, chosen.hourly, predicted)
        except (KeyboardInterrupt, SystemExit):
            print(f"\nstopped following\n{advice}", file=sys.stderr)
            raise


def _introduce(chosen: Submission, predicted: RunPrice) -> None:
    """Print the job, its pools' price, the predicted price of the run, and the run that it writes."""
    print(f"job {chosen.job.name} of {chosen.job.team.name}: {chosen.reason}")
    print(
        f"  priority {chosen.job.priority}; ${dollars(chosen.hourly)} an hour while it runs "
        f"(prices read {CATALOG.prices_read})"
    )
    if predicted.dollars is not None:
        print(f"  predicted: {predicted}")
    if chosen.run:
        print(f"  run: {chosen.run}; a run of that name is continued")


@job.command("list", examples=["dev", "dev vision --json"])
@options.environment
@click.argument("team", metavar="[TEAM]", required=False, help="only this team; default: all")
@options.as_json
def list_jobs(environment: str, team: str | None, as_json: bool) -> int:
    """List jobs, their states and their positions in the queue."""
    settings = _settings(environment)
    chosen = [team_of(settings, team)] if team else list(teams(settings))
    if not chosen:
        raise CommandError(
            "queue:teams has no team, so there are no jobs\n"
            f"    fix: add one, then {up_command('queue', environment)}"
        )
    with _explained(settings, team):
        read = _readable(settings, chosen)
    rows = [(name, status) for name, statuses in read.items() for status in statuses]
    if as_json:
        print(json.dumps([{"team": owner, **dataclasses.asdict(status)} for owner, status in rows]))
    elif not rows:
        print(f"no jobs\n  next: {first_job(settings, next(iter(read)))}")
    else:
        cells = [(owner, job.name, job.priority, job.created, _words(job)) for owner, job in rows]
        print("\n".join(aligned([("team", "job", "priority", "created", "state"), *cells])))
    return 0


@job.command(examples=["dev vision train-tiny --follow"])
@options.environment
@_TEAM
@_JOB
@click.option("--worker", type=_FROM_0, metavar="K",
              help="Number over all slices; default: the first to fail, else 0.")  # fmt: skip
@click.option("--lines", type=_FROM_0, metavar="N", help="Only the last N lines.")
@click.option("--follow", "-f", is_flag=True, help="Continue until the job has ended.")
def logs(environment: str, team: str, name: str, worker: int | None, lines: int | None, follow: bool) -> int:
    """Print the output of a worker."""
    settings = _settings(environment)
    with _explained(settings, team):
        jobs = _jobs(settings, team_of(settings, team))
        status = _require(jobs, environment, team, name)
        return _logs(jobs, status, _worker(jobs, status, worker), lines, follow=follow)


@job.command(examples=["dev vision train-tiny"])
@options.environment
@_TEAM
@_JOB
@options.yes
def cancel(environment: str, team: str, name: str, yes: bool) -> int:
    """Cancel a job, or take an ended one off the list; its checkpoints stay in the bucket."""
    settings = _settings(environment)
    with _explained(settings, team):
        jobs = _jobs(settings, team_of(settings, team))
        status = _require(jobs, environment, team, name)
        if status.state in ENDED:
            jobs.cancel(name)
            print(f"{name} had {status.state} and is off the list; its checkpoints stay in the bucket")
            return 0
        confirm(f"Cancel {name}, which is {_place(status)}?", yes)
        jobs.cancel(name)
        print(f"{name} is cancelled; its checkpoints stay in the bucket")
        return 0


@job.command(examples=["dev --base HOST/debian@sha256:… --out image"])
@options.environment
@click.option(
    "--base", default="", metavar="IMAGE@sha256:…", help="Base image: Debian or Ubuntu; default: queue:image."
)
@click.option("--repository", default="", metavar="HOST/PATH", help="Destination, without a tag.")
@click.option("--account", default="", metavar="EMAIL", help="Service account that builds.")
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    type=options.PATH,
    help="Folder of the build's context.",
)
def image(environment: str, base: str, repository: str, account: str, out: Path) -> int:
    """Write the context from which an image of the published bundle is built."""
    return offline.image(_settings(environment), out, base=base, repository=repository, account=account)


def _jobs(settings: Settings, team: Team) -> Jobs:
    client, environment = Client(settings.project), settings.environment
    name = settings[GkeSettings].cluster_name
    try:
        return Jobs(cluster_named(client, pools.region(settings), name, environment), team, environment)
    except RequestError as error:
        if error.failure.kind is not Kind.PERMISSION:
            raise
        raise CommandError(_unseen(settings, client, name, error.failure.message)) from None


def _unseen(settings: Settings, client: Client, name: str, refusal: str) -> str:
    """Return Google's refusal to show the cluster, with its fix.

    It refuses a cluster that isn't there likewise, and members of a team lose the right to see it with it.
    """
    login = member(client)
    up = f"tpu up {settings.environment} gke queue"
    if any(login in team.members for team in settings[QueueSettings].teams):
        return (
            f"the cluster {name} isn't up, or not since {login.partition(':')[2]} is in queue:teams\n"
            f"    fix: the platform engineer brings it up: {up}"
        )
    text = _for_members(settings, f"no access to the cluster {name}: {refusal}")
    return f"{text}; if your account is a member, the cluster isn't up: {up}"


def _for_members(settings: Settings, refusal: str, team: str | None = None) -> str:
    """Return a refusal by IAM or by the cluster, with its fix: membership of a team grants both rights."""
    return (
        f"{refusal}\n"
        f"    fix: the platform engineer adds your account to the members of {team or 'a team'} in "
        f"queue:teams, then {up_command('queue', settings.environment)}"
    )


def _follow(jobs: Jobs, name: str, hourly: float | None = None, predicted: RunPrice | None = None) -> int:
    """Print changes and the output of worker 0 until the job has ended, and its price.

    Args:
        jobs: of the team.
        name: of the job.
        hourly: US dollars an hour while it runs; None: unknown.
        predicted: price of the run.

    Returns:
        0 if it completed, else 1.
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
            number, failed_pod, code = first
            if (failure := f"worker {number} failed first, with status {code}") not in status.why:
                print(f"{name}: {failure}", flush=True)
            for _, text in jobs.log(failed_pod, lines=_LAST_LINES) if failed_pod != pod else ():
                print(f"  | {text}", flush=True)
        if status.state in ENDED:
            if price := _price(status, hourly, predicted):
                print(f"{name}: {price}", flush=True)
            return 0 if status.state == COMPLETED else 1
        time.sleep(_POLL_S)


def _price(status: Status, hourly: float | None, predicted: RunPrice | None) -> str:
    """Return the price of the pools since the last admission, and the predicted one; empty: unknown."""
    if hourly is None or status.admitted_s is None:
        return ""
    held = f"{status.admitted_s / 60:,.0f} min since its admission, ${hourly * status.admitted_s / 3600:,.2f}"
    return f"{held}; predicted {predicted}" if predicted and predicted.dollars is not None else held


def _place(status: Status) -> str:
    """Return what a job does, and where."""
    if status.position is not None:
        return f"{status.state}, number {status.position} in the queue"
    if status.state in (*ENDED, QUEUED):
        return status.state
    return f"{status.state}, {status.running} of {counted(status.hosts, 'host')}"


def _words(status: Status) -> str:
    parts = [_place(status)]
    if status.restarts:
        parts.append(f"restarted {counted(status.restarts, 'time')}, {status.counted} of them counted")
    if status.why:
        parts.append(status.why)
    return ", ".join(parts)


def _readable(settings: Settings, teams: Sequence[Team]) -> dict[str, Sequence[Status]]:
    """Return the jobs by team, of those whose namespace may be read. Raises RequestError if none may."""
    read: dict[str, Sequence[Status]] = {}
    refused: dict[str, RequestError] = {}
    for team in teams:
        try:
            read[team.name] = _jobs(settings, team).all()
        except RequestError as error:
            if error.failure.kind is not Kind.PERMISSION:
                raise
            refused[team.name] = error
    if not read:
        raise next(iter(refused.values()))
    if refused:
        print(f"not shown, no access: {', '.join(refused)}", file=sys.stderr)
    return read


def _require(jobs: Jobs, environment: str, team: str, name: str) -> Status:
    """Return the status of a job. Raises InputError for a job that doesn't exist."""
    status = jobs.status(name)
    if status is None:
        known = ", ".join(job.name for job in jobs.all()) or "none"
        raise InputError(
            f"{team} has no job {name}; its jobs: {known}\n    fix: tpu job list {environment} {team}"
        )
    return status


def _worker(jobs: Jobs, status: Status, number: int | None) -> int:
    """Return the worker to show; None: the first to fail, else 0. Raises InputError for one too high."""
    if number is None:
        failed = jobs.failed(status.name) if status.state == FAILED else None
        return failed[0] if failed else 0
    if number >= status.hosts:
        raise InputError(
            f"{status.name} has no worker {number}: it has {status.hosts}, and the first is 0\n"
            f"    fix: --worker with 0 to {status.hosts - 1}"
        )
    return number


def _logs(jobs: Jobs, begun: Status, number: int, lines: int | None, *, follow: bool) -> int:
    """Print the output of a worker; `follow`: until the job has ended."""
    since, pod, first = "", None, True
    while True:
        newest = jobs.worker(begun.name, number)
        if newest != pod:
            pod, since = newest, ""
        for stamp, text in jobs.log(pod, since, lines if first else None) if pod else ():
            since = stamp
            print(text, flush=True)
        first = False
        status = jobs.status(begun.name)
        if not follow or status is None or status.state in ENDED:
            if pod is None:
                print(
                    f"worker {number} has no pod: {_words(status) if status else 'gone'}",
                    file=sys.stderr,
                )
            return 0
        time.sleep(_POLL_S)
