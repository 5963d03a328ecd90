"""The hand-off to training: the command and the slice, and rules of their settings.

`pipeline/` starts training when a run's shards are complete.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from infra.catalog import CATALOG, SliceType
from infra.core.layer import up_command
from infra.errors import Problem
from infra.layers.gke.settings import GkeSettings
from infra.layers.pipeline import paths
from infra.layers.pipeline.settings import NO_TRAINING, PipelineSettings
from infra.layers.queue.jobs.submission import JobRequest, SubmissionError, observed, submission
from infra.layers.queue.settings import QueueSettings
from infra.layers.queue.team import planned_pools
from infra.settings import commands
from infra.settings.schema import Settings
from infra.slices.nodes import Node, nodes, zones
from infra.slices.settings import SliceSettings, TpuSettings
from views.counts import counted

if TYPE_CHECKING:
    from pulumi import ProviderResource

VERTEX_MACHINES = {1: "ct6e-standard-1t", 4: "ct6e-standard-4t", 8: "ct6e-standard-8t"}
"""Machine types of custom jobs, by chips."""
# A problem of a job, as `tpu job submit` words it, in the words of settings.
_SETTINGS = {
    "--slice": "pipeline:trainSlice", "--pool": "pipeline:trainSlice", "--image": "queue:image",
    "-- PROGRAM": "pipeline:trainRun",
}  # fmt: skip
_OF_POOL = re.compile(r"--pool \S+ \((\S+)\)")
_RUN = "r0"  # an example, for rules
_FOLDER = f"{paths.TOKENS}/{_RUN}/0"


def trains_by(settings: Settings) -> str:
    """Return what a run's record and the stack name as its kind of training."""
    desired = settings[PipelineSettings]
    return f"{desired.train} of {desired.train_team}" if desired.train == "jobset" else desired.train


def command(settings: Settings, run: str, folder: str, mount: str = paths.MOUNT) -> str:
    """Return the training command.

    Args:
        settings: of the environment.
        run: name of the run.
        folder: of its shards, in the checkpoint bucket.
        mount: mount point of that bucket.
    """
    given = settings[PipelineSettings].train_run.replace("@RUN@", run).replace("@DATA@", f"{mount}/{folder}")
    if settings[PipelineSettings].train == "jobset":  # whose queue adds what observes it
        return given
    return " ".join(observed(settings, given.split(" "), paths.name(settings)))


def problems(settings: Settings) -> Iterator[Problem]:
    """Yield the problems that keep the chosen training from being started."""
    desired = settings[PipelineSettings]
    wrong = [*_run_problems(settings, desired)] if desired.train != NO_TRAINING else []
    yield from wrong
    if desired.train == "fleet":
        yield from _fleet_problems(settings, desired)
    elif desired.train == "jobset":
        yield from _jobset_problems(settings, desired, submittable=not wrong)
    elif desired.train == "vertex":
        kind = next(kind for kind in CATALOG.types if kind.name == desired.train_slice)
        if kind.chips not in VERTEX_MACHINES:
            most = max(VERTEX_MACHINES)
            rule = f"a custom job of several hosts is documented for no v6e: {most} chips at most"
            fix = "train: fleet, or a smaller slice"
            yield Problem("pipeline:trainSlice", f'"{kind.name}"', rule, fix)
        if desired.train_image is None:
            fix = f"tpu job image {settings.environment}, and its digest as pipeline:trainImage"
            yield Problem("pipeline:trainImage", "nothing", "a custom job runs in an image", fix)


def pool_usd(settings: Settings, kind: SliceType) -> float | None:
    """Return the hourly price of the dearest node pool for such slices; None without a pool or price."""
    prices = [
        pool["pricePerHour"]
        for pool in (planned_pools(settings) if GkeSettings in settings.sections else ())
        if pool["acceleratorType"] == kind.name
    ]
    return None if not prices or None in prices else max(prices)


def require_bundle(settings: Settings, bucket: str | None, provider: ProviderResource) -> None:
    """Refuse an update whose slice would have nothing to install. Raises BundleError."""
    from infra.layers.tpu import bundle  # Pulumi's SDK, which commands don't wait for

    train = settings[PipelineSettings].train
    if train == "fleet":
        bundle.require(settings, [node(settings).bundle], bucket, provider)
    elif train == "jobset" and settings[QueueSettings].install == "bundle":
        bundle.require(settings, [settings[TpuSettings].bundle], bucket, provider)


def node(settings: Settings, run: str = _RUN, folder: str = _FOLDER) -> Node:
    """Return the slice of a run, by default of an example, as `tpu:slices` would list it."""
    desired = settings[PipelineSettings]
    item = SliceSettings(
        name=run, accelerator_type=desired.train_slice, zones=(str(desired.train_zone),), count=1,
        spot=desired.train_spot, run=command(settings, run, folder),
    )  # fmt: skip
    alone = replace(settings[TpuSettings], slices=(item,))
    (training,) = nodes(replace(settings, sections={**settings.sections, TpuSettings: alone}))
    return training


def _published(settings: Settings) -> Settings:
    """With a bundle: the settings are read before the first one is published, and previewed; `require_bundle`
    ends an update without.
    """
    tpu = settings[TpuSettings]
    if tpu.bundle:
        return settings
    return replace(settings, sections={**settings.sections, TpuSettings: replace(tpu, bundle="0" * 64)})


def _run_problems(settings: Settings, desired: PipelineSettings) -> Iterator[Problem]:
    """Yield problems of the program, by the rules of a slice's `run`: its slice is billed before it ends."""
    path, run = "pipeline:trainRun", desired.train_run
    if missing := [word for word in ("@RUN@", "@DATA@") if word not in run]:
        rule = "a run trains on its own shards, under its own name"
        fix = "write e.g. train tiny.toml --name @RUN@ --set data.path=@DATA@"
        yield Problem(path, f'"{run}" without {" and ".join(missing)}', rule, fix)
    if desired.train == "vertex" and commands.split(run)[0] not in commands.COMMANDS:
        rule = f"a custom job runs a command of the workload: {', '.join(commands.COMMANDS)}"
        yield Problem(path, f'"{run}"', rule, "write e.g. train …, or train: fleet")
        return
    named = run.replace("@RUN@", _RUN).replace("@DATA@", f"{paths.MOUNT}/{_FOLDER}")
    if wrong := [*commands.wrong_options(path, named)]:
        yield from (replace(problem, value=f'"{run}"') for problem in wrong)
        return
    queue = settings.get(QueueSettings)
    image = desired.train == "vertex" or (desired.train == "jobset" and queue and queue.install == "image")
    if not image and not settings[TpuSettings].code:
        yield from commands.missing_file(path, run)


def _fleet_problems(settings: Settings, desired: PipelineSettings) -> Iterator[Problem]:
    covered = zones(settings)
    if desired.train_zone not in covered:
        value = f'"{desired.train_zone}"' if desired.train_zone else "nothing"
        rule = f"a zone with a subnet: {', '.join(covered) or 'there is none'}"
        yield Problem("pipeline:trainZone", value, rule, "one of these, or add the zone to tpu:zones")


def _jobset_problems(
    settings: Settings, desired: PipelineSettings, *, submittable: bool
) -> Iterator[Problem]:
    """`submittable`: the program is one that a team may submit."""
    queue = settings.get(QueueSettings)
    if queue is None or settings.get(GkeSettings) is None:
        yield Problem("pipeline:train", '"jobset"', "the layers gke and queue are on", "write their settings")
        return
    member = f"serviceAccount:{paths.account(settings, paths.ORCHESTRATOR)}"
    team = next((team for team in queue.teams if team.name == desired.train_team), None)
    if team is None:
        known = ", ".join(team.name for team in queue.teams)
        value = f'"{desired.train_team}"' if desired.train_team else "nothing"
        yield Problem("pipeline:trainTeam", value, f"one of queue:teams: {known}", "write one of these")
        return
    if member not in team.members:
        rule = "the function submits as a member of the team"
        up = up_command("queue", settings.environment)
        fix = f"add {member} to the members of {team.name}, then {up}"
        yield Problem(
            f"queue:teams ({team.name})", f"{counted(len(team.members), 'member')} without it", rule, fix
        )
    if not submittable:
        return
    try:
        words = shlex.split(command(settings, _RUN, _FOLDER))
        submission(
            _published(settings), JobRequest(team.name, words, name="tokens", size=desired.train_slice)
        )
    except SubmissionError as error:
        for problem in error.problems:
            fix = _OF_POOL.sub(r"pipeline:trainSlice: \1", problem.fix)
            yield replace(problem, path=_SETTINGS.get(problem.path, problem.path), fix=fix)
