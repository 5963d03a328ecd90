"""Recreate named slices through Pulumi, which manages them (infra/engine/named.py).

A preempted node is deleted through the API first. The update runs in a separate process group, which Ctrl+C
doesn't reach, so that it is never left unfinished.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

from fleet.zones import Answer, NodeRequest
from infra.engine.named import UNHELD
from infra.google.failures import Failure, Kind
from infra.settings.sources import ROOT


class NamedSlices:
    """Updates, one at a time; requests during an update wait for the next."""

    def __init__(self, environment: str, unheld: bool = False):
        """`unheld`: create slices that the stack doesn't hold, too."""
        self._environment, self._options = environment, [UNHELD] if unheld else []
        self._waiting: list[NodeRequest] = []
        self._running: tuple[list[NodeRequest], subprocess.Popen[bytes], IO[bytes]] | None = None

    def begin(self, request: NodeRequest) -> None:
        """See `zones.Actor`; a creation."""
        self._waiting.append(request)

    def ended(self) -> list[Answer]:
        """See `zones.Actor`."""
        answers: list[Answer] = []
        if self._running and self._running[1].poll() is not None:
            requests, child, output = self._running
            self._running = None
            answers = _answers(requests, child.returncode, output)
        if self._waiting and self._running is None:
            output = tempfile.TemporaryFile()  # noqa: SIM115 - read once the child has ended
            line = [sys.executable, "-m", "infra.engine.named", *self._options, self._environment]
            child = subprocess.Popen(
                [*line, *(item.node.name for item in self._waiting)], cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self._running, self._waiting = (self._waiting, child, output), []
        return answers


def _answers(requests: Sequence[NodeRequest], status: int, output: IO[bytes]) -> list[Answer]:
    output.seek(0)
    text = output.read().decode(errors="replace").strip()
    output.close()
    last = text.splitlines()[-1] if text else ""
    try:
        outcome = json.loads(last)
        return [Answer(request, _failure(outcome[request.node.name])) for request in requests]
    except (ValueError, KeyError, TypeError):
        failure = Failure(Kind.STACK, f"the update ended with {status}: {last}")
        return [Answer(request, failure) for request in requests]


def _failure(report: dict[str, str] | None) -> Failure | None:
    return None if report is None else Failure(Kind(report["kind"]), report["message"], report["about"])
