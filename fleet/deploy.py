"""From samples to a fleet at work: split samples, publish, create, wait until all workers report.

Each step is a command that a user can type, is shown, and can be repeated: what is there already is left
as it is.
"""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from fleet.controller import Controller
from fleet.errors import FleetError
from fleet.model import Condition
from infra.slices.nodes import Node

_POLL_S = 5.0


def commands(environment: str, members: Sequence[Node], dataset: Sequence[str] | None) -> list[list[str]]:
    """What is run before slices are created, in order; one stream for each member, by their numbers.

    `dataset` is what `workload data streams` is told; None where the streams are there already.

    Raises:
        FleetError: the members aren't one fleet that extracts from a folder of streams.
    """
    slices = {one.slice for one in members}
    file = f"Pulumi.{environment}.yaml"
    if len(slices) != 1 or any(one.member is None for one in members):
        fix = f"--slice NAME of an item of tpu:slices in {file} that has a count"
        raise FleetError(
            f"{', '.join(sorted(slices)) or 'nothing'}: a deployment is one fleet's\n    fix: {fix}"
        )
    (name,) = slices
    run = members[0].run or ""
    found = re.search(r"--stream[ =](gs://\S+)", run)
    if not run.startswith("extract ") or not found or found[1].endswith(".safetensors"):
        fix = "run: extract CONFIG --stream gs://BUCKET/FOLDER, of which each member takes its own stream"
        raise FleetError(f"tpu:slices, {name}: runs {run or 'nothing'!r}\n    fix: {fix}")
    numbers = sorted(one.member for one in members if one.member is not None)
    if numbers != list(range(len(numbers))):
        fix = "leave --zones and --workers-per-zone out: member k reads stream k of them all"
        raise FleetError(
            f"members {', '.join(map(str, numbers))} alone can't take all streams\n    fix: {fix}"
        )
    publish = ["-m", "infra.publish", environment]
    if dataset is None:
        return [publish]
    streams = ["--streams", str(len(members)), "--out", found[1].rstrip("/")]
    return [["-m", "workload", "data", "streams", *streams, *dataset], publish]


def prepare(lines: Sequence[Sequence[str]]) -> None:
    """Runs commands of this interpreter. Raises FleetError where one fails."""
    for line in lines:
        print(f"$ python {shlex.join(line)}", flush=True)
        if status := _run(line):
            ended = f"`python {shlex.join(line)}` ended with {status}; see the output above"
            raise FleetError(f"{ended}\n    fix: that, and again")


def _run(line: Sequence[str]) -> int:
    return subprocess.run([sys.executable, *line], check=False).returncode


def wait_for_all(
    controller: Controller,
    timeout_s: float,
    say: Callable[[str], None] = print,
    poll_s: float = _POLL_S,
) -> None:
    """Until the workers of every member have said that they work, or are done.

    Args:
        controller: who looks.
        timeout_s: until that is given up.
        say: a line for each change.
        poll_s: between two looks.

    Raises:
        FleetError: one of them failed, or it took longer; names the first.
    """
    begun = time.monotonic()
    reported: dict[str, str] = {}
    while True:
        decisions = controller.step(may=()).decisions
        for one in decisions:
            stage = f"{one.condition}{f' ({one.why})' if one.why else ''}"
            if reported.get(one.node) != stage:
                reported[one.node] = stage
                say(f"{one.node}: {stage}")
        if failed := next((one for one in decisions if one.condition is Condition.FAILED), None):
            fix = f"gs://BUCKET/boot/{failed.node}/ says which stage; fleet monitor brings it back"
            raise FleetError(f"{failed.node}: {failed.why}\n    fix: {fix}")
        behind = [one for one in decisions if one.condition not in (Condition.WORKING, Condition.DONE)]
        if not behind:
            return
        if time.monotonic() - begun > timeout_s:
            first = behind[0]
            fix = "fleet monitor waits on, and brings back what is lost"
            late = f"{len(behind)} of {len(decisions)} don't work after {timeout_s / 60:.0f} min"
            raise FleetError(f"{late}; {first.node}: {first.condition}, {first.why}\n    fix: {fix}")
        time.sleep(poll_s)
