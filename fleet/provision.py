"""Brings members up and down in the stack that `pulumi up` works on, so that the two never disagree.

Pulumi locks a stack while it changes, so two updates never overlap. An update runs in a process of its own
(`fleet/stack.py`), out of reach of Ctrl+C: it is never left half done. Who only looks needs no SDK for it.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from fleet.failures import Failure, Kind
from fleet.state import Place
from infra import names
from infra.cli import Pulumi
from infra.errors import CommandError, InfraError
from infra.nodes import nodes as all_nodes
from infra.settings import from_file
from infra.settings.record import record
from infra.settings.sources import ROOT

LAYER = "tpu"
Outcome = dict[str, Failure | None]
"""How an update went, by node; None where the node is as it was asked for."""


def move(environment: str, zones: Mapping[str, str], root: Path = ROOT) -> None:
    """Writes into `tpu:moved` which members aren't made in the zone that their slice names."""
    settings = from_file(environment, root)
    homes = {one.name: one.home for one in all_nodes(settings)}
    moved = {**settings.tpu.moved, **zones}
    abroad = {node: zone for node, zone in moved.items() if zone != homes.get(node, zone)}
    if abroad != settings.tpu.moved:
        record(environment, "tpu:moved", abroad, root)


def require(environment: str, root: Path = ROOT) -> None:
    """Raises CommandError where there is no such stack."""
    if environment not in Pulumi(environment, root).stacks(LAYER):
        fix = f"pulumi up -s {environment}"
        raise CommandError(f"there is no stack {environment} of {LAYER} yet\n    fix: {fix}")


def placed(environment: str, root: Path = ROOT) -> dict[str, str]:
    """Members that the stack holds, by the zone where it has them."""
    resources = Pulumi(environment, root).state(LAYER)
    mine = (one for one in resources if one["type"] == names.NODE_TYPE and not one.get("delete"))
    return {one["urn"].rpartition("::")[2]: names.zone_of(one["id"]) for one in mine}


def known(environment: str, root: Path = ROOT) -> frozenset[str]:
    """Members that the stack holds."""
    return frozenset(placed(environment, root))


def asked(environment: str) -> dict[str, str] | None:
    """Members that the stack holds, by zone; None where Pulumi doesn't say."""
    try:
        return placed(environment)
    except InfraError:
        return None


class Updates:
    """Updates in processes of their own, one at a time."""

    def __init__(self, environment: str):
        require(environment)
        self._environment = environment
        self._running: tuple[tuple[str, ...], subprocess.Popen[bytes], IO[bytes]] | None = None
        self._held: dict[str, str] | None = None

    def held(self) -> dict[str, str] | None:
        """See `loop.Builder`."""
        if self._held is None and self._running is None:
            self._held = asked(self._environment)
        return self._held

    def start(self, places: Mapping[str, Place]) -> None:
        """See `loop.Builder`."""
        words = [f"{node}={place.zone}={place.instance}" for node, place in places.items()]
        self._start("bring", list(places), words)

    def remove(self, nodes: Sequence[str]) -> None:
        """Begins to delete members."""
        self._start("remove", nodes, nodes)

    def _start(self, verb: str, nodes: Sequence[str], words: Sequence[str]) -> None:
        assert self._running is None, "one update at a time"
        answer = tempfile.TemporaryFile()  # noqa: SIM115 - read once the child has ended
        line = [sys.executable, "-m", "fleet.stack", self._environment, verb, *words]
        child = subprocess.Popen(
            line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=answer, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self._running = tuple(nodes), child, answer

    def ended(self) -> Outcome | None:
        """The outcome of what was started, once; None while it runs, or where nothing was."""
        if self._running is None or self._running[1].poll() is None:
            return None
        nodes, child, answer = self._running
        self._running = self._held = None
        answer.seek(0)
        said = answer.read().decode(errors="replace")
        answer.close()
        try:
            told = json.loads(said.splitlines()[-1])
            return {node: _failure(told[node]) for node in nodes}
        except (ValueError, KeyError, IndexError, TypeError):
            last = next(reversed(said.strip().splitlines()), "")
            failure = Failure(Kind.STACK, f"the update ended with {child.returncode}: {last}")
            return dict.fromkeys(nodes, failure)


def _failure(told: dict[str, str] | None) -> Failure | None:
    return None if told is None else Failure(Kind(told["kind"]), told["message"], told["about"])
