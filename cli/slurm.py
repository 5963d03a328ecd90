"""`tpu slurm`: jobs of a Slurm cluster, by sbatch, squeue and scancel on a login node."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from cli import options, variables
from cli.command import Group
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.layers.slurm.settings import SlurmSettings
from infra.prices.row import dollars
from infra.settings.schema import Settings
from slurm.client import Login, Queue
from slurm.jobs import JOB, Job, hourly
from views.counts import counted
from views.table import aligned

_EPILOG = """\b
Examples:
  tpu slurm submit dev job.sbatch -- -p tpu -N 1   # words behind -- are sbatch's own
  tpu slurm status dev
  tpu slurm logs dev 12 --follow
  tpu slurm cancel dev 12
  tpu slurm ssh dev                                # a shell where srun and salloc are
"""


@click.group(cls=Group, epilog=_EPILOG)
def slurm() -> None:
    """Submit and watch jobs of a Slurm cluster: submit, status, cancel, logs, ssh."""


class _JobId(click.ParamType[str, str]):
    """The id of a job."""

    name = "job"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the id."""
        if not JOB.fullmatch(value):
            self.fail(f"{value}: a job is a number, or NUMBER_TASK of an array", param, ctx)
        return value


_JOB = click.argument("job", metavar="JOB", type=_JobId(), help="number of the job, or NUMBER_TASK")
_NODE = click.option(
    "--login", "number", type=click.IntRange(0), default=0, metavar="K", help="Login node K; default: 0."
)


def _settings(environment: str) -> Settings:
    return options.with_layer("slurm", SlurmSettings, from_file(environment))


@slurm.command(words="OPTION", examples=["dev job.sbatch -- -p tpu -N 1"])
@options.environment
@click.argument("script", metavar="FILE", type=options.PATH, help="job script on this machine")
@variables.options
@_NODE
@options.unasked
def submit(
    environment: str, script: Path, env: tuple[str, ...], secrets: tuple[str, ...], number: int,
    words: tuple[str, ...],
) -> int:  # fmt: skip
    """Submit a job script; show its price and its place in the queue."""
    settings, given = _settings(environment), variables.read(env, secrets)
    variables.require_readable(settings, given)
    job = Queue(Login(settings, number)).submit(script, words, given)
    print(f"job {job.id}: {_shown(settings, job) if job.state else 'has ended already'}")
    print(f"  output:  tpu slurm logs {environment} {job.id} --follow")
    print(f"  end it:  tpu slurm cancel {environment} {job.id}")
    return 0


@slurm.command(examples=["dev"])
@options.environment
@_NODE
@options.as_json
def status(environment: str, number: int, as_json: bool) -> int:
    """Show all jobs that wait or run, each with its place in the queue and price per hour."""
    settings = _settings(environment)
    jobs = Queue(Login(settings, number)).jobs()
    if as_json:
        priced = [{**dataclasses.asdict(job), "hourly_usd": hourly(settings, job)} for job in jobs]
        print(json.dumps(priced))
        return 0
    if not jobs:
        print(f"no jobs\n  next: tpu slurm submit {environment} job.sbatch")
        return 0
    head = ["job", "user", "partition", "name", "hosts", "$/h", "time", "state"]
    rows = [
        [job.id, job.user, job.partition, job.name, str(job.hosts), dollars(hourly(settings, job)), job.time,
         _state(job)]
        for job in jobs
    ]  # fmt: skip
    print("\n".join(aligned([head, *rows])))
    return 0


@slurm.command(examples=["dev 12", "dev 13_1"])
@options.environment
@_JOB
@_NODE
@options.yes
def cancel(environment: str, job: str, number: int, yes: bool) -> int:
    """Cancel a job that waits or runs."""
    queue = Queue(Login(_settings(environment), number))
    matching = queue.named(job)
    confirm(f"Cancel {job} of {matching[0].user}, which is {_place(matching[0])}?", yes)
    queue.cancel(job)
    print(f"cancelled {job}")
    return 0


@slurm.command(examples=["dev 12 --follow"])
@options.environment
@_JOB
@click.option("--follow", "-f", is_flag=True, help="Print new lines until Ctrl+C.")
@click.option("--lines", type=click.IntRange(0), default=100, show_default=True, metavar="N",
              help="Begin with the last N lines.")  # fmt: skip
@_NODE
def logs(environment: str, job: str, follow: bool, lines: int, number: int) -> int:
    """Print the output of a job, which is a file on /home."""
    login = Login(_settings(environment), number)
    path = Queue(login).output(job)
    line = ["tail", f"--lines={lines}", *(["--follow=name", "--retry"] if follow else []), "--", path]
    if follow:
        return login.interactive(line)
    print(login.run(line), end="")
    return 0


@slurm.command(words="COMMAND", examples=["dev", "dev -- sinfo"])
@options.environment
@_NODE
def ssh(environment: str, number: int, words: tuple[str, ...]) -> int:
    """Log in to a login node, or run a command there.

    A single word is a line of shell; several words are passed unchanged.
    """
    return Login(_settings(environment), number).interactive(words)


def _place(job: Job) -> str:
    """Return what a job does, and where."""
    state = job.state.lower().replace("_", " ")
    if not job.place:
        return f"{state} on {job.nodes}" if job.nodes else state
    return f"{state}, number {job.place} in the queue"


def _state(job: Job) -> str:
    """Return what a job does, and if it waits, for what."""
    if not job.place:
        return _place(job)
    why = f", {job.why}" if job.why not in ("None", "Priority", "Resources", "") else ""
    start = f", planned for {job.start}" if job.start != "N/A" else ""
    return f"{_place(job)}{why}{start}"


def _shown(settings: Settings, job: Job) -> str:
    price = hourly(settings, job)
    cost = "of unknown price" if price is None else f"${price:,.2f} an hour while it runs"
    return f"{counted(job.hosts, 'host')} of {job.partition}, {cost}; {_state(job)}"
