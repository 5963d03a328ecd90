"""Commands that reach the hosts of slices over SSH: run one on all workers, restart the job, log in."""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fleet import remote_exec
from fleet.environment import Environment, opened
from fleet.errors import FleetError
from fleet.members import placed
from fleet.model import View
from fleet.request import Request
from fleet.ssh import Report, Ssh, Worker
from infra.engine.pulumi import confirm
from infra.settings.schema import FleetSettings, GcpSettings
from infra.slices.nodes import Node

_STOP, _START = "sudo systemctl stop tpu-job", "sudo systemctl start tpu-job"


@dataclass(frozen=True)
class Remote:
    """Options of a remote execution.

    Attributes:
        partial: skip slices that aren't READY and hosts that can't be reached.
        timeout_s: time after which a host ends the command, in seconds.
        parallel: simultaneous connections.
        logs: folder for the workers' logs.
    """

    partial: bool = False
    timeout_s: int = 600
    parallel: int = 32
    logs: Path = Path("fleet-logs")


class _Run:
    """A remote execution on the members of a request."""

    def __init__(self, request: Request, options: Remote, fleet: Environment):
        self._request, self._options, self._fleet = request, options, fleet
        self._view, self.members = _observed(fleet)
        self._begun_s = time.time()
        self._remote: remote_exec.RemoteExec | None = None
        self.report = partial(print, file=request.output, flush=True)

    def run(self, command: str) -> tuple[int, dict[str, object]]:
        """Run a line of shell on every worker; return the exit status, and the document for programs."""
        options = self._options
        if self._remote is None:
            self._remote = remote_exec.RemoteExec(self._fleet.settings, options.logs, options.parallel)
        left_out, reports = self._remote.on_all(
            self._view, self.members, command, options.timeout_s, options.partial, self.report
        )
        return self._status(left_out, reports), remote_exec.as_json(self._remote.folder, left_out, reports)

    def _status(self, left_out: dict[str, str], reports: Sequence[Report]) -> int:
        """Print skipped and failed workers; return the exit status."""
        for name, why in left_out.items():
            print(f"left out: {name}: {why}", file=sys.stderr)
        problems = [failed] if (failed := remote_exec.first_failure(reports)) else []
        if not problems:
            self.report(f"{len(reports)} of {len(reports)} ok")
            problems = remote_exec.failed_boots(self._fleet.google.observe(()), self.members, self._begun_s)
        for line in problems:
            print(f"error: {line}", file=sys.stderr)
        return 1 if problems else 0


def execute(request: Request, options: Remote, words: Sequence[str]) -> int:
    """Run a command on every worker at once, or on none; return the exit status.

    Args:
        request: the members.
        options: of the execution.
        words: the command; a single word is a line of shell.
    """
    command = remote_exec.one_line(words)
    status, document = _Run(request, options, opened(request)).run(command)
    if request.as_json:
        print(json.dumps(document))
    return status


def restart(request: Request, options: Remote) -> int:
    """Restart the job on every worker; return the exit status."""
    run = _Run(request, options, opened(request))
    confirm(f"Restart the job of {len(run.members)} slice(s)?", request.yes)
    # All stop before any starts: a worker of the old attempt would meet one of the new at the barrier.
    document: dict[str, object] = {}
    for command in (_STOP, _START):
        run.report(command)
        status, document = run.run(command)
        if status:
            return status
    if request.as_json:
        print(json.dumps(document))
    return 0


def login(request: Request, name: str | None, worker: int, words: Sequence[str]) -> int:
    """Become an SSH client of one worker.

    Args:
        request: the members.
        name: a node, or a slice with one node; None: the only node.
        worker: number of the host.
        words: command to run there; empty: a shell.
    """
    fleet = opened(request)
    _, members = _observed(fleet)
    node = _chosen(members, name)
    if not 0 <= worker < node.kind.hosts:
        rule = f"{node.name} has workers 0 to {node.kind.hosts - 1}"
        raise FleetError(f"--worker {worker}: {rule}\n    fix: --worker 0")
    template, project = fleet.settings[FleetSettings].ssh, fleet.settings[GcpSettings].project
    line = Ssh(template, project, "").interactive(Worker(node, worker), words)
    sys.stdout.flush()
    os.execvp(line[0], line)


def _chosen(members: Sequence[Node], name: str | None) -> Node:
    """Return the node of that name, else the only node of the slice of that name, else the only node."""
    matches = [node for node in members if name in (None, node.name, node.slice)]
    exact = [node for node in matches if node.name == name]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    known = ", ".join(node.name for node in (matches or members)) or "no slices"
    problem = "more than one node for" if matches else "no node named"
    raise FleetError(f"{problem} {name or 'this environment'}: {known}\n    fix: name one of them")


def _observed(fleet: Environment) -> tuple[View, list[Node]]:
    """Return the nodes that Google lists, and the members in their present zones."""
    zones = {zone for node in fleet.members for zone in (*node.places, *node.spread)}
    view = fleet.google.observe(sorted(zones))
    return view, placed(fleet.members, view, fleet.owner, {})
