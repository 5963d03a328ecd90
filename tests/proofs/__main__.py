"""make prove: that no kill leaves a trace and no wrong setting passes, shown by trying.

    python -m tests.proofs saves            kill before and after each storage request of a save: 6 min
    python -m tests.proofs runs --runs 100  four workers, 1 to 5 kills a run, at random instants: 1 h
    python -m tests.proofs extractions      kill before and after each request, and at 100 instants: 19 min
    python -m tests.proofs preprocess       kill tasks or all of a run at 100 random instants: 30 min
    python -m tests.proofs matrix           every fault of every request of a fleet's: 4 min
    python -m tests.proofs settings         1,000 mutants of good settings, refused by name or gone up: 10 min
    python -m tests.proofs roles            take each role of each account away: a command names it: 6 min
    python -m tests.proofs grants           take each grant of the pipeline away: a sentence names it: 13 min
    python -m tests.proofs mutants          12 mutants of each area, by cosmic-ray; apart, for hours
    python -m tests.proofs updates          kill `up` and `destroy` of all layers at each request: 90 min
    python -m tests.proofs load             the tests (or some PATHs), 10 times beside eight busy loops; apart
    python -m pytest -m prove               tests that `make test` leaves out, about 1 h: Pulumi's real CLI
                                            (GKE, monitoring, policy, kills, accounts, a new layer), checkov,
                                            Kubernetes, Spark, torch, the proofs' own, whole matrices
    tpu rehearsal run NAME            each scenario but the default one: 1 h

Each writes what it found to proofs/NAME.json and ends with 1 where a run left a trace. `runs` writes after
every run, and resumes from there when it is called again.
"""

import argparse
import json
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.machine import described
from tests.fleet.lab import Lab
from tests.fleet.matrix import asks, meet
from tests.proofs import grants as granted
from tests.proofs import load as loaded
from tests.proofs import mutants as mutation
from tests.proofs import roles as held
from tests.proofs import settings as mutated
from tests.proofs.extracting import Extractions
from tests.proofs.killing import Proof
from tests.proofs.preprocessing import Preprocessing
from tests.proofs.runs import Slice, same
from tests.proofs.updates import LAYERS, Updates, rows
from tools.docs import MATRIX

OUT, UPDATES = Path("proofs"), Path("benchmarks/results/updates.json")
LONGEST_EXTRACTION_S = 2.0  # from its begin to an instant: about as long as one takes on an idle core


def saves(_: argparse.Namespace) -> dict[str, Any]:
    """R2: restore finds the step that was being saved or the one before it, whole, and continues."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="proof-") as folder:
        proof = Proof(Path(folder))
        try:
            requests = proof.requests()
            counter: Counter[str] = Counter()
            for number in range(1, len(requests) + 1):
                for before in (True, False):
                    try:
                        request, step = proof.case(number, before)
                    except AssertionError as error:
                        if "nobody was killed" not in str(error):
                            raise
                        counter["save was over"] += 1  # it sent fewer requests this time
                        continue
                    counter[f"step {step}"] += 1
                    side = "before" if before else "after"
                    say(f"{number}/{len(requests)} {side}: step {step}  {request[:80]}")
        finally:
            proof.close()
    kills = counter["step 1"] + counter["step 2"]
    assert kills > len(requests), counter
    took = round(time.monotonic() - begun, 1)
    return {"requests": len(requests), "kills": kills, "found": dict(counter), "seconds": took, "on": _on()}


def runs(options: argparse.Namespace) -> dict[str, Any]:
    """R1: every loss, parameter and moment as undisturbed. Continues where an earlier call was ended."""
    result, begun = _so_far(options.seed), time.monotonic()
    earlier_s = result["seconds"]
    if result["runs"]:
        say(f"{result['runs']} runs of seed {options.seed} are done already")
    with tempfile.TemporaryDirectory(prefix="proof-") as folder:
        workers = Slice(Path(folder))
        try:
            whole = workers.whole()
            for number in range(result["runs"], options.runs):
                disturbed = workers.disturbed(number, options.seed)
                came_to = "the same" if same(disturbed, whole) else "DIFFERENT"
                if came_to != "the same":
                    result["different"].append(number)
                result["runs"] += 1
                result["kills"] += len(disturbed.kills)
                result["starts"] += disturbed.starts
                result["seconds"] = round(earlier_s + time.monotonic() - begun, 1)
                _write("runs", result)
                say(f"run {number + 1}/{options.runs}: {len(disturbed.kills)} kills, {came_to}")
        finally:
            workers.close()
    assert result["kills"] >= result["runs"], f"{result['kills']} kills in {result['runs']} runs"
    if result["different"]:
        raise SystemExit(f"{result}")
    return result


def extractions(options: argparse.Namespace) -> dict[str, Any]:
    """E5: every shard is made once, with the bytes of an extraction that nobody disturbed."""
    begun, killed = time.monotonic(), 0
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="proof-") as folder:
        proof = Proof(Path(folder))
        try:
            made = Extractions(proof)
            for number in range(1, len(made.requests) + 1):
                for before in (True, False):
                    request = made.at_request(number, before)
                    say(f"{number}/{len(made.requests)} {'before' if before else 'after'}: {request[:80]}")
            for number in range(options.runs):
                killed += made.at_instant(number, draw.uniform(0.0, LONGEST_EXTRACTION_S))
                say(f"instant {number + 1}/{options.runs}: {killed} killed")
        finally:
            proof.close()
    assert killed > options.runs / 2, killed
    at_requests = 2 * len(made.requests)
    took = round(time.monotonic() - begun, 1)
    return {
        "shards": made.shards,
        "at_requests": at_requests,
        "at_instants": killed,
        "seconds": took,
        "on": _on(),
    }


def preprocess(options: argparse.Namespace) -> dict[str, Any]:
    """Every object is made once, with the bytes of an undisturbed run."""
    begun, draw = time.monotonic(), random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="proof-") as folder:
        proof = Preprocessing(Path(folder))
        number = 0
        while (kills := proof.counts.machines + proof.counts.tasks) < options.kills:
            proof.disturbed(number, draw)
            number += 1
            say(f"run {number}: {proof.counts}")
    took = round(time.monotonic() - begun, 1)
    on = described(("tokenizers", "pyarrow"))
    return {"runs": number, "kills": kills, **asdict(proof.counts), "seconds": took, "on": on}


def matrix(_: argparse.Namespace) -> dict[str, Any]:
    """Every cell; kept beside the measurements: docs/fleet.md has their tables."""
    begun, cells = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="proof-") as folder:
        lab = Lab(Path(folder))
        try:
            with lab.entered():
                for ask in asks():
                    cells.append(asdict(meet(lab, ask)))
                    say(" | ".join(map(str, cells[-1].values())))
        finally:
            lab.close()
    took_s = round(time.monotonic() - begun, 1)
    MATRIX.write_text(json.dumps({"cells": cells, "took_s": took_s, "on": described(())}, indent=1) + "\n")
    return {"cells": len(cells), "took_s": took_s}


def updates(options: argparse.Namespace) -> dict[str, Any]:
    """The next `up` or `destroy` ends clean, and Google has what the state holds; docs/settings.md."""
    stored = json.loads(UPDATES.read_text()) if UPDATES.exists() else {"rows": []}
    kills = 0
    for layer in options.layer or LAYERS:
        begun, cases = time.monotonic(), []
        others = [row for row in stored["rows"] if row["layer"] != layer]
        with tempfile.TemporaryDirectory(prefix="proof-") as folder:
            of_layer = Updates(Path(folder), layer)
            try:
                for case in of_layer.cases(options.every):
                    cases.append(case)
                    at = f"{case.at} {case.request}"
                    say(f"{layer} {case.verb} | {at} | {case.then}: {case.took_s} s")
                    took_s = round(time.monotonic() - begun, 1)
                    fresh = [{**row, "took_s": took_s} for row in rows(cases, of_layer.requests)]
                    stored["rows"] = others + fresh  # what was shown stays shown where this is ended
                    stored["took_s"] = sum({row["layer"]: row["took_s"] for row in stored["rows"]}.values())
                    stored["on"] = described(("pulumi", "pulumi-gcp"))
                    UPDATES.write_text(json.dumps(stored, indent=1) + "\n")
            finally:
                of_layer.close()
        kills += sum(bool(case.request) for case in cases)
    return {"kills": kills, "rows": stored["rows"]}


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Each mutant is refused with all its problems, or goes up."""
    return mutated.found(options.mutants, options.seed, say)


def roles(_: argparse.Namespace) -> dict[str, Any]:
    """Without it a command fails, and names the role to ask for."""
    return held.found(say)


def grants(options: argparse.Namespace) -> dict[str, Any]:
    """Without it a run, an event, an update or a command fails, and names it; docs/pipeline-grants.md."""
    return granted.found(say, options.part or ())


def load(options: argparse.Namespace) -> dict[str, Any]:
    """No test depends on an idle machine."""
    result = loaded.found(options.times, options.loops, options.paths, say)
    if result["not_passed"]:
        _write("load", result)
        raise SystemExit(f"{result}")
    return result


def mutants(options: argparse.Namespace) -> dict[str, Any]:
    """Each is noticed by a test, or declared with the reason why none can."""
    result = mutation.measure(options.each, options.seed, options.area or (), say)
    if result["survived"]:
        _write("mutants", result)
        raise SystemExit(json.dumps(result, indent=2))
    return result


def _so_far(seed: int) -> dict[str, Any]:
    """What is on record for a seed and these packages."""
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


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proofs", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(required=True)
    commands.add_parser("saves").set_defaults(prove=saves)
    of_runs = commands.add_parser("runs")
    of_runs.add_argument("--runs", type=int, default=100)
    of_runs.add_argument("--seed", type=int, default=20261121)
    of_runs.set_defaults(prove=runs)
    of_extractions = commands.add_parser("extractions")
    of_extractions.add_argument("--runs", type=int, default=100)
    of_extractions.add_argument("--seed", type=int, default=20261121)
    of_extractions.set_defaults(prove=extractions)
    of_preprocess = commands.add_parser("preprocess")
    of_preprocess.add_argument("--kills", type=int, default=100)
    of_preprocess.add_argument("--seed", type=int, default=20261124)
    of_preprocess.set_defaults(prove=preprocess)
    commands.add_parser("matrix").set_defaults(prove=matrix)
    of_settings = commands.add_parser("settings")
    of_settings.add_argument("--mutants", type=int, default=1000)
    of_settings.add_argument("--seed", type=int, default=20261122)
    of_settings.set_defaults(prove=settings)
    commands.add_parser("roles").set_defaults(prove=roles)
    of_grants = commands.add_parser("grants")
    of_grants.add_argument("--part", action="append", choices=granted.PARTS, help="only these again")
    of_grants.set_defaults(prove=grants)
    of_mutants = commands.add_parser("mutants")
    of_mutants.add_argument("--each", type=int, default=12, help="mutants of each area (12)")
    of_mutants.add_argument("--area", action="append", choices=mutation.AREAS, help="only these")
    of_mutants.add_argument("--seed", type=int, default=20261126)
    of_mutants.set_defaults(prove=mutants)
    of_updates = commands.add_parser("updates")
    of_updates.add_argument("--layer", action="append", choices=LAYERS, help="only these again")
    of_updates.add_argument("--every", type=int, default=1, help="every so manieth request; 1: all")
    of_updates.set_defaults(prove=updates)
    of_load = commands.add_parser("load")
    of_load.add_argument("paths", nargs="*", metavar="PATH", help="of tests; without any, all")
    of_load.add_argument("--times", type=int, default=10)
    of_load.add_argument("--loops", type=int, default=8, help="beside them, each wanting a core")
    of_load.set_defaults(prove=load)
    options = parser.parse_args()
    prove = options.prove(options)
    path = _write(options.prove.__name__, prove)
    print(f"{json.dumps(prove)}\n{path}")


if __name__ == "__main__":
    main()
