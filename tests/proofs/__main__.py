"""make prove: that no kill leaves a trace, shown by killing.

    python -m tests.proofs saves            kill before and after each storage request of a save: 6 min
    python -m tests.proofs runs --runs 100  four workers, 1 to 5 kills a run, at random instants: 1.5 h

Each writes what it found to proofs/NAME.json and ends with 1 where a run left a trace.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.proofs.killing import Proof
from tests.proofs.runs import Slice, same

OUT = Path("proofs")


def saves(_: argparse.Namespace) -> dict[str, Any]:
    """R2: restore finds the step that was being saved or the one before it, whole, and goes on."""
    with tempfile.TemporaryDirectory(prefix="proof-") as folder:
        proof = Proof(Path(folder))
        try:
            requests = proof.requests()
            found: Counter[str] = Counter()
            for number in range(1, len(requests) + 1):
                for before in (True, False):
                    try:
                        request, step = proof.case(number, before)
                    except AssertionError as error:
                        if "nobody was killed" not in str(error):
                            raise
                        found["save was over"] += 1  # it sent fewer requests this time
                        continue
                    found[f"step {step}"] += 1
                    side = "before" if before else "after"
                    say(f"{number}/{len(requests)} {side}: step {step}  {request[:80]}")
        finally:
            proof.close()
    kills = found["step 1"] + found["step 2"]
    assert kills > len(requests), found
    return {"requests": len(requests), "kills": kills, "found": dict(found)}


def runs(options: argparse.Namespace) -> dict[str, Any]:
    """R1: every loss, parameter and moment as undisturbed."""
    with tempfile.TemporaryDirectory(prefix="proof-") as folder:
        workers = Slice(Path(folder))
        try:
            whole = workers.whole()
            different, kills, starts = [], 0, 0
            for number in range(options.runs):
                one = workers.disturbed(number, options.seed)
                kills, starts = kills + len(one.kills), starts + one.starts
                came_to = "the same" if same(one, whole) else "DIFFERENT"
                if came_to != "the same":
                    different.append(number)
                say(f"run {number + 1}/{options.runs}: {len(one.kills)} kills, {came_to}")
        finally:
            workers.close()
    assert kills >= options.runs, f"{kills} kills in {options.runs} runs"
    found: dict[str, Any] = {"runs": options.runs, "seed": options.seed, "kills": kills, "starts": starts}
    found["different"] = different
    if different:
        raise SystemExit(f"{found}")
    return found


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs", description=__doc__)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("saves").set_defaults(prove=saves)
    of_runs = commands.add_parser("runs")
    of_runs.add_argument("--runs", type=int, default=100)
    of_runs.add_argument("--seed", type=int, default=20261121)
    of_runs.set_defaults(prove=runs)
    options = parser.parse_args()
    begun = time.monotonic()
    found = options.prove(options)
    found["seconds"] = round(time.monotonic() - begun, 1)
    found["on"] = {
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "orbax-checkpoint", "tensorstore")},
    }
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{options.prove.__name__}.json"
    path.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{json.dumps(found)}\n{path}")


if __name__ == "__main__":
    main()
