"""python -m benchmarks: a command measures, writes its result, and draws the page."""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.maxtext import ROWS
from infra.layers.queue.kueue import STRATEGIES

RESULTS = Path(__file__).parent / "results"


# The function of each command, and its help.
COMMANDS = {
    "maxtext": (
        "benchmarks.maxtext:measure",
        "memory, exchanges, waits and FLOPs of a step, beside MaxText's recipes; 2 to 5 min a row.",
    ),
    "saves": (
        "benchmarks.storage:saves",
        "T4: cost of a checkpoint: the share of time that training stands still, and bytes; 5 min.",
    ),
    "extraction": (
        "benchmarks.extraction:measure",
        "E1 to E4, E7, E8: cost of capture, overlap, files, padding and random access; 15 min.",
    ),
    "writer": (
        "benchmarks.writer:measure",
        "E9: processor time a GB of shards written to memory, by part, beside safetensors; 10 s.",
    ),
    "preprocess": (
        "benchmarks.preprocess:measure",
        "tokens a second and core from text to token files, beside datatrove and Dolma; 10 min.",
    ),
    "queue": (
        "benchmarks.queue:measure",
        "1,000 jobs, 64 slices, by the real Kueue and JobSet: order, quota, latency, memory; 15 min, root.",
    ),
    "page": ("benchmarks.page:write", "docs/internals/benchmarks.md, from the results."),
}


def main() -> None:
    """Run one command; a measurement's result becomes results/COMMAND.json, and the page shows it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name == "maxtext":
            command.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, help="of the table (all)")
        if name not in ("maxtext", "page", "queue"):
            command.add_argument("--rounds", type=int, default=3, help="number of measurements of each (3)")
        if name == "queue":
            command.add_argument("--jobs", type=int, default=1000, help="number of jobs (1,000)")
            command.add_argument("--pools", type=int, default=64, help="slices of v6e-16 (64)")
            default = STRATEGIES[0]
            command.add_argument(
                "--strategy", choices=STRATEGIES, default=default, help=f"of the queue ({default})"
            )
    options = parser.parse_args()
    begun = time.monotonic()
    result = _run(options.command, **{key: value for key, value in vars(options).items() if key != "command"})
    if result is not None:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{_name(options)}.json"
        path.write_text(json.dumps(result | {"took_s": round(time.monotonic() - begun)}, indent=2) + "\n")
        _run("page")
        print(path, file=sys.stderr)


def _run(command: str, **options: Any) -> dict[str, Any] | None:
    module, _, function = COMMANDS[command][0].partition(":")
    result: dict[str, Any] | None = getattr(importlib.import_module(module), function)(**options)
    return result


def _name(options: argparse.Namespace) -> str:
    """Of the result: the command, with the strategy where it isn't the layer's default."""
    strategy = getattr(options, "strategy", STRATEGIES[0])
    return options.command if strategy == STRATEGIES[0] else f"{options.command}-{strategy}"


if __name__ == "__main__":
    main()
