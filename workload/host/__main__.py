"""The command line that the boot script and the job's unit call."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from workload.host import barrier, places
from workload.host.errors import HostError
from workload.host.metadata import Node
from workload.host.unit import job_unit

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status (1: it failed and said why on stderr)."""
    parser = argparse.ArgumentParser(
        prog="workload host",
        description="What a TPU host does between its boot and its job.",
        epilog="example: python -m workload.host barrier --phase boot",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    waiting = commands.add_parser(
        "barrier", help="wait until every worker of the slice, or of its job's slices, is here"
    )
    waiting.add_argument("--phase", choices=("boot", "job"), required=True, help="which meeting this is")
    waiting.add_argument(
        "--environment", type=Path, metavar="FILE", help="where the job finds its place among several slices"
    )
    commands.add_parser("unit", help="print the systemd unit for the run on standard input")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "unit":
            print(job_unit(sys.stdin.read().strip()), end="")
        else:
            _meet(chosen.phase, chosen.environment)
    except HostError as error:
        print(f"workload host {chosen.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _meet(phase: barrier.Phase, environment: Path | None) -> None:
    node, say = Node.from_metadata(), functools.partial(print, flush=True)
    if phase == "boot":
        barrier.wait(node, phase, say=say)
        return
    address = os.environ.get("COORDINATOR_ADDRESS", "")
    places.environment(node, address)  # whose own address is none says so before the others come
    told = barrier.wait(node, phase, word=address, program=places.installed(node.slices), say=say)
    if environment:
        environment.write_text(places.environment(node, told))


if __name__ == "__main__":
    sys.exit(main())
