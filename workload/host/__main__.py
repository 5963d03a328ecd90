"""Command line for the boot script and the host's systemd units."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from workload import place
from workload.arguments import Parser
from workload.errors import ConfigError
from workload.host import barrier, code, container, job_heartbeat, journal, logs, places, slurmd, unit
from workload.host.errors import HostError, PassingError, RunError
from workload.host.metadata import HostDescription, read


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status (1: it failed, with the reason on stderr)."""
    parser = Parser(
        prog="workload host",
        description="Prepare and observe the job of a TPU host.",
        epilog="example: python -m workload.host barrier --phase boot",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    waiting = commands.add_parser("barrier", help="wait for all workers of the slice, or of its job's slices")
    waiting.add_argument(
        "--phase",
        choices=("boot", "job"),
        required=True,
        help="boot: of this slice; job: of all its slices",
    )
    waiting.add_argument(
        "--environment", type=Path, metavar="FILE", help="write the job's place among several slices there"
    )
    commands.add_parser("place", help="print the variables of this host's place in its slice")
    units = commands.add_parser("unit", help="print the systemd unit for the run on standard input")
    units.add_argument(
        "--of",
        choices=("job", "heartbeat", "logs"),
        default="job",
        help="unit to print (default: job); heartbeat: empty if the run writes its own; logs: reads no run",
    )
    units.add_argument(
        "--variables", default="", metavar="LINES", help="NAME=VALUE a line: of the job's environment"
    )
    units.add_argument("--image", default="", help="image of the container that the job starts in")
    pulling = commands.add_parser("image", help="pull the image of the job on standard input")
    pulling.add_argument("image", metavar="IMAGE@sha256:…")
    starting = commands.add_parser("container", help="start a program in a container, with this environment")
    starting.add_argument("image", metavar="IMAGE@sha256:…")
    starting.add_argument("words", nargs=argparse.REMAINDER, metavar="WORD")
    own = commands.add_parser("code", help="install the user's own code in the folder where jobs start")
    own.add_argument(
        "--archive",
        type=Path,
        required=True,
        metavar="FILE",
        help="tar.gz; if missing, no code",
    )
    own.add_argument("--into", type=Path, required=True, metavar="DIR")
    own.add_argument(
        "--record", type=Path, required=True, metavar="FILE", help="digests of the last installation"
    )
    commands.add_parser("heartbeat", help="write heartbeats of the job's service until stopped")
    sending = commands.add_parser("logs", help="send the output of boot and job to Cloud Logging")
    sending.add_argument(
        "--cursor",
        type=Path,
        required=True,
        metavar="FILE",
        help="position of the last line sent",
    )
    joining = commands.add_parser(slurmd.COMMAND, help="join a Slurm cluster, as root, and stay in it")
    joining.add_argument("words", nargs=argparse.REMAINDER, metavar="WORD")
    chosen = parser.parse_args(arguments)
    if chosen.command in _SERVICES:
        journal.configure()
    try:
        _COMMANDS[chosen.command](chosen)
    except HostError as error:
        print(f"workload host {chosen.command}: {error}", file=sys.stderr)
        if isinstance(error, PassingError):
            return _TRY_AGAIN if chosen.command == "image" else 1
        hopeless = isinstance(error, RunError) and chosen.command == slurmd.COMMAND
        return 2 if hopeless or chosen.command == "container" else 1
    return 0


def _barrier(chosen: argparse.Namespace) -> None:
    _meet(chosen.phase, chosen.environment)


def _place(_: argparse.Namespace) -> None:
    try:
        variables = place.of_host(os.environ)
    except ConfigError as error:
        raise HostError(str(error)) from None
    print("\n".join(f"{name}={value}" for name, value in variables.items()))


def _unit(chosen: argparse.Namespace) -> None:
    if chosen.of == "logs":
        print(unit.logs_unit(), end="")
    elif chosen.of == "heartbeat":
        print(unit.heartbeat_unit(sys.stdin.read()), end="")
    else:
        variables = dict(line.split("=", 1) for line in chosen.variables.split("\n") if "=" in line)
        print(unit.job_unit(sys.stdin.read(), variables, chosen.image), end="")


def _image(chosen: argparse.Namespace) -> None:
    print(container.prepare(chosen.image, unit.words(sys.stdin.read())))


def _container(chosen: argparse.Namespace) -> None:
    container.start(chosen.image, chosen.words)


def _code(chosen: argparse.Namespace) -> None:
    print(code.install(chosen.archive if chosen.archive.exists() else None, chosen.into, chosen.record))


def _heartbeat(chosen: argparse.Namespace) -> None:
    job_heartbeat.JobHeartbeat(os.environ, job_heartbeat.last_line).follow(
        job_heartbeat.query, _until_signal()
    )


def _logs(chosen: argparse.Namespace) -> None:
    stopping = _until_signal()
    shared, kind = logs.destination(), read("instance/attributes/accelerator-type")
    logs.run(chosen.cursor, stopping, logs.Shipper(shared, stopping), sign=lambda: logs.alive(shared, kind))


def _until_signal() -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _meet(phase: barrier.Phase, environment: Path | None) -> None:
    node = HostDescription.from_metadata()
    if phase == "boot":
        barrier.wait(node, phase)
        return
    address = os.environ.get("COORDINATOR_ADDRESS", "")
    places.environment(node, address)  # refuses a malformed address before the others arrive
    coordinator = barrier.wait(node, phase, word=address, program=places.installed(node.slices))
    if environment:
        environment.write_text(places.environment(node, coordinator))


def _slurmd(chosen: argparse.Namespace) -> None:
    slurmd.run(chosen.words, _until_signal())


_COMMANDS = {
    "barrier": _barrier,
    "place": _place,
    "unit": _unit,
    "image": _image,
    "container": _container,
    "code": _code,
    "heartbeat": _heartbeat,
    "logs": _logs,
    slurmd.COMMAND: _slurmd,
}

_TRY_AGAIN = 75  # of the boot script's stages
_SERVICES = ("barrier", "heartbeat", "logs", slurmd.COMMAND)  # run for long and log


if __name__ == "__main__":
    sys.exit(main())
