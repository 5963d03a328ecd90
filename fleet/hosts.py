"""Commands that reach the hosts of slices over SSH: run one on all workers, restart the job, log in."""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from fleet.environment import Environment, opened
from fleet.errors import FleetError
from fleet.model import View
from fleet.remote_exec import Remote, RemoteExec, observed
from fleet.request import FleetCommand
from fleet.ssh import Forward, Ssh, Worker, one_line
from infra.engine.pulumi import confirm
from infra.settings.schema import FleetSettings
from infra.slices.nodes import Node
from views.counts import counted

# All stop before any starts: a worker of the old attempt would meet one of the new at the barrier.
_STOP, _START = "sudo systemctl stop tpu-job", "sudo systemctl start tpu-job"
_POLL_S = 5.0


def booting(view: View, members: Sequence[Node], silent_s: float) -> list[str]:
    """Return the READY nodes that boot: their job has no unit yet, and their startup script can't run twice.

    Args:
        view: the observation.
        members: in their present zones.
        silent_s: age of the last sign of a boot after which it isn't waited for.
    """
    nodes = ((member, view.node(member.name, member.zone)) for member in members)
    return [
        member.name
        for member, observed in nodes
        if observed and observed.state == "READY" and view.booting(observed, member.kind.hosts, silent_s)
    ]


def execute(request: FleetCommand, options: Remote, words: Sequence[str]) -> int:
    """Run a command on every worker at once, or on none; return the exit status.

    Args:
        request: the members.
        options: of the execution.
        words: the command; a single word is a line of shell.
    """
    command = one_line(words)
    status, document = RemoteExec(opened(request), options, _report(request)).run(command)
    if request.as_json:
        print(json.dumps(document))
    return status


def restart(request: FleetCommand, options: Remote) -> int:
    """Restart the job on every worker, once all have booted; return the exit status.

    Where a worker can't be stopped, or Ctrl+C comes in between, the job is started again on all that answer.
    """
    fleet = opened(request)
    confirm(f"Restart the job of {counted(len(fleet.members), 'slice')}?", request.yes)
    report = _report(request)
    _wait_for_boots(fleet, report)
    remote, started = RemoteExec(fleet, options, report), False
    try:
        report(_STOP)
        status, document = remote.run(_STOP)
        if not status:
            report(_START)
            status, document = remote.run(_START)
            started = not status
    finally:
        if remote.begun and not started:
            _start_again(fleet, replace(options, partial=True), request)
    if request.as_json:
        print(json.dumps(document))
    return status


def _wait_for_boots(fleet: Environment, report: Callable[[str], object]) -> None:
    reported: list[str] = []
    while names := booting(*observed(fleet), fleet.limits.heartbeat_timeout_s):
        if names != reported:
            report(f"waiting for the end of the boot: {', '.join(names)}")
        reported = names
        time.sleep(_POLL_S)


def _start_again(fleet: Environment, options: Remote, request: FleetCommand) -> None:
    """Start the job on every worker that answers; name the others, and the command."""
    print("not restarted: the job is started again where it may be stopped", file=sys.stderr)
    names = "".join(f" --slice {name}" for name in request.slices)
    fix = f"tpu fleet exec {request.environment}{names} -- {_START}"
    try:
        status, document = RemoteExec(fleet, options, _report(request)).run(_START)
        left_out = ", ".join(document["left_out"])
        problem = f"on {left_out}" if left_out else "on some workers" if status else ""
    except FleetError as error:
        problem = f"everywhere: {error}"
    except (KeyboardInterrupt, SystemExit):
        problem = "everywhere"
    if problem:
        print(f"error: the job may be stopped {problem}\n    fix: {fix}", file=sys.stderr)


def _report(request: FleetCommand) -> Callable[[str], object]:
    return partial(print, file=request.output, flush=True)


def login(
    request: FleetCommand, name: str | None, worker: int, words: Sequence[str],
    forwards: Sequence[Forward] = (),
) -> int:  # fmt: skip
    """Become an SSH client of one worker.

    Args:
        request: the members.
        name: a node, or a slice with one node; None: the only node.
        worker: number of the host.
        words: command to run there, as of `execute`; empty: a shell, or nothing beside `forwards`.
        forwards: ports of this machine that lead to the worker.

    Raises:
        FleetError: there is no such worker, or a port of this machine is in use.
    """
    for port in forwards:
        _require_unused(port)
    fleet = opened(request)
    _, members = observed(fleet)
    node = _chosen(members, name)
    if not 0 <= worker < node.kind.hosts:
        rule = f"{node.name} has workers 0 to {node.kind.hosts - 1}"
        raise FleetError(f"--worker {worker}: {rule}\n    fix: --worker 0")
    ssh = Ssh(fleet.settings[FleetSettings].ssh, fleet.settings.project, "")
    line = ssh.interactive(Worker(node, worker), one_line(words) if words else "", forwards)
    for port in forwards:
        print(f"http://localhost:{port.local} is port {port.remote} of {node.name}, worker {worker}")
    if forwards and not words:
        print("until Ctrl+C")
    sys.stdout.flush()
    os.execvp(line[0], line)


def _require_unused(port: Forward) -> None:
    """Raise FleetError if something listens on a port of this machine."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port.local))
        except OSError as error:
            fix = f"another port: --forward {min(port.local + 1, 65_535)}:{port.remote}"
            raise FleetError(
                f"--forward {port.local}: can't be bound here: {error.strerror}\n    fix: {fix}"
            ) from None


def _chosen(members: Sequence[Node], name: str | None) -> Node:
    """Return the node of that name, else the only node of the slice of that name, else the only node."""
    matches = [node for node in members if name in (None, node.name, node.slice)]
    exact = [node for node in matches if node.name == name]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    known = ", ".join(node.name for node in (matches or members)) or "no slices"
    problem = "more than one node for" if matches else "no node named"
    raise FleetError(f"{problem} {name or 'this environment'}: {known}\n    fix: name one of them")
