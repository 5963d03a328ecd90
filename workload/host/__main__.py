"""The command line that the boot script and the job's unit call."""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from workload import place
from workload.errors import ConfigError
from workload.host import barrier, code, job_heartbeat, logs, places, unit
from workload.host.errors import HostError
from workload.host.metadata import Node, read

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
    waiting.add_argument(
        "--program", default="", metavar="TEXT", help="what is about to start; all hosts must say the same"
    )
    commands.add_parser("place", help="print the variables of this host's place in its slice")
    units = commands.add_parser("unit", help="print the systemd unit for the run on standard input")
    units.add_argument(
        "--of",
        choices=("job", "heartbeat", "logs"),
        default="job",
        help="which one (default: job); heartbeat: empty for a run that has its own; logs: reads no run",
    )
    own = commands.add_parser("code", help="put the user's own code where jobs are started")
    own.add_argument("--archive", type=Path, required=True, metavar="FILE", help="may be missing: no code")
    own.add_argument("--into", type=Path, required=True, metavar="DIR")
    own.add_argument("--record", type=Path, required=True, metavar="FILE", help="what was put there before")
    commands.add_parser("heartbeat", help="say how the job's service is, as long as this runs")
    sending = commands.add_parser("logs", help="send what boot and job print to Cloud Logging")
    sending.add_argument(
        "--cursor", type=Path, required=True, metavar="FILE", help="how far the journal is sent"
    )
    chosen = parser.parse_args(arguments)
    try:
        _COMMANDS[chosen.command](chosen)
    except HostError as error:
        print(f"workload host {chosen.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _barrier(chosen: argparse.Namespace) -> None:
    _meet(chosen.phase, chosen.environment, chosen.program)


def _place(_: argparse.Namespace) -> None:
    try:
        found = place.of_host(os.environ)
    except ConfigError as error:
        raise HostError(str(error)) from None
    print("\n".join(f"{name}={value}" for name, value in found.items()))


def _unit(chosen: argparse.Namespace) -> None:
    if chosen.of == "logs":
        print(unit.logs_unit(), end="")
    else:
        text = {"job": unit.job_unit, "heartbeat": unit.heartbeat_unit}[chosen.of](sys.stdin.read())
        print(text, end="")


def _code(chosen: argparse.Namespace) -> None:
    print(code.install(chosen.archive if chosen.archive.exists() else None, chosen.into, chosen.record))


def _heartbeat(chosen: argparse.Namespace) -> None:
    job_heartbeat.JobHeartbeat(os.environ, job_heartbeat.last_line).follow(job_heartbeat.look, _until_told())


def _logs(chosen: argparse.Namespace) -> None:
    stopping = _until_told()
    say = functools.partial(print, flush=True)
    shared, kind = logs.destination(), read("instance/attributes/accelerator-type")
    shipper = logs.Shipper(shared, stopping, say=say)
    logs.run(chosen.cursor, stopping, shipper, sign=lambda: logs.alive(shared, kind))


def _until_told() -> threading.Event:
    """Set once systemd, or Ctrl-C, asks this program to end."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _meet(phase: barrier.Phase, environment: Path | None, program: str) -> None:
    node, say = Node.from_metadata(), functools.partial(print, flush=True)
    if phase == "boot":
        barrier.wait(node, phase, say=say)
        return
    address = os.environ.get("COORDINATOR_ADDRESS", "")
    places.environment(node, address)  # whose own address is none says so before the others come
    program = f"{places.installed(node.slices)} {program}".strip()
    coordinator = barrier.wait(node, phase, word=address, program=program, say=say)
    if environment:
        environment.write_text(places.environment(node, coordinator))


_COMMANDS = {
    "barrier": _barrier,
    "place": _place,
    "unit": _unit,
    "code": _code,
    "heartbeat": _heartbeat,
    "logs": _logs,
}


if __name__ == "__main__":
    sys.exit(main())
