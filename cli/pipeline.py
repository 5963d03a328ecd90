"""`tpu pipeline`: runs from submitted text to a training job."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

from infra.core import layer as core_layer
from infra.core.layer import up_command
from infra.engine.pulumi import confirm
from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.google.client import Client
from infra.layers.pipeline import access, places, price
from infra.layers.pipeline.runs import GOOD, RUNNING, NoRunError, Run, Runs
from infra.layers.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings

_POLL_S = 5.0
_GIB = 1 << 30
_EPILOG = """\
examples:
  tpu pipeline publish dev                    # the job's code and packages, into the scratch bucket
  tpu pipeline run dev gs://MY-RAW/corpus/    # submit what lies there, and follow its run
  tpu pipeline status dev                     # every run, the newest first
  tpu pipeline status dev r1732480000000000   # one of them, with all that is known
  tpu pipeline logs dev r1732480000000000     # what Spark printed
  tpu pipeline retry dev r1732480000000000    # again, from what is there
  tpu pipeline cancel dev r1732480000000000
  tpu pipeline cost dev                       # predicted, at most and actual
"""


def main(arguments: Sequence[str]) -> int:
    """Publish, run, look at, cancel, retry."""
    options = _parser().parse_args(arguments)
    settings = from_file(options.environment)
    if settings.get(PipelineSettings) is None:
        raise CommandError(core_layer.off("pipeline", options.environment))
    if options.command == "publish":
        from infra.publish.pipeline import publish  # Google's libraries, which the others don't wait for

        return publish(settings, upload=not options.dry_run)
    runs = Runs(settings, Client(settings.project))
    if options.command == "run":
        return _run(settings, runs, options)
    if options.command == "cost":
        return _cost(runs, as_json=options.json)
    if options.command == "status" and not options.run:
        return _list(runs, as_json=options.json)
    run = runs.named(options.run)
    if options.command == "status":
        return _show(runs, run, as_json=options.json)
    if options.command == "logs":
        return _logs(settings, runs, run)
    if options.command == "cancel":
        confirm(f"Cancel {run['run']}, at {run['stage']}?", options.yes)
        print(f"cancelled: {runs.cancel(run)}")
        return 0
    runs.retry(run)
    print(f"{run['run']}: started again; tpu pipeline status {settings.environment} {run['run']}")
    return 0


def _run(settings: Settings, runs: Runs, options: argparse.Namespace) -> int:
    desired = settings[PipelineSettings]
    if desired.code is None:
        up = up_command("pipeline", settings.environment)
        fix = f"tpu pipeline publish {settings.environment}, then {up}"
        raise CommandError(f"pipeline:code isn't set: a batch would find no code\n    fix: {fix}")
    folder, objects, size = runs.measure(options.folder)
    predicted = price.run_usd(settings, size / _GIB)
    most = price.most_usd(settings)
    limit = desired.max_run_cost_usd
    if limit is not None and (predicted is None or predicted > limit):
        raise CommandError(
            f"predicted: ${_dollars(predicted)}, pipeline:maxRunCostUsd allows ${limit:,}\n"
            "    fix: submit less, or raise it"
        )
    print(f"text     gs://{desired.raw_bucket_name}/{folder}: {objects} objects, {size / _GIB:,.2f} GiB")
    print(f"shards   in Spark: ${_dollars(predicted)} predicted, ${_dollars(most)} at most with training")
    print(f"training {desired.train}")
    confirm("Submit it?", options.yes)
    name = runs.submit(folder)
    print(f"submitted as {name}")
    if options.detach:
        print(f"  how far it is: tpu pipeline status {settings.environment} {name}")
        return 0
    return _follow(settings, runs, name)


def _logs(settings: Settings, runs: Runs, run: Run) -> int:
    """What its batch printed; 1 for nothing, with what that may need."""
    empty = True
    for line in runs.logs(run):
        print(line)
        empty = False
    if empty:
        spark = places.account_id(settings, places.SPARK)
        needs = access.lacking(settings, f"{spark}@ lacks logging.logEntries.create")
        print(f"nothing: its batch hasn't begun, or may not write; that needs {needs}")
    return int(empty)


def _follow(settings: Settings, runs: Runs, name: str) -> int:
    """Print each new stage until the run has ended; 0 if it ended well."""
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
    known = runs.all()
    others = [{**one, "why": runs.why(one)} for one in runs.unrecorded(known)]
    found = [*known, *others]
    if as_json:
        print(json.dumps(found))
        return 0
    if not found:
        print("no run yet")
    for run in found:
        print(f"{run['run']}  {run['began']}  {run['stage']:<10}  {run['outcome']:<12}  {run['raw']}")
        if run in others:
            print(f"    {run['why']}")
    return 0


def _show(runs: Runs, run: Run, *, as_json: bool) -> int:
    """A run's page: inputs, code, shards, training, price."""
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


def _cost(runs: Runs, *, as_json: bool) -> int:
    keys = ("predicted_usd", "spark_usd", "training_usd", "actual_usd", "most_usd")
    found = [{"run": run["run"], **{key: run.get(key) for key in keys}} for run in runs.all()]
    if as_json:
        print(json.dumps(found))
        return 0
    print(f"{'run':<20}" + "".join(f"{key.removesuffix('_usd'):>12}" for key in keys))
    for one in found:
        print(f"{one['run']:<20}" + "".join(f"{_dollars(one[key]):>12}" for key in keys))
    print("dollars; predicted for Spark alone; spark by the usage that Google gives, training by the slice's")
    print("price and its time; actual and most are of both")
    return 0


def _dollars(found: float | None) -> str:
    return "unknown" if found is None else f"{found:,.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tpu pipeline", description=main.__doc__, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = {
        "publish": "the job's code and packages into the scratch bucket, and its hash into the settings",
        "run": "submit a folder of the raw bucket, and follow its run",
        "status": "every run, or one of them",
        "cancel": "end what a run does now",
        "retry": "start a run again, from what is there",
        "logs": "what a run's batch printed",
        "cost": "what runs were predicted to cost, and did cost",
    }
    for name, text in about.items():
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument("environment", metavar="ENV", help="dev: the settings of Pulumi.dev.yaml")
        if name == "run":
            one.add_argument("folder", metavar="FOLDER", help="gs://RAW-BUCKET/FOLDER/")
            one.add_argument("--detach", action="store_true", help="return when it is submitted")
        if name in ("cancel", "retry", "logs", "status"):
            more = {"nargs": "?", "default": ""} if name == "status" else {}
            one.add_argument("run", metavar="RUN", help="r and the submission's generation", **more)  # type: ignore[arg-type]
        if name == "publish":
            one.add_argument("--dry-run", action="store_true", help="build it; send and write nothing")
        if name in ("run", "cancel"):
            one.add_argument("--yes", action="store_true", help="don't ask; required without a terminal")
        if name in ("status", "cost"):
            one.add_argument("--json", action="store_true", help="for programs")
    return parser
