"""Commands that reach the hosts of slices over SSH: run one on all workers, restart the job, log in."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from fleet import remote_exec
from fleet.environment import Environment, opened
from fleet.errors import FleetError
from fleet.members import placed
from fleet.model import View
from fleet.ssh import Report, Ssh, Worker
from infra.engine.pulumi import confirm
from infra.settings.schema import FleetSettings, GcpSettings
from infra.slices.nodes import Node

_STOP, _START = "sudo systemctl stop tpu-job", "sudo systemctl start tpu-job"


def execute(options: argparse.Namespace) -> int:
    """Run a command on every worker at once, or on none; keep what each says, and name who failed first."""
    command = remote_exec.one_line(options.rest)
    fleet = opened(options)
    view, members = _observed(fleet)
    begun_s = time.time()
    run = remote_exec.RemoteExec(fleet.settings, Path(options.logs), options.parallel)
    left_out, reports = run.on_all(view, members, command, options.timeout_s, options.partial, _say(options))
    if options.json:
        print(json.dumps(remote_exec.as_json(run.folder, left_out, reports)))
    return _outcome(options, fleet, members, left_out, reports, begun_s)


def restart(options: argparse.Namespace) -> int:
    """Restart the job on every worker: stop it on all, then start it on all; the hosts keep running."""
    fleet = opened(options)
    view, members = _observed(fleet)
    confirm(f"Restart the job of {len(members)} slice(s)?", options.yes)
    run = remote_exec.RemoteExec(fleet.settings, Path(options.logs), options.parallel)
    begun_s, say = time.time(), _say(options)
    # All stop before any starts: a worker of the old attempt would meet one of the new at the barrier.
    for command in (_STOP, _START):
        say(command)
        left_out, reports = run.on_all(view, members, command, options.timeout_s, options.partial, say)
        if code := _outcome(options, fleet, members, left_out, reports, begun_s):
            return code
    if options.json:
        print(json.dumps(remote_exec.as_json(run.folder, left_out, reports)))
    return 0


def login(options: argparse.Namespace) -> int:
    """Log in to one worker, or run a command there with its input and output here.

    Replaces this process, so that the terminal is ssh's own.
    """
    fleet = opened(options)
    _, members = _observed(fleet)
    node = _chosen(members, options.node)
    if not 0 <= options.worker < node.kind.hosts:
        rule = f"{node.name} has workers 0 to {node.kind.hosts - 1}"
        raise FleetError(f"--worker {options.worker}: {rule}\n    fix: --worker 0")
    template, project = fleet.settings[FleetSettings].ssh, fleet.settings[GcpSettings].project
    line = Ssh(template, project, "").interactive(Worker(node, options.worker), options.rest)
    sys.stdout.flush()
    os.execvp(line[0], line)


def _chosen(members: Sequence[Node], name: str | None) -> Node:
    """The node of that name, or the only one of the slice of that name, or the only one there is."""
    found = [one for one in members if name in (None, one.name, one.slice)]
    exact = [one for one in found if one.name == name]
    if len(exact or found) == 1:
        return (exact or found)[0]
    known = ", ".join(one.name for one in (found or members)) or "no slices"
    what = "no node named" if not found else "more than one node for"
    raise FleetError(f"{what} {name or 'this environment'}: {known}\n    fix: name one of them")


def _observed(fleet: Environment) -> tuple[View, list[Node]]:
    """What Google lists, and where the members are."""
    view = fleet.google.observe(
        sorted({zone for one in fleet.members for zone in (*one.places, *one.spread)})
    )
    return view, placed(fleet.members, view, fleet.owner, {})


def _outcome(
    options: argparse.Namespace,
    fleet: Environment,
    members: Sequence[Node],
    left_out: dict[str, str],
    reports: Sequence[Report],
    begun_s: float,
) -> int:
    """Prints who was left out and who failed; the exit status."""
    for name, why in left_out.items():
        print(f"left out: {name}: {why}", file=sys.stderr)
    problems = [failed] if (failed := remote_exec.first_failure(reports)) else []
    if not problems:
        _say(options)(f"{len(reports)} of {len(reports)} ok")
        problems = remote_exec.failed_boots(fleet.google.observe(()), members, begun_s)
    for line in problems:
        print(f"error: {line}", file=sys.stderr)
    return 1 if problems else 0


def _say(options: argparse.Namespace) -> partial[None]:
    """For people; standard output is JSON alone where a program asks."""
    out: TextIO = sys.stderr if options.json else sys.stdout
    return partial(print, file=out, flush=True)
