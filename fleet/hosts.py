"""Commands that reach the hosts of slices over SSH: run one on all workers, restart the job, log in."""

import json
import os
import sys
from collections.abc import Sequence
from functools import partial

from fleet.environment import opened
from fleet.errors import FleetError
from fleet.remote_exec import Remote, RemoteExec, observed, one_line
from fleet.request import FleetCommand
from fleet.ssh import Ssh, Worker
from infra.engine.pulumi import confirm
from infra.settings.schema import FleetSettings
from infra.slices.nodes import Node

# All stop before any starts: a worker of the old attempt would meet one of the new at the barrier.
_RESTART = ("sudo systemctl stop tpu-job", "sudo systemctl start tpu-job")


def execute(request: FleetCommand, options: Remote, words: Sequence[str]) -> int:
    """Run a command on every worker at once, or on none; return the exit status.

    Args:
        request: the members.
        options: of the execution.
        words: the command; a single word is a line of shell.
    """
    return _run(request, options, (one_line(words),))


def restart(request: FleetCommand, options: Remote) -> int:
    """Restart the job on every worker; return the exit status."""
    return _run(request, options, _RESTART, "Restart the job of {} slice(s)?")


def _run(request: FleetCommand, options: Remote, commands: Sequence[str], question: str = "") -> int:
    """Run lines of shell, each on every worker, until one fails."""
    fleet = opened(request)
    if question:
        confirm(question.format(len(fleet.members)), request.yes)
    report = partial(print, file=request.output, flush=True)
    remote = RemoteExec(fleet, options, report)
    for command in commands:
        if len(commands) > 1:
            report(command)
        status, document = remote.run(command)
        if status:
            break
    if request.as_json:
        print(json.dumps(document))
    return status


def login(request: FleetCommand, name: str | None, worker: int, words: Sequence[str]) -> int:
    """Become an SSH client of one worker.

    Args:
        request: the members.
        name: a node, or a slice with one node; None: the only node.
        worker: number of the host.
        words: command to run there; empty: a shell.
    """
    fleet = opened(request)
    _, members = observed(fleet)
    node = _chosen(members, name)
    if not 0 <= worker < node.kind.hosts:
        rule = f"{node.name} has workers 0 to {node.kind.hosts - 1}"
        raise FleetError(f"--worker {worker}: {rule}\n    fix: --worker 0")
    ssh = Ssh(fleet.settings[FleetSettings].ssh, fleet.settings.project, "")
    line = ssh.interactive(Worker(node, worker), words)
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
