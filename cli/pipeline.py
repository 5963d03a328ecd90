"""`tpu pipeline`: runs from submitted text to a training job."""

from __future__ import annotations

import json
import sys
import time

import click

from cli import options
from cli.command import Group
from infra.core.layer import up_command
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.google.client import Client
from infra.layers.pipeline import access, paths, price
from infra.layers.pipeline.runs import GOOD, RUNNING, NoRunError, Run, Runs
from infra.layers.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings

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
    predicted, most = price.run_usd(settings, size / _GIB), price.most_usd(settings)
    limit = desired.max_run_cost_usd
    if limit is not None and (predicted is None or predicted > limit):
        raise CommandError(
            f"predicted: ${_dollars(predicted)}, pipeline:maxRunCostUsd allows ${limit:,}\n"
            "    fix: submit less text, or raise the limit"
        )
    print(f"text     gs://{desired.raw_bucket_name}/{folder}: {objects} objects, {size / _GIB:,.2f} GiB")
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
    return _show(runs, runs.named(run), as_json=as_json) if run else _list(runs, as_json=as_json)


@pipeline.command(examples=["dev r1732480000000000"])
@options.environment
@_RUN
@options.yes
def cancel(environment: str, run: str, yes: bool) -> int:
    """Cancel the present stage of a run."""
    runs = _runs(_settings(environment))
    state = runs.named(run)
    confirm(f"Cancel {state['run']}, at {state['stage']}?", yes)
    print(f"cancelled: {runs.cancel(state)}")
    return 0


@pipeline.command(examples=["dev r1732480000000000"])
@options.environment
@_RUN
@options.yes
def retry(environment: str, run: str, yes: bool) -> int:
    """Resume a run after its completed stages."""
    settings = _settings(environment)
    runs = _runs(settings)
    state = runs.named(run)
    runs.refuse_retry(state)
    most = f"${_dollars(price.most_usd(settings))} at most with training, less for completed stages"
    confirm(f"Resume {state['run']}, at {state['stage']}: {most}?", yes)
    runs.retry(state)
    print(f"{state['run']}: resumed; next: tpu pipeline status {environment} {state['run']}")
    return 0


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
    costs = [{"run": run["run"], **{key: run.get(key) for key in keys}} for run in runs]
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
            run: Run = runs.named(name)
        except NoRunError:  # not claimed yet
            run = {"run": name, "stage": "start", "outcome": RUNNING}
        line = f"{name}: {run['stage']}" if run["outcome"] == RUNNING else f"{name}: {run['outcome']}"
        if line != shown:
            shown = line
            print(line, flush=True)
        if run["outcome"] != RUNNING:
            _show(runs, run, as_json=False)
            return 0 if run["outcome"] in GOOD else 1
        time.sleep(_POLL_S)


def _list(runs: Runs, *, as_json: bool) -> int:
    known = _read(runs)
    unrecorded = [{**run, "why": runs.why(run)} for run in runs.unrecorded(known)]
    if as_json:
        print(json.dumps([*known, *unrecorded]))
        return 0
    if not known and not unrecorded:
        print("no run yet")
    for run in [*known, *unrecorded]:
        print(f"{run['run']}  {run['began']}  {run['stage']:<10}  {run['outcome']:<12}  {run['raw']}")
        if run in unrecorded:
            print(f"    {run['why']}")
    return 0


def _read(runs: Runs) -> list[Run]:
    """Return every run that has a record; print the records that can't be read."""
    known = runs.all()
    for name, why in runs.unread.items():
        print(f"left out: {name}: {why}", file=sys.stderr)
    return known


def _show(runs: Runs, run: Run, *, as_json: bool) -> int:
    """Print a run: inputs, code, shards, training, price."""
    why = runs.why(run)
    if as_json:
        print(json.dumps({**run, "why": why}))
        return 0
    tokens = run.get("tokens") or {}
    lines = {
        "run": run["run"],
        "outcome": f"{run['outcome']}, at {run['stage']}",
        "why": why,
        "next": run.get("next"),
        "began": run["began"],
        "ended": run.get("ended"),
        "text": f"{run['raw']}: {run.get('objects', '?')} objects, {run.get('bytes', '?')} bytes"
        + (f", inputs sha256 {tokens['inputs']}" if tokens.get("inputs") else ""),
        "code": run.get("code"),
        "batch": ", ".join(filter(None, (run.get("batch"), runs.batch(run)))),
        "shards": tokens
        and f"{tokens['shards']} of {tokens['tokens']} tokens, manifest sha256 {tokens['manifest']}",
        "training": run.get("training"),
        "price": ", ".join(
            f"${_dollars(run.get(f'{key}_usd'))} {about}"
            for key, about in (
                ("predicted", "predicted for Spark"),
                ("actual", "actual"),
                ("most", "at most"),
            )
        ),
    }
    for key, text in lines.items():
        if text:
            print(f"{key:<9}{text}")
    return 0


def _dollars(amount: float | None) -> str:
    return "unknown" if amount is None else f"{amount:,.2f}"
