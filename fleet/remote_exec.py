"""Run a command on all workers at once: on all or on none, with a log for each, and the first failure.

remote = RemoteExec(settings, Path("fleet-logs"), parallel=32)
left_out, reports = remote.on_all(view, members, "sudo systemctl restart tpu-job")
"""

import shlex
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleet.errors import FleetError
from fleet.model import View
from fleet.ssh import Ending, Report, Ssh, Worker, workers
from infra.engine.roles import with_roles
from infra.google.failures import Kind, classify
from infra.settings.schema import FleetSettings, Settings
from infra.slices.nodes import Node

_PROBE_S = 60  # for a command that does nothing
_PROBES, _PAUSE_S = 3, 2.0
_SHOWN_LINES, _SHOWN_CHARACTERS = 10, 60


def one_line(words: Sequence[str]) -> str:
    """Return the line for a host's shell: several words as they are, a single one as a line of its own.

    Raises:
        FleetError: there are no words.
    """
    if not words:
        fix = "tpu fleet exec dev -- hostname"
        raise FleetError(f"no command: it stands behind --\n    fix: {fix}")
    return words[0] if len(words) == 1 else shlex.join(words)


def standing(view: View, members: Sequence[Node]) -> tuple[list[Node], dict[str, str], dict[str, str]]:
    """Members that Google calls READY; of the others those that it doesn't, and those it says nothing of.

    Of the latter two, why, by the node's name.
    """
    ready, down, unknown = [], dict[str, str](), dict[str, str]()
    for member in members:
        zone = view.zones[member.zone]
        if zone.nodes is None:
            unknown[member.name] = (
                f"{member.zone} didn't answer: {zone.failure.message if zone.failure else '?'}"
            )
        elif (observed := zone.nodes.get(member.name)) is None:
            down[member.name] = f"{member.zone} has no such node"
        elif observed.state != "READY":
            down[member.name] = f"it is {observed.state or 'in no state'}"
        else:
            ready.append(member)
    return ready, down, unknown


def with_role(message: str) -> str:
    """Return the output of SSH, with the missing role if it was refused."""
    failure = classify(message)
    return f"{message} ({with_roles(failure.fix)})" if failure.kind is Kind.PERMISSION else message


class RemoteExec:
    """Run of a command, and the folder with each worker's output."""

    def __init__(self, settings: Settings, logs: Path, parallel: int):
        """Create the folder; at most `parallel` connections are open. Raises FleetError if it can't."""
        self._parallel, self._environment = parallel, settings.environment
        self._ssh = Ssh(settings[FleetSettings].ssh, settings.project, uuid.uuid4().hex[:8])
        self.folder = logs / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%fZ")
        try:
            (self.folder / "probe").mkdir(parents=True)
        except OSError as error:
            raise FleetError(f"--logs {logs}: {error.strerror}\n    fix: another folder") from None

    def on_all(
        self,
        view: View,
        members: Sequence[Node],
        command: str,
        timeout_s: int = 600,
        partial: bool = False,
        show: Callable[[str], object] = print,
    ) -> tuple[dict[str, str], list[Report]]:
        """Run a line of the hosts' shell on every worker that `view` shows; `say` gets a line as each ends.

        Returns:
            With `partial`, what was left out and why; and how it went, in the order in which workers ended.

        Raises:
            FleetError: one member isn't READY, or one worker can't be reached. It was run nowhere then.
        """
        ready, down, unknown = standing(view, members)
        if (why := down | unknown) and not partial:
            raise self._partial("slices aren't known to be READY", why, len(members))
        requested = [member for member in members if member in ready or member.name in unknown]
        everyone = workers(requested)
        show(
            f"asking {len(everyone)} workers whether they answer, for up to {_PROBES * _PROBE_S // 60} min …"
        )
        probe = self._probe(everyone)
        unreached = {
            item.worker.name: f"{item.why} {with_role(' '.join(item.last_lines(1)))}".strip()
            for item in probe
            if item.ending is not Ending.OK
        }
        if unreached and not partial:
            raise self._partial("workers can't be reached", unreached, len(probe))
        reached = [item.worker for item in probe if item.ending is Ending.OK]
        left_out = down | unreached
        if not reached:
            raise self._partial("are left out, and no worker is left", left_out, len(left_out))
        show(f"on {len(reached)} workers; what each says: {self.folder}/NODE-wK.log")
        width = max(len(item.name) for item in reached)
        reports = []
        for report in self._run_on(reached, command, timeout_s, "."):
            show(line_of(report, width))
            reports.append(report)
        return left_out, sorted(reports, key=lambda item: item.ended_s)

    def _partial(self, what: str, why: dict[str, str], total: int) -> FleetError:
        lines = [f"  {name}: {reason}" for name, reason in why.items()]
        fix = f"tpu status {self._environment}; how workers are reached is the setting fleet:ssh"
        fix += "; --partial continues without them" if len(why) < total else ""
        head = f"{len(why)} of {total} {what}; the command was run nowhere"
        return FleetError("\n".join([head, *lines, f"    fix: {fix}"]))

    def _probe(self, everyone: Sequence[Worker]) -> list[Report]:
        """Run an empty command on each worker; retry those that couldn't be reached."""
        mapping: dict[str, Report] = {}
        left = list(everyone)
        for attempt in range(_PROBES if everyone else 0):
            time.sleep(_PAUSE_S if attempt else 0)
            mapping |= {item.worker.name: item for item in self._run_on(left, "true", _PROBE_S, "probe")}
            left = [item for item in left if mapping[item.name].ending is not Ending.OK]
            if not left:
                break
        return [mapping[item.name] for item in everyone]

    def _run_on(
        self, workers: Sequence[Worker], command: str, timeout_s: int, folder: str
    ) -> Iterable[Report]:
        with ThreadPoolExecutor(self._parallel) as pool:
            try:
                waiting = [
                    pool.submit(
                        self._ssh.run, worker, command, timeout_s, self.folder / folder / f"{worker.name}.log"
                    )
                    for worker in workers
                ]
                for future in as_completed(waiting):
                    yield future.result()
            except BaseException:
                if left := self._ssh.stop():
                    print(f"{left} connections cut; commands that began may continue there", file=sys.stderr)
                raise


def line_of(report: Report, width: int) -> str:
    """Return a worker's ending, with its last line."""
    output = report.why or next(iter(report.last_lines(1)), "")
    shown = output if len(output) <= _SHOWN_CHARACTERS else f"{output[:_SHOWN_CHARACTERS]}…"
    shown = output if report.why else shown
    return f"  {report.ending:<9}  {report.worker.name:<{width}}  {report.took_s:6.1f} s  {shown}".rstrip()


def first_failure(reports: Sequence[Report]) -> str:
    """Return the first failure in time, with its last lines; empty if there is none."""
    bad = [report for report in reports if report.ending is not Ending.OK]
    if not bad:
        return ""
    first = min(bad, key=lambda item: item.ended_s)
    head = f"{len(bad)} of {len(reports)} failed; the first was {first.worker.name}: {first.why}"
    return "\n".join([head, *(f"    {line}" for line in first.last_lines(_SHOWN_LINES)), f"  {first.log}"])


def failed_boots(view: View, members: Sequence[Node], since_s: float) -> list[str]:
    """Return boots that failed since the command began; systemd doesn't report them."""
    statuses = view.statuses or {}
    return [
        f"{member.name}: its startup script failed at {status.stage}{f': {status.why}' if status.why else ''}"
        for member in members
        for status in statuses.get(member.name, ())
        if status.boot in ("failed", "rerun-failed") and status.at_s >= since_s
    ]


def as_json(folder: Path, left_out: dict[str, str], reports: Sequence[Report]) -> dict[str, Any]:
    """Return the document for programs, in the order in which workers ended."""
    return {
        "logs": str(folder),
        "left_out": left_out,
        "workers": [
            {
                "worker": report.worker.name,
                "node": report.worker.node.name, "zone": report.worker.node.zone,
                "ending": report.ending, "status": report.status, "why": report.why,
                "took_s": round(report.took_s, 1), "log": str(report.log),
            }
            for report in reports
        ],
    }  # fmt: skip
