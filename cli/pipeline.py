"""`tpu pipeline`: runs from submitted text to a training job."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from cli import options
from cli.command import Group
from infra.core.layer import up_command
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.google.client import Client
from infra.layers.pipeline import access, paths, price
from infra.layers.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings
from pipeline.record import GOOD, Run, Stage
from pipeline.runs import WAITING, NoRunError, Runs, described
from pipeline.store import CANCEL, RETRY
from views.counts import counted

_POLL_S = 5.0
_GIB = 1 << 30
_EPILOG = """\b
Examples:
  tpu pipeline publish dev                    # the job's code and packages, into the scratch bucket
  tpu pipeline run dev gs://MY-RAW/corpus/    # submit a folder, and follow its run
  tpu pipeline status dev                     # all runs, the newest first
  tpu pipeline status dev r1732480000000000   # one run in detail
  tpu pipeline logs dev r1732480000000000     # Spark's output
  tpu pipeline retry dev r1732480000000000    # resume after the completed stages
  tpu pipeline cancel dev r1732480000000000
  tpu pipeline cost dev                       # predicted, at most and actual
"""


@click.group(cls=Group, epilog=_EPILOG)
def pipeline() -> None:
    """Run text through Spark into a training job: publish, run, show, cancel, retry."""


_RUN = click.argument("run", metavar="RUN", help="r and the submission's generation")


def _settings(environment: str) -> Settings:
    return options.with_layer("pipeline", PipelineSettings, from_file(environment))


def _runs(settings: Settings) -> Runs:
    return Runs(settings, Client(settings.project))


@pipeline.command(examples=["dev"])
@options.environment
@click.option("--dry-run", is_flag=True, help="Build it; upload and record nothing.")
def publish(environment: str, dry_run: bool) -> int:
    """Upload the job's code and packages to the scratch bucket, and record its hash in the settings."""
    from infra.publish.pipeline import publish as publish_code  # Google's libraries, slow to import

    return publish_code(_settings(environment), upload=not dry_run)


@pipeline.command("run", examples=["dev gs://MY-RAW/corpus/"])
@options.environment
@click.argument("location", metavar="FOLDER", help="gs://RAW-BUCKET/FOLDER/")
@click.option("--detach", is_flag=True, help="Return when it is submitted.")
@options.yes
def submit(environment: str, location: str, detach: bool, yes: bool) -> int:
    """Submit a folder of the raw bucket, and follow its run."""
    settings = _settings(environment)
    runs, desired = _runs(settings), settings[PipelineSettings]
    if desired.code is None:
        fix = f"tpu pipeline publish {environment}, then {up_command('pipeline', environment)}"
        raise CommandError(f"pipeline:code isn't set: batches need published code\n    fix: {fix}")
    folder, objects, size = runs.measure(location)
    runs.require_ended(folder)
    prices = price.of_runs(settings)
    predicted, most = prices.predicted_usd(size / _GIB), prices.most_usd
    limit = desired.max_run_cost_usd
    if limit is not None and (predicted is None or predicted > limit):
        raise CommandError(
            f"predicted: ${_dollars(predicted)}, pipeline:maxRunCostUsd allows ${limit:,}\n"
            "    fix: submit less text, or raise the limit"
        )
    text = f"{counted(objects, 'object')}, {size / _GIB:,.2f} GiB"
    print(f"text     gs://{desired.raw_bucket_name}/{folder}: {text}")
    print(f"shards   in Spark: ${_dollars(predicted)} predicted, ${_dollars(most)} at most with training")
    print(f"training {desired.train}")
    confirm("Submit it?", yes)
    name = runs.submit(folder)
    print(f"submitted as {name}")
    if detach:
        print(f"  progress: tpu pipeline status {environment} {name}")
        return 0
    return _follow(runs, name)


@pipeline.command(examples=["dev", "dev r1732480000000000"])
@options.environment
@click.argument(
    "run", metavar="[RUN]", default="", help="r and the submission's generation; default: all runs"
)
@options.as_json
def status(environment: str, run: str, as_json: bool) -> int:
    """Show every run, the newest first, or all details of one."""
    runs = _runs(_settings(environment))
    if not run:
        return _list(runs, as_json=as_json)
    try:
        return _show(runs, runs.named(run), as_json=as_json)
    except NoRunError:
        if waiting := [submission for submission in runs.waiting() if submission.run == run]:
            return _show_rows([described(waiting[0], runs.why_waiting())], as_json=as_json)
        raise


@pipeline.command(examples=["dev r1732480000000000"])
@options.environment
@_RUN
@options.yes
def cancel(environment: str, run: str, yes: bool) -> int:
    """Cancel a run: its batch, or its training."""
    settings = _settings(environment)
    runs = _runs(settings)
    known = runs.named(run)
    runs.refuse(known, CANCEL)
    confirm(f"Cancel {run}, at {known.stage}{f': {known.training}' if known.training else ''}?", yes)
    runs.request(known, CANCEL)
    print(f"{run}: {_requested(settings, 'cancelled')}; next: tpu pipeline status {environment} {run}")
    return 0


@pipeline.command(examples=["dev r1732480000000000"])
@options.environment
@_RUN
@options.yes
def retry(environment: str, run: str, yes: bool) -> int:
    """Resume a run after its completed stages."""
    settings = _settings(environment)
    runs = _runs(settings)
    known = runs.named(run)
    runs.refuse(known, RETRY)
    most = f"${_dollars(price.most_usd(settings))} at most with training, less for completed stages"
    confirm(f"Resume {run}, at {known.stage}: {most}?", yes)
    runs.request(known, RETRY)
    print(f"{run}: {_requested(settings, 'resumed')}; next: tpu pipeline status {environment} {run}")
    return 0


def _requested(settings: Settings, verb: str) -> str:
    minutes = settings[PipelineSettings].sweep_minutes
    return f"{verb} by the next sweep, within {minutes} min"


@pipeline.command(examples=["dev r1732480000000000"])
@options.environment
@_RUN
def logs(environment: str, run: str) -> int:
    """Print the output of a run's batch; 1 if there is none."""
    settings, empty = _settings(environment), True
    runs = _runs(settings)
    for line in runs.logs(runs.named(run)):
        print(line)
        empty = False
    if empty:
        spark = paths.account_id(settings, paths.SPARK)
        needs = access.lacking(settings, f"{spark}@ lacks logging.logEntries.create")
        print(f"no output: the batch hasn't begun, or may not write logs; that needs {needs}")
    return int(empty)


@pipeline.command(examples=["dev"])
@options.environment
@options.as_json
def cost(environment: str, as_json: bool) -> int:
    """Show predicted and actual costs of runs."""
    keys = ("predicted_usd", "spark_usd", "training_usd", "actual_usd", "most_usd")
    runs = _read(_runs(_settings(environment)))
    costs = [{"run": run.run, **{key: getattr(run, key) for key in keys}} for run in runs]
    if as_json:
        print(json.dumps(costs))
        return 0
    print(f"{'run':<20}" + "".join(f"{key.removesuffix('_usd'):>12}" for key in keys))
    for run in costs:
        print(f"{run['run']:<20}" + "".join(f"{_dollars(run[key]):>12}" for key in keys))
    print(
        "US dollars. predicted: Spark alone. spark: by Google's usage figures. training: price of the slice"
    )
    print("times its time. actual, most: Spark and training.")
    return 0


def _follow(runs: Runs, name: str) -> int:
    """Print each new stage until the run has ended; return 0 if it succeeded, else 1."""
    shown = ""
    while True:
        try:
            run: Run | None = runs.named(name)
        except NoRunError:  # not claimed yet
            run = None
        line = f"{name}: {'start' if run is None else run.stage if run.running else run.outcome}"
        if line != shown:
            shown = line
            print(line, flush=True)
        if run is not None and not run.running:
            _show(runs, run, as_json=False)
            return 0 if run.outcome in GOOD else 1
        time.sleep(_POLL_S)


def _list(runs: Runs, *, as_json: bool) -> int:
    rows = [run.to_json() for run in _read(runs)]
    waiting = [described(submission, runs.why_waiting()) for submission in runs.waiting()]
    if not rows and not waiting and not as_json:
        print("no run yet")
    return _show_rows([*rows, *waiting], as_json=as_json)


def _show_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> int:
    """Print runs and submissions, a line for each; for a submission also why it may wait."""
    if as_json:
        print(json.dumps([*rows]))
        return 0
    for row in rows:
        print(f"{row['run']}  {row['began']}  {row['stage']:<10}  {row['outcome']:<12}  {row['raw']}")
        if row["outcome"] == WAITING:
            print(f"    {row['why']}")
    return 0


def _read(runs: Runs) -> list[Run]:
    """Return every run that has a record; print the records that can't be read."""
    known = runs.all()
    for url, why in runs.unread.items():
        print(f"left out: {url}: {why}", file=sys.stderr)
    return known


def _show(runs: Runs, run: Run, *, as_json: bool) -> int:
    """Print a run: inputs, code, shards, training, price."""
    if as_json:
        print(json.dumps(run.to_json()))
        return 0
    tokens, request = run.tokens, runs.pending(run.run)
    shards = tokens and f"{tokens.shards} of {tokens.tokens} tokens, manifest sha256 {tokens.manifest}"
    if shards and run.stage == Stage.CHECK:
        shards = f"{run.checked} compared so far"
    objects = "? objects" if run.objects is None else counted(run.objects, "object")
    size = "?" if run.bytes is None else run.bytes
    inputs = f", inputs sha256 {tokens.inputs}" if tokens and tokens.inputs else ""
    prices = (
        ("predicted for Spark", run.predicted_usd),
        ("actual", run.actual_usd),
        ("at most", run.most_usd),
    )
    lines = {
        "run": run.run,
        "outcome": f"{run.outcome}, at {run.stage}",
        "request": request and f"{request.action}, by {request.by}, {runs.applied_by()}",
        "why": run.why,
        "next": run.next,
        "began": run.began,
        "ended": run.ended,
        "text": f"{run.raw}: {objects}, {size} bytes{inputs}",
        "code": run.code,
        "batch": ", ".join(filter(None, (run.batch, runs.batch(run)))),
        "shards": shards,
        "training": run.training,
        "price": ", ".join(f"${_dollars(amount)} {about}" for about, amount in prices),
    }
    for key, text in lines.items():
        if text:
            print(f"{key:<9}{text}")
    return 0


def _dollars(amount: float | None) -> str:
    return "unknown" if amount is None else f"{amount:,.2f}"
