"""Run a proof of `make prove`: kills that leave no trace, wrong settings that don't pass.

\b
    python -m tests.proofs saves            kill before and after each storage request of a save: 6 min
    python -m tests.proofs runs --runs 100  four workers, 1 to 5 kills a run, at random instants: 1 h
    python -m tests.proofs extractions      kill before and after each request, and at 100 instants: 19 min
    python -m tests.proofs preprocess       kill tasks or all of a run at 100 random instants: 30 min
    python -m tests.proofs matrix           every fault of every request of a fleet's: 4 min
    python -m tests.proofs kills            commands that make or end something, at each change: 10 min
    python -m tests.proofs settings         1,000 mutants of good settings, refused by name or gone up: 10 min
    python -m tests.proofs roles            take each role of each account away: a command names it: 6 min
    python -m tests.proofs grants           take each grant of the pipeline away: a sentence names it: 13 min
    python -m tests.proofs mutants          12 mutants of each area, by cosmic-ray; apart, for hours
    python -m tests.proofs changes          change every setting and change it back: 1 h
    python -m tests.proofs updates          kill `up` and `destroy` of all layers at each request: 90 min
    python -m tests.proofs slurm-scale      200 slices of Slurm without hosts: memory, times, requests: 6 min
    python -m tests.proofs slurm-figures    Slurm's times, five of each, in booted machines: 25 min
    python -m tests.proofs load             the tests (or some PATHs), 10 times beside eight busy loops; apart
    python -m pytest -m prove               tests that `make test` leaves out, about 1 h: Pulumi's real CLI
                                            (GKE, monitoring, policy, kills, accounts, a new layer), checkov,
                                            Kubernetes, Spark, torch, the proofs' own, whole matrices
    tpu rehearsal run NAME                  each scenario but the default one: 1 h

Each writes its result to proofs/NAME.json and ends with 1 if a run left a trace. `runs` writes after every
run, and resumes from there when it is called again.
"""

import json
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import described
from tests.fleet.lab import Lab
from tests.fleet.matrix import meet, meetings
from tests.proofs import changes as changed
from tests.proofs import grants as granted
from tests.proofs import kills as killed
from tests.proofs import load as loaded
from tests.proofs import mutants as mutation
from tests.proofs import opened
from tests.proofs import roles as held
from tests.proofs import settings as mutated
from tests.proofs import slurm_figures as figures
from tests.proofs import slurm_scale as scale
from tests.proofs.extracting import Extractions
from tests.proofs.killing import Proof
from tests.proofs.preprocessing import Preprocessing
from tests.proofs.runs import Slice, same
from tests.proofs.updates import LAYERS, Updates, rows
from tools.docs import MATRIX

OUT, UPDATES = Path("proofs"), Path("benchmarks/results/updates.json")
LONGEST_EXTRACTION_S = 2.0  # from its begin to an instant: about as long as one takes on an idle core
_SEED = click.option("--seed", type=int, default=20261121, show_default=True)
_RUNS = click.option("--runs", "count", type=int, default=100, show_default=True)
_PROOFS = click.Group("python -m tests.proofs", help=__doc__, context_settings={"max_content_width": 110})


def proof(*options: Callable[..., Any]) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., None]]:
    """Return a decorator that makes a command of a function, whose result is written and printed."""

    def decorate(function: Callable[..., dict[str, Any]]) -> Callable[..., None]:
        @wraps(function)
        def run(**values: Any) -> None:
            begun = time.monotonic()
            result = function(**values)
            result.setdefault("seconds", round(time.monotonic() - begun, 1))
            path = _write(function.__name__.replace("_", "-"), result)
            print(f"{json.dumps(result)}\n{path}")

        command: Callable[..., None] = run
        for option in reversed(options):
            command = option(command)
        return _PROOFS.command(function.__name__.replace("_", "-"))(command)

    return decorate


@proof()
def saves() -> dict[str, Any]:
    """R2: restore finds the step that was being saved or the one before it, whole, and continues."""
    with opened(Proof) as killing:
        requests = killing.requests()
        counter: Counter[str] = Counter()
        for number in range(1, len(requests) + 1):
            for before in (True, False):
                try:
                    request, step = killing.case(number, before)
                except AssertionError as error:
                    if "nobody was killed" not in str(error):
                        raise
                    counter["save was over"] += 1  # it sent fewer requests this time
                    continue
                counter[f"step {step}"] += 1
                side = "before" if before else "after"
                report(f"{number}/{len(requests)} {side}: step {step}  {request[:80]}")
    kills = counter["step 1"] + counter["step 2"]
    assert kills > len(requests), counter
    return {"requests": len(requests), "kills": kills, "found": dict(counter), "on": _on()}


@proof(_RUNS, _SEED)
def runs(count: int, seed: int) -> dict[str, Any]:
    """R1: every loss, parameter and moment as undisturbed. Continues where an earlier call was ended."""
    result, begun = _so_far(seed), time.monotonic()
    earlier_s = result["seconds"]
    if result["runs"]:
        report(f"{result['runs']} runs of seed {seed} are done already")
    with opened(Slice) as workers:
        whole = workers.whole()
        for number in range(result["runs"], count):
            disturbed = workers.disturbed(number, seed)
            came_to = "the same" if same(disturbed, whole) else "DIFFERENT"
            if came_to != "the same":
                result["different"].append(number)
            result["runs"] += 1
            result["kills"] += len(disturbed.kills)
            result["starts"] += disturbed.starts
            result["seconds"] = round(earlier_s + time.monotonic() - begun, 1)
            _write("runs", result)
            report(f"run {number + 1}/{count}: {len(disturbed.kills)} kills, {came_to}")
    assert result["kills"] >= result["runs"], f"{result['kills']} kills in {result['runs']} runs"
    if result["different"]:
        raise SystemExit(f"{result}")
    return result


@proof(_RUNS, _SEED)
def extractions(count: int, seed: int) -> dict[str, Any]:
    """E5: every shard is made once, with the bytes of an extraction that nobody disturbed."""
    draw, killed = random.Random(seed), 0
    with opened(Proof) as killing:
        made = Extractions(killing)
        for number in range(1, len(made.requests) + 1):
            for before in (True, False):
                request = made.at_request(number, before)
                report(f"{number}/{len(made.requests)} {'before' if before else 'after'}: {request[:80]}")
        for number in range(count):
            killed += made.at_instant(number, draw.uniform(0.0, LONGEST_EXTRACTION_S))
            report(f"instant {number + 1}/{count}: {killed} killed")
    assert killed > count / 2, killed
    counts = {"shards": made.shards, "at_requests": 2 * len(made.requests), "at_instants": killed}
    return {**counts, "on": _on()}


@proof(
    click.option("--kills", "count", type=int, default=100, show_default=True),
    click.option("--seed", type=int, default=20261124, show_default=True),
)
def preprocess(count: int, seed: int) -> dict[str, Any]:
    """Every object is made once, with the bytes of an undisturbed run."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="proof-") as folder:
        runs_ = Preprocessing(Path(folder))
        number = 0
        while (kills := runs_.counts.machines + runs_.counts.tasks) < count:
            runs_.disturbed(number, draw)
            number += 1
            report(f"run {number}: {runs_.counts}")
    on = described(("tokenizers", "pyarrow"))
    return {"runs": number, "kills": kills, **asdict(runs_.counts), "on": on}


@proof()
def matrix() -> dict[str, Any]:
    """Every cell; kept beside the measurements: docs/internals/fleet.md has their tables."""
    begun, cells = time.monotonic(), []
    with opened(Lab) as lab, lab.entered():
        for meeting in meetings():
            cells.append(asdict(meet(lab, meeting)))
            report(" | ".join(map(str, cells[-1].values())))
    took_s = round(time.monotonic() - begun, 1)
    MATRIX.write_text(json.dumps({"cells": cells, "took_s": took_s, "on": described(())}, indent=1) + "\n")
    return {"cells": len(cells), "took_s": took_s}


@proof(
    click.option("--layer", "names", multiple=True, type=click.Choice(LAYERS), help="Only these again."),
    click.option("--every", type=int, default=1, help="Kill at every N-th request; 1: at all."),
)
def updates(names: Sequence[str], every: int) -> dict[str, Any]:
    """The next `up` or `destroy` ends clean, and the state is Google's; docs/internals/stacks.md."""
    stored = json.loads(UPDATES.read_text()) if UPDATES.exists() else {"rows": []}
    kills = 0
    for layer in names or LAYERS:
        begun, cases = time.monotonic(), []
        others = [row for row in stored["rows"] if row["layer"] != layer]
        with opened(Updates, layer) as of_layer:
            for case in of_layer.cases(every):
                cases.append(case)
                at = f"{case.at} {case.request}"
                report(f"{layer} {case.verb} | {at} | {case.then}: {case.took_s} s")
                took_s = round(time.monotonic() - begun, 1)
                fresh = [{**row, "took_s": took_s} for row in rows(cases, of_layer.requests)]
                stored["rows"] = others + fresh  # what was shown stays shown where this is ended
                stored["took_s"] = sum({row["layer"]: row["took_s"] for row in stored["rows"]}.values())
                stored["on"] = described(("pulumi", "pulumi-gcp"))
                UPDATES.write_text(json.dumps(stored, indent=1) + "\n")
        kills += sum(bool(case.request) for case in cases)
    return {"kills": kills, "rows": stored["rows"]}


@proof(
    click.option("--layer", "names", multiple=True, type=click.Choice(changed.LAYERS), help="Only these."),
    click.option("--setting", "only", multiple=True, metavar="PATH", help="Only these, as gke:podsRange."),
)
def changes(names: Sequence[str], only: Sequence[str]) -> dict[str, Any]:
    """A plan's word is what happens, nothing else changes, and the next preview is empty."""
    result = changed.measure(names, only, report)
    if any(layer["wrong"] or layer["left"] for layer in result.values()):
        _write("changes", result)
        raise SystemExit(json.dumps(result, indent=1))
    return result


@proof(
    click.option("--mutants", "count", type=int, default=1000, show_default=True),
    click.option("--seed", type=int, default=20261122, show_default=True),
)
def settings(count: int, seed: int) -> dict[str, Any]:
    """Each mutant is refused with all its problems, or goes up."""
    return mutated.measure(count, seed, report)


@proof(
    click.option("--command", "names", multiple=True, type=click.Choice([*killed.CASES]), help="Only these."),
    click.option("--seed", type=int, default=20261126, show_default=True),
)
def kills(names: Sequence[str], seed: int) -> dict[str, Any]:
    """The command again comes to what an undisturbed one comes to; nothing is doubled or disowned."""
    return killed.measure(names, seed, report)


@proof()
def roles() -> dict[str, Any]:
    """Without a role a command fails, and names it."""
    return held.measure(report)


@proof(
    click.option(
        "--part", "parts", multiple=True, type=click.Choice([*granted.PARTS]), help="Only these again."
    )
)
def grants(parts: Sequence[str]) -> dict[str, Any]:
    """Without a grant a run, an event, an update or a command fails, and names it."""
    return granted.measure(report, parts)


@proof()
def slurm_scale() -> dict[str, Any]:
    """Slurm with 200 slices of four hosts; docs/internals/log.md."""
    return scale.measure(report)


@proof()
def slurm_figures() -> dict[str, Any]:
    """Times of a Slurm cluster; docs/internals/log.md."""
    result = figures.measure(OUT / "slurm-figures", report)
    if not result["passed"]:
        _write("slurm-figures", result)
        raise SystemExit(json.dumps(result, indent=1))
    return result


@proof(
    click.argument("paths", nargs=-1, metavar="[PATH]..."),
    click.option("--times", type=int, default=10, show_default=True),
    click.option("--loops", type=int, default=8, show_default=True, help="Busy loops beside the tests."),
)
def load(paths: Sequence[str], times: int, loops: int) -> dict[str, Any]:
    """No test depends on an idle machine."""
    result = loaded.measure(times, loops, paths, report)
    if result["not_passed"]:
        _write("load", result)
        raise SystemExit(f"{result}")
    return result


@proof(
    click.option("--each", "count", type=int, default=12, show_default=True, help="Mutants of each area."),
    click.option("--area", "areas", multiple=True, type=click.Choice([*mutation.AREAS]), help="Only these."),
    click.option("--seed", type=int, default=20261126, show_default=True),
)
def mutants(count: int, areas: Sequence[str], seed: int) -> dict[str, Any]:
    """Each is noticed by a test, or declared with the reason why none can."""
    result = mutation.measure(count, seed, areas, report)
    if result["survived"]:
        _write("mutants", result)
        raise SystemExit(json.dumps(result, indent=2))
    return result


def _so_far(seed: int) -> dict[str, Any]:
    """Return the record of a seed and these packages."""
    try:
        known: dict[str, Any] = json.loads((OUT / "runs.json").read_text())
    except FileNotFoundError:
        known = {}
    if known.get("seed") == seed and known.get("on") == _on():
        return known
    none: dict[str, Any] = {"runs": 0, "kills": 0, "starts": 0, "different": [], "seconds": 0.0}
    return {"seed": seed, **none, "on": _on()}


def _on() -> dict[str, str]:
    packages = ("jax", "orbax-checkpoint", "tensorstore")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def _write(name: str, result: dict[str, Any]) -> Path:
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    part = path.with_suffix(".part")  # ended in the middle, a call leaves what was on record
    part.write_text(json.dumps(result, indent=2) + "\n")
    return part.replace(path)


def report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    _PROOFS()
