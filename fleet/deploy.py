"""Deploy a fleet: split samples, publish, create, wait until all workers report.

Each step is printed, can be typed by a user, and may be repeated: completed work is kept.
"""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fleet.controller import Controller
from fleet.environment import Environment, opened
from fleet.errors import FleetError
from fleet.model import Condition
from fleet.recovery import create
from fleet.request import FleetCommand
from infra.settings.sources import ROOT
from infra.slices import inputs
from infra.slices.nodes import Node
from infra.slices.settings import TpuSettings

_POLL_S = 5.0


@dataclass(frozen=True)
class Dataset:
    """Samples to split into streams.

    Attributes:
        source: files and folders.
        options: further words for `workload data streams`.
    """

    source: Sequence[str]
    options: Sequence[str] = ()


@dataclass(frozen=True)
class Steps:
    """Steps of a deployment.

    Attributes:
        dataset: samples to split; None: the streams exist.
        launch: wait for the slices once all is published.
        create: create the slices that don't exist.
        timeout_s: limit of the wait, in seconds.
    """

    dataset: Dataset | None
    launch: bool = True
    create: bool = False
    timeout_s: float = 3600


def deploy(request: FleetCommand, steps: Steps) -> int:
    """Split samples, publish the workload, create the slices, wait until all work; return the exit status."""
    fleet = opened(request)
    if steps.dataset and not steps.dataset.source:
        raise FleetError("no samples\n    fix: --source FILE, or --skip-dataset where the streams are there")
    lines = commands(request.environment, fleet.members, steps.dataset)
    if steps.dataset:
        _require_tokenizer(fleet, steps.dataset)
    if request.dry_run:
        print("\n".join(f"would run: python {shlex.join(line)}" for line in lines))
        return create(request, (inputs.STREAM,) if steps.dataset else ()) if steps.create else 0
    prepare(lines)
    if not steps.launch:
        print(f"prepared; to create the slices: tpu fleet create {request.environment}")
        return 0
    if steps.create and (status := create(request)):
        return status
    wait_for_all(fleet.controller(), steps.timeout_s)
    print(f"all {len(fleet.members)} work")
    return 0


def commands(environment: str, members: Sequence[Node], dataset: Dataset | None) -> list[list[str]]:
    """Return the commands before the creation of slices, in order; stream k is for member k.

    Args:
        environment: the name in Pulumi.ENV.yaml.
        members: all members of one fleet.
        dataset: samples to split; None if the streams exist.

    Raises:
        FleetError: the members aren't one fleet that extracts from a folder of streams.
    """
    slices = {member.slice for member in members}
    file = f"Pulumi.{environment}.yaml"
    if len(slices) != 1 or any(member.member is None for member in members):
        fix = f"--slice NAME of an item of tpu:slices in {file} that has a count"
        raise FleetError(
            f"{', '.join(sorted(slices)) or 'nothing'}: a deployment is one fleet's\n    fix: {fix}"
        )
    (name,) = slices
    run = members[0].run or ""
    stream = re.search(r"--stream[ =](gs://\S+)", run)
    if not run.startswith("extract ") or not stream or stream[1].endswith(".safetensors"):
        fix = "run: extract CONFIG --stream gs://BUCKET/FOLDER; member k reads stream k of the folder"
        raise FleetError(f"tpu:slices, {name}: runs {run or 'nothing'!r}\n    fix: {fix}")
    numbers = sorted(member.member for member in members if member.member is not None)
    if numbers != list(range(len(numbers))):
        fix = "leave --zones and --workers-per-zone out: member k reads stream k of them all"
        raise FleetError(
            f"members {', '.join(map(str, numbers))} alone can't take all streams\n    fix: {fix}"
        )
    publish = ["-m", "cli", "publish", environment]
    if dataset is None:
        return [publish]
    streams = ["--streams", str(len(members)), "--out", stream[1].rstrip("/"), "--source", *dataset.source]
    return [["-m", "workload", "data", "streams", *streams, *dataset.options], publish]


def _require_tokenizer(fleet: Environment, dataset: Dataset) -> None:
    """Raise FleetError if samples become bytes, and the model has a tokenizer of its own in the bucket."""
    if any(word.partition("=")[0] == "--tokenizer" for word in dataset.options):
        return
    code = fleet.settings[TpuSettings].code
    weights = inputs.folders(fleet.members[0].run or "", ROOT / (code or "")).get("model.weights", "")
    bucket, _, folder = weights.removeprefix("gs://").rstrip("/").partition("/")
    if bucket == fleet.google.bucket and fleet.google.is_there(f"{folder}/tokenizer.json"):
        fix = "add -- --tokenizer FOLDER, with the same tokenizer.json"
        raise FleetError(f"{weights} has a tokenizer, and the samples would be bytes\n    fix: {fix}")


def prepare(lines: Sequence[Sequence[str]]) -> None:
    """Run commands of this interpreter. Raises FleetError if a command fails."""
    for line in lines:
        print(f"$ python {shlex.join(line)}", flush=True)
        if status := _run(line):
            ended = f"`python {shlex.join(line)}` ended with {status}; see the output above"
            raise FleetError(f"{ended}\n    fix: mend that, and repeat the command")


def _run(line: Sequence[str]) -> int:
    return subprocess.run([sys.executable, *line], check=False).returncode


def wait_for_all(
    controller: Controller,
    timeout_s: float,
    report: Callable[[str], None] = print,
    poll_s: float = _POLL_S,
) -> None:
    """Wait until the workers of every member report that they work, or are done.

    Args:
        controller: observes the members.
        timeout_s: limit, in seconds.
        report: receives a line for each change.
        poll_s: seconds between two observations.

    Raises:
        FleetError: a member failed, or the limit passed; names the first.
    """
    begun = time.monotonic()
    reported: dict[str, str] = {}
    while True:
        decisions = controller.step().decisions
        for decision in decisions:
            stage = f"{decision.condition}{f' ({decision.why})' if decision.why else ''}"
            if reported.get(decision.node) != stage:
                reported[decision.node] = stage
                report(f"{decision.node}: {stage}")
        if failed := next((item for item in decisions if item.condition is Condition.FAILED), None):
            fix = f"gs://BUCKET/boot/{failed.node}/ says which stage; tpu fleet monitor recreates it"
            raise FleetError(f"{failed.node}: {failed.why}\n    fix: {fix}")
        pending = [item for item in decisions if item.condition not in (Condition.WORKING, Condition.DONE)]
        if not pending:
            return
        if time.monotonic() - begun > timeout_s:
            first = pending[0]
            fix = "tpu fleet monitor keeps waiting, and recovers lost members"
            late = f"{len(pending)} of {len(decisions)} don't work after {timeout_s / 60:.0f} min"
            raise FleetError(f"{late}; {first.node}: {first.condition}, {first.why}\n    fix: {fix}")
        time.sleep(poll_s)
