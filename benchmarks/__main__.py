"""python -m benchmarks: a command measures, writes its result, and draws the page."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.layers.queue.kueue import STRATEGIES

RESULTS = Path(__file__).parent / "results"


def memory(_: argparse.Namespace) -> dict[str, Any]:
    """T2: an 8B step's memory and collectives on v6e-256, beside MaxText's; 20 min."""
    from benchmarks.memory import measure

    return measure()


def small(options: argparse.Namespace) -> dict[str, Any]:
    """tokens a second of a 42 M model on this CPU, beside MaxText, Levanter, transformers; 10 min."""
    from benchmarks.small import measure

    return measure(options.rounds)


def saves(options: argparse.Namespace) -> dict[str, Any]:
    """T4: what a checkpoint costs: the share of time that training stands still, and bytes; 5 min."""
    from benchmarks.storage import saves as measure

    return measure(options.rounds)


def loader(options: argparse.Namespace) -> dict[str, Any]:
    """T5: tokens a second that the loader delivers, against what chips could take; 1 min."""
    from benchmarks.loader import measure

    return measure(options.rounds)


def restarts(options: argparse.Namespace) -> dict[str, Any]:
    """T7: from a start to its first step, with the compiled step in the bucket and without; 3 min."""
    from benchmarks.storage import restarts as measure

    return measure(options.rounds)


def extraction(options: argparse.Namespace) -> dict[str, Any]:
    """E1 to E4, E7, E8: what capture, overlap, files, padding and random access cost; 15 min."""
    from benchmarks.extraction import measure

    return measure(options.rounds)


def capture(options: argparse.Namespace) -> dict[str, Any]:
    """E8: tokens a second of extraction, beside transformers' hooks, TransformerLens, nnsight; 20 min."""
    from benchmarks.capture import measure

    return measure(options.rounds)


def preprocess(options: argparse.Namespace) -> dict[str, Any]:
    """tokens a second and core from text to token files, beside datatrove and Dolma; 10 min."""
    from benchmarks.preprocess import measure

    return measure(options.rounds)


def queue(options: argparse.Namespace) -> dict[str, Any]:
    """1,000 jobs over 64 slices by the real Kueue and JobSet: order, quota, latency, memory; 15 min, root."""
    from benchmarks.queue import measure

    return measure(options.jobs, options.pools, options.strategy)


def page(_: argparse.Namespace) -> None:
    """docs/benchmarks.md and its pictures, from the results."""
    from benchmarks.page import write

    write()


COMMANDS: dict[str, Callable[[argparse.Namespace], dict[str, Any] | None]] = {
    "memory": memory,
    "small": small,
    "saves": saves,
    "loader": loader,
    "restarts": restarts,
    "extraction": extraction,
    "capture": capture,
    "preprocess": preprocess,
    "queue": queue,
    "page": page,
}


def main() -> None:
    """Run one command; a measurement's result becomes results/COMMAND.json, and the page shows it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name, run in COMMANDS.items():
        command = commands.add_parser(name, help=run.__doc__)
        if name not in ("memory", "page", "queue"):
            command.add_argument("--rounds", type=int, default=3, help="how often each is measured (3)")
        if name == "queue":
            command.add_argument("--jobs", type=int, default=1000, help="how many (1,000)")
            command.add_argument("--pools", type=int, default=64, help="slices of v6e-16 (64)")
            default = STRATEGIES[0]
            command.add_argument(
                "--strategy", choices=STRATEGIES, default=default, help=f"of the queue ({default})"
            )
    options = parser.parse_args()
    begun = time.monotonic()
    result = COMMANDS[options.command](options)
    if result is not None:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{_name(options)}.json"
        path.write_text(json.dumps(result | {"took_s": round(time.monotonic() - begun)}, indent=2) + "\n")
        page(options)
        print(path, file=sys.stderr)


def _name(options: argparse.Namespace) -> str:
    """Of the result: the command, with the strategy where it isn't the layer's default."""
    strategy = getattr(options, "strategy", STRATEGIES[0])
    return options.command if strategy == STRATEGIES[0] else f"{options.command}-{strategy}"


if __name__ == "__main__":
    main()
