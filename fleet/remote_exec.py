"""Run a command on all workers at once: on all or on none, with a log for each, and the first failure.

remote = RemoteExec(opened(request), Remote(), print)
status, document = remote.run("sudo systemctl restart tpu-job")
"""

import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleet.environment import Environment
from fleet.errors import FleetError
from fleet.members import placed
from fleet.model import View
from fleet.ssh import Ending, Report, Ssh, Worker, workers
from infra.engine.roles import with_roles
from infra.google.failures import Kind, classify
from infra.settings.schema import FleetSettings
from infra.slices.nodes import Node
from views.counts import counted

_PROBE_S = 60  # for a command that does nothing
_PROBES, _PAUSE_S = 3, 2.0
_SHOWN_LINES, _SHOWN_CHARACTERS = 10, 60


@dataclass(frozen=True)
class Remote:
    """Options of a remote execution.

    Attributes:
        partial: skip slices that aren't READY and hosts that can't be reached.
        timeout_s: time after which a host ends the command, in seconds.
        parallel: simultaneous connections.
        logs: folder for the workers' logs.
        probe: reach every worker before the command begins on any.
    """

    partial: bool = False
    timeout_s: int = 600
    parallel: int = 32
    logs: Path = Path("fleet-logs")
    probe: bool = True


class RemoteExec:
    """Commands on the workers of an environment's members, and the folder with their outputs.

    Attributes:
        begun: a command was sent to workers; before that, nothing has changed there.
    """

    def __init__(self, fleet: Environment, options: Remote, report: Callable[[str], object]):
        """Look up the nodes and create the folder; `report` receives progress.

        Raises:
            FleetError: the folder can't be created, or the SSH program is missing.
        """
        self._fleet, self._options, self._report = fleet, options, report
        self._view, self._members = observed(fleet)
        self.begun, self._begun_s = False, time.time()
        self._ssh = Ssh(fleet.settings[FleetSettings].ssh, fleet.settings.project, uuid.uuid4().hex[:8])
        self._folder = options.logs / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
        try:
            (self._folder / "probe").mkdir(parents=True)
        except OSError as error:
            raise FleetError(f"--logs {options.logs}: {error.strerror}\n    fix: another folder") from None

    def run(self, command: str) -> tuple[int, dict[str, Any]]:
        """Run a line of shell on every worker, and print failures.

        Returns:
            The exit status, and a document of each worker, in the order in which they ended.

        Raises:
            FleetError: a member isn't READY, or a worker can't be reached, so that it was run nowhere.
        """
        left_out, reached = self._reached()
        self._report(f"on {counted(len(reached), 'worker')}; their output: {self._folder}/NODE-wK.log")
        width = max(len(worker.name) for worker in reached)
        reports = []
        self.begun = True
        for report in self._run_on(reached, command, self._options.timeout_s, "."):
            self._report(_line(report, width))
            reports.append(report)
        reports.sort(key=lambda report: report.ended_s)

        for name, why in left_out.items():
            print(f"left out: {name}: {why}", file=sys.stderr)
        problems = _first_failure(reports)
        if not problems:
            self._report(f"{len(reports)} of {len(reports)} ok")
            problems = self._failed_boots()
        for line in problems:
            print(f"error: {line}", file=sys.stderr)
        listed = [_as_json(report) for report in reports]
        return bool(problems), {"logs": str(self._folder), "left_out": left_out, "workers": listed}

    def _reached(self) -> tuple[dict[str, str], list[Worker]]:
        """Return why nodes and workers are left out, by name, and the others, which answered."""
        down, unknown = self._not_ready()
        partial = self._options.partial
        if (why := down | unknown) and not partial:
            raise self._error("slices aren't known to be READY", why, len(self._members))
        everyone = workers([member for member in self._members if member.name not in down])
        if not self._options.probe:
            return down | unknown, everyone
        wait_min = _PROBES * _PROBE_S // 60
        self._report(f"probing {counted(len(everyone), 'worker')}, for up to {wait_min} min …")
        probes = self._probe(everyone)
        unreached = {
            probe.worker.name: f"{probe.why} {_with_role(probe.last_lines(_SHOWN_LINES))}".strip()
            for probe in probes
            if probe.ending is not Ending.OK
        }
        if unreached and not partial:
            raise self._error("workers can't be reached", unreached, len(probes))
        reached = [probe.worker for probe in probes if probe.ending is Ending.OK]
        left_out = down | unreached
        if not reached:
            raise self._error("are left out, and no worker is left", left_out, len(left_out))
        return left_out, reached

    def _not_ready(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the members that aren't READY, and those whose zone didn't answer, each with the reason."""
        down, unknown = dict[str, str](), dict[str, str]()
        for member in self._members:
            zone = self._view.zones[member.zone]
            if zone.nodes is None:
                why = zone.failure.message if zone.failure else "?"
                unknown[member.name] = f"{member.zone} didn't answer: {why}"
            elif (node := zone.nodes.get(member.name)) is None:
                down[member.name] = f"{member.zone} has no such node"
            elif node.state != "READY":
                down[member.name] = f"it is {node.state or 'in no state'}"
        return down, unknown

    def _error(self, problem: str, why: Mapping[str, str], total: int) -> FleetError:
        lines = [f"  {name}: {reason}" for name, reason in why.items()]
        fix = f"tpu status {self._fleet.settings.environment}; fleet:ssh sets how workers are reached"
        fix += "; --partial continues without them" if len(why) < total else ""
        head = f"{len(why)} of {total} {problem}; the command was run nowhere"
        return FleetError("\n".join([head, *lines, f"    fix: {fix}"]))

    def _probe(self, everyone: Sequence[Worker]) -> list[Report]:
        """Run an empty command on each worker; retry those that couldn't be reached."""
        probes: dict[str, Report] = {}
        left = list(everyone)
        for attempt in range(_PROBES):
            time.sleep(_PAUSE_S if attempt and left else 0)
            probes |= {report.worker.name: report for report in self._run_on(left, "true", _PROBE_S, "probe")}
            left = [worker for worker in left if probes[worker.name].ending is not Ending.OK]
        return [probes[worker.name] for worker in everyone]

    def _run_on(
        self, workers: Sequence[Worker], command: str, timeout_s: int, folder: str
    ) -> Iterable[Report]:
        with ThreadPoolExecutor(self._options.parallel) as pool:
            try:
                waiting = [
                    pool.submit(
                        self._ssh.run, worker, command, timeout_s,
                        self._folder / folder / f"{worker.name}.log",
                    )
                    for worker in workers
                ]  # fmt: skip
                for future in as_completed(waiting):
                    yield future.result()
            except BaseException:
                if left := self._ssh.stop():
                    print(f"{left} connections cut; commands that began may continue there", file=sys.stderr)
                raise

    def _failed_boots(self) -> list[str]:
        """Return boots that failed since the command began; systemd doesn't report them."""
        statuses = self._fleet.google.observe(()).statuses or {}
        return [
            f"{member.name}: its startup script failed at {status.stage}"
            f"{f': {status.why}' if status.why else ''}"
            for member in self._members
            for status in statuses.get(member.name, ())
            if status.boot in ("failed", "rerun-failed") and status.at_s >= self._begun_s
        ]


def observed(fleet: Environment) -> tuple[View, list[Node]]:
    """Return the nodes that Google lists, and the members in their present zones."""
    zones = {zone for member in fleet.members for zone in (*member.places, *member.spread)}
    view = fleet.google.observe(sorted(zones))
    return view, placed(fleet.members, view, fleet.owner, {})


def _with_role(lines: Sequence[str]) -> str:
    """Return the last line of SSH's output, or the refusal before it, with the missing role."""
    for line in reversed(lines):  # a refused tunnel's reason is followed by SSH's, that it lacks a connection
        failure = classify(line)
        if failure.kind is Kind.PERMISSION:
            return f"{line} ({with_roles(failure.fix)})"
    return "".join(lines[-1:])


def _line(report: Report, width: int) -> str:
    """Return a worker's ending, with its last line."""
    output = report.why or next(iter(report.last_lines(1)), "")
    if not report.why and len(output) > _SHOWN_CHARACTERS:
        output = f"{output[:_SHOWN_CHARACTERS]}…"
    return f"  {report.ending:<9}  {report.worker.name:<{width}}  {report.took_s:6.1f} s  {output}".rstrip()


def _first_failure(reports: Sequence[Report]) -> list[str]:
    """Return the first failure in time, with its last lines; empty if there is none."""
    failed = [report for report in reports if report.ending is not Ending.OK]
    if not failed:
        return []
    first = failed[0]
    head = f"{len(failed)} of {len(reports)} failed; the first was {first.worker.name}: {first.why}"
    return ["\n".join([head, *(f"    {line}" for line in first.last_lines(_SHOWN_LINES)), f"  {first.log}"])]


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "worker": report.worker.name,
        "node": report.worker.node.name, "zone": report.worker.node.zone,
        "ending": report.ending, "status": report.status, "why": report.why,
        "took_s": round(report.took_s, 1), "log": str(report.log),
    }  # fmt: skip
