"""From words to a job: `--slice v6e-16 -- train tiny.toml`, checked against the pools of the settings."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources

from infra.catalog import CATALOG
from infra.core.layer import up_command
from infra.errors import InputError, Problem, listed
from infra.layers.data.names import disk_name
from infra.layers.data.settings import DataSettings
from infra.layers.gke import pools
from infra.layers.gke.pools import Pool
from infra.layers.gke.settings import GkeSettings
from infra.layers.queue.jobs.jobset import Claim, Job
from infra.layers.queue.kueue import PRIORITIES, Team, flavor
from infra.layers.queue.namespace import CHECKPOINTS, data_claim
from infra.layers.queue.settings import QueueSettings
from infra.layers.queue.team import cluster, teams
from infra.layers.storage.names import jobs_folder, steps_bucket
from infra.layers.storage.settings import StorageSettings
from infra.prices import row as prices_row
from infra.settings import commands
from infra.settings.images import refused
from infra.settings.schema import Settings
from infra.settings.variables import NO_VARIABLES, Variables
from infra.slices.settings import TpuSettings
from views.counts import counted

MOUNT = "/mnt/checkpoints"
_NAME = re.compile("[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_MOST_SLICES = 1024


class SubmissionError(InputError):
    """All problems of a request for a job."""

    def __init__(self, source: str, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        super().__init__(listed(source, self.problems))


@dataclass(frozen=True)
class JobRequest:
    """A user's request for a job; empty fields are the settings' choice.

    Attributes:
        program: as the `run` of a slice: a command of the workload, or a program.
        variables: of its environment.
        size: accelerator type or topology of a slice.
        pool: first part of the name of node pools, as in gke:tpuPools.
    """

    team: str
    program: Sequence[str]
    name: str = ""
    size: str = ""
    slices: int = 1
    pool: str = ""
    zone: str = ""
    priority: str = "medium"
    image: str = ""
    variables: Variables = NO_VARIABLES


@dataclass(frozen=True)
class Submission:
    """A job, with the pools that it may run on and what it costs an hour; None where unknown.

    Attributes:
        program: its words, with the name of the run that they write.
    """

    job: Job
    pools: Sequence[Pool]
    hourly: float | None
    program: Sequence[str]
    variables: Variables = NO_VARIABLES

    @property
    def run(self) -> str:
        """The run that the program writes, a training or an extraction; empty for other programs."""
        line = shlex.join(self.program)
        written = commands.training(line) or commands.extraction(line)
        return written.name if written else ""

    @property
    def reason(self) -> str:
        """The choice of pools in words."""
        chosen = self.pools[0]
        hosts, pools = counted(chosen.nodes, "host"), counted(len(self.pools), "such pool")
        same = {pool.zone for pool in self.pools}
        return (
            f"{self.job.slices} x {chosen.kind.name} ({chosen.kind.topology}, {hosts} of "
            f"{chosen.machine.name}) in {', '.join(sorted(same))}: {pools}"
        )


def submission(settings: Settings, request: JobRequest) -> Submission:
    """Return the job. Raises SubmissionError with all problems."""
    request = replace(request, variables=settings[QueueSettings].variables.with_(request.variables))
    problems = [
        *request.variables.problems("--env", "--secret"),
        *_people(settings, request),
        *_program(settings, request),
    ]
    fitting = _fitting(settings, request, problems)
    if problems:
        raise SubmissionError("the job", problems)
    team = next(team for team in teams(settings) if team.name == request.team)
    first = fitting[0]
    zones = sorted({pool.zone for pool in fitting})
    selector = {"topology.kubernetes.io/zone": zones[0]} if len(zones) == 1 else {}
    if request.pool:  # one item of gke:tpuPools, whose node pools are alike
        selector = {**flavor(first.outputs()).labels, **selector}
    claims = {MOUNT: Claim(CHECKPOINTS)}
    if disk := disk_name(settings, zones[0]):
        claims[commands.DATA_MOUNT] = Claim(data_claim(disk), read_only=True)
    name = request.name or _default_name(request.program)
    program = _named(settings, request)
    job = Job(
        name=name,
        team=team,
        image=request.image or str(settings[QueueSettings].image),
        command=_command(settings, observed(settings, program, team.namespace), request.variables),
        topology=first.kind.topology,
        hosts=first.nodes,
        chips_per_host=first.machine.chips,
        slices=request.slices,
        account=settings[GkeSettings].kubernetes_account,
        priority=request.priority,
        environment={**_environment(settings, team, name, fitting), **request.variables.environment},
        selector=selector,
        claims=claims,
        scales=first.scales,
        queued_s=first.queued_s,
        restarts=settings[QueueSettings].restarts,
        cluster=cluster(settings),
    )
    dearest = prices_row.total([pool.hourly for pool in fitting]) and max(
        pool.hourly or 0 for pool in fitting
    )
    hourly = None if dearest is None else request.slices * dearest
    return Submission(job, fitting, hourly, program, request.variables)


def _people(settings: Settings, request: JobRequest) -> Iterator[Problem]:
    known = [team.name for team in teams(settings)]
    if request.team not in known:
        near = difflib.get_close_matches(request.team, known, 1)
        up = up_command("queue", settings.environment)
        fix = f"perhaps {near[0]}" if near else f"add it to queue:teams, then {up}"
        yield Problem("TEAM", f'"{request.team}"', f"one of queue:teams: {', '.join(known) or 'none'}", fix)
    own = [team.priorities for team in teams(settings) if team.name == request.team]
    allowed = own[0] if own else tuple(PRIORITIES)
    if request.priority not in allowed:
        fix = f"write --priority {allowed[0]}"
        yield Problem("--priority", f'"{request.priority}"', f"one of {', '.join(allowed)}", fix)
    name = request.name or _default_name(request.program)
    if not _NAME.fullmatch(name):
        yield Problem(
            "--name", f'"{name}"',
            "1 to 40 lowercase letters, digits and hyphens, first a letter, last no hyphen",
            "write --name NAME",
        )  # fmt: skip
    if commands.named(request.program, name) != request.program:
        yield from _of_others(settings, request.team, name)


def _of_others(settings: Settings, team: str, job: str) -> Iterator[Problem]:
    """Yield the problem of a job whose run would have the name of another team's."""
    own = next((item.namespace for item in teams(settings) if item.name == team), None)
    for other in teams(settings) if own else ():
        prefix = f"{other.namespace}-"
        if prefix.startswith(f"{own}-") and other.namespace != own and f"{own}-{job}".startswith(prefix):
            rule = f"runs of {team} are {own}-JOB, and {prefix}… are those of {other.name}"
            yield Problem("--name", f'"{job}"', rule, "write another --name")


def _program(settings: Settings, request: JobRequest) -> Iterator[Problem]:
    run = shlex.join(request.program)
    if not commands.can_start(run):
        yield Problem(
            "-- PROGRAM", f'"{run}"',
            f"a command of the workload ({', '.join(commands.COMMANDS)}), a path, or one of "
            f"{', '.join(commands.PROGRAMS)}",
            "write e.g. -- train tiny.toml",
        )  # fmt: skip
    else:
        yield from _command_line(settings, run, shlex.join(_named(settings, request)))
    image = request.image or settings[QueueSettings].image
    if not image:
        fix = "add queue:image, or write --image HOST/PATH@sha256:…"
        yield Problem("--image", "nothing", "a job runs in an image", fix)
    else:
        yield from refused("--image", image, pools.may_reach_any_host(settings))
    if settings[QueueSettings].install == "bundle" and not settings[TpuSettings].bundle:
        fix = f"tpu publish {settings.environment}, or queue:install: image"
        yield Problem("tpu:bundle", "nothing", "pods install the bundle that hosts install", fix)


def _named(settings: Settings, request: JobRequest) -> Sequence[str]:
    """Return the program with the name of its run: the team's namespace, and the job's name.

    A job's name that is refused, or a team's, is no problem of the program.
    """
    namespaces = [team.namespace for team in teams(settings) if team.name == request.team]
    name = request.name or _default_name(request.program)
    name = name if _NAME.fullmatch(name) else "job"
    return commands.named(request.program, "-".join([*namespaces, name]))


def _command_line(settings: Settings, run: str, named: str) -> Iterator[Problem]:
    """Yield problems that workers would fail with: a wrong option, a missing config."""
    if wrong := [*commands.wrong_options("-- PROGRAM", named)]:
        for problem in wrong:
            fix = f"{problem.fix}; what `tpu job` takes stands before --"
            yield replace(problem, value=f'"{run}"', fix=fix)
        return
    bucket = settings[StorageSettings].bucket_name
    yield from commands.elsewhere("-- PROGRAM", run, bucket)
    if not _has_data(settings):
        yield from commands.on_disk("-- PROGRAM", run, bucket, settings.environment)
    by_pods = settings[QueueSettings].install == "bundle" and not settings[TpuSettings].code
    if by_pods and (file := commands.own_file(run)):
        packaged = commands.PACKAGED.get(commands.split(run)[0], [])
        near = difflib.get_close_matches(file, packaged, 1)
        fix = f"perhaps {near[0]}" if near else f"tpu:code: and the folder of {file}, then tpu publish"
        rule = f"the bundle has no {file}" + (f"; it has {', '.join(packaged)}" if packaged else "")
        yield Problem("-- PROGRAM", f'"{run}" without tpu:code', rule, fix)


def _fitting(settings: Settings, request: JobRequest, problems: list[Problem]) -> list[Pool]:
    """Return the pools that the job may run on: of one size and machine, as many as it has slices."""
    every = pools.pools(settings)
    if not every:
        fix = f"add one, then {up_command('gke', settings.environment)}, then infra/layers/queue"
        problems.append(Problem("gke:tpuPools", "no pool", "jobs run on node pools", fix))
        return []
    fits = [
        pool
        for pool in every
        if request.size in ("", pool.kind.name, pool.kind.topology)
        and request.pool in ("", pool.group)
        and request.zone in ("", pool.zone)
    ]
    if not fits:
        problems.append(_no_pool(every, request))
        return []
    shapes = {(pool.kind.name, pool.machine.name): pool for pool in fits}
    if len(shapes) > 1:
        sizes = ", ".join(f"{pool.kind.name} ({pool.group})" for pool in shapes.values())
        several = len({pool.kind.name for pool in fits}) > 1
        fix = f"write e.g. --pool {fits[0].group}" + (f", or --slice {fits[0].kind.name}" if several else "")
        problems.append(
            Problem("--slice", "several that fit", f"a job has slices of one size and machine: {sizes}", fix)
        )
    elif len({pool.scales for pool in fits}) > 1:
        groups = ", ".join(dict.fromkeys(pool.group for pool in fits))
        rule = f"pools that scale take jobs of their own, since their nodes aren't there yet: {groups}"
        problems.append(Problem("--pool", "nothing", rule, f"write e.g. --pool {fits[0].group}"))
    if request.program[:1] == ["extract"] and fits[0].nodes > 1:
        rule = f"a host extracts alone, on its own chips, and {fits[0].kind.name} has {fits[0].nodes} hosts"
        fix = "a pool of one host in gke:tpuPools, up to v6e-8; with --slices as many as there are streams"
        problems.append(Problem("--slice", fits[0].kind.name, rule, fix))
    zones = sorted({pool.zone for pool in fits})
    if len(zones) > 1 and _has_data(settings):
        fix = f"write e.g. --zone {zones[0]}"
        problems.append(
            Problem(
                "--zone", "nothing", f"the data's disk is in the zone of the job: {', '.join(zones)}", fix
            )
        )
    if not 1 <= request.slices <= _MOST_SLICES:
        problems.append(
            Problem("--slices", str(request.slices), f"1 to {_MOST_SLICES}", "write such a number")
        )
    most = max(sum(_kind(pool) == kind for pool in fits) for kind in {_kind(pool) for pool in fits})
    if request.slices > most:
        rule = f"the slices of a job are pools of one kind, in one zone: {most} at most"
        fix = f"--slices {most}, or a larger count in gke:tpuPools"
        problems.append(Problem("--slices", str(request.slices), rule, fix))
    return fits


def _kind(pool: Pool) -> tuple[str, str, str, str]:
    return pool.kind.name, pool.machine.name, pool.provisioning, pool.zone


def _no_pool(every: Sequence[Pool], request: JobRequest) -> Problem:
    known = dict.fromkeys(f"{pool.kind.name} ({pool.group}, {pool.zone})" for pool in every)
    given = {"--slice": request.size, "--pool": request.pool, "--zone": request.zone}
    words = {option: word for option, word in given.items() if word}
    near = min(every, key=lambda pool: _distance(pool, request))
    fix = f"the nearest is --pool {near.group} ({near.kind.name}); or add such a pool to gke:tpuPools"
    return Problem(
        " ".join(words), '"' + " ".join(words.values()) + '"', f"the pools are {', '.join(known)}", fix
    )


def _distance(pool: Pool, request: JobRequest) -> tuple[float, ...]:
    """Return a pool's distance from the request: by name, then by chips, or by the size's spelling."""
    chips = next((kind.chips for kind in CATALOG.types if request.size in (kind.name, kind.topology)), None)
    by_size = -_alike(request.size, pool.kind.name) if chips is None else abs(pool.kind.chips - chips)
    return -_alike(request.pool, pool.group), by_size, pool.kind.chips


def _alike(name: str, requested: str) -> float:
    return difflib.SequenceMatcher(None, name, requested).ratio()


def _has_data(settings: Settings) -> bool:
    data = settings.get(DataSettings)
    return data is not None and data.snapshot is not None


def _default_name(program: Sequence[str]) -> str:
    """ "train tiny.toml" → "train-tiny"."""
    words = [
        re.sub(r"\.\w+$", "", word.rpartition("/")[2]) for word in program[:2] if not word.startswith("-")
    ]
    return re.sub("[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")[:40].strip("-")


def _command(settings: Settings, program: Sequence[str], variables: Variables) -> list[str]:
    """Return a container's command: the program, after the installation of the bundle."""
    own = variables.started(["workload", *program] if program[0] in commands.COMMANDS else program)
    if settings[QueueSettings].install == "image":
        return ["workload", "launch", "--", *own]
    loader = resources.files("infra.layers.queue.jobs").joinpath("loader.sh").read_text("utf-8")
    return ["bash", "-c", loader, "job", *own]


def _environment(settings: Settings, team: Team, name: str, fitting: Sequence[Pool]) -> Mapping[str, str]:
    """Return a program's environment variables, as on a TPU VM (docs/guides/code.md)."""
    bucket = settings[StorageSettings].bucket_name
    folder = f"{jobs_folder(team.namespace)}{name}"
    variables = {
        "TPU_NAME": f"{team.namespace}-{name}",
        "ACCELERATOR_TYPE": fitting[0].kind.name,
        "CHECKPOINT_BUCKET": bucket,
        # Of this job of this team alone: two programs that save state.npz must not meet.
        "CHECKPOINT_DIR": f"{MOUNT}/{folder}",
        "CHECKPOINT_URL": f"gs://{bucket}/{folder}",
        "STEPS_BUCKET": steps_bucket(settings),
    }
    # For the run's price; of pools that differ in them the job may get any.
    for variable, values in (
        ("TPU_ZONE", {pool.zone for pool in fitting}),
        ("TPU_PROVISIONING", {pool.provisioning for pool in fitting}),
    ):
        if len(values) == 1:
            variables[variable] = values.pop()
    if _has_data(settings):
        variables["DATA_DIR"] = commands.DATA_MOUNT
    if settings[QueueSettings].install == "bundle":
        variables["TPU_BUNDLE"] = str(settings[TpuSettings].bundle)
    return variables


def observed(settings: Settings, program: Sequence[str], experiment: str) -> Sequence[str]:
    """Return a program; one that trains in the bucket uploads its curves, if the settings say so.

    What the program itself says comes later, and counts.
    """
    board = settings[StorageSettings].tensorboard
    if not (board and run_of(program)):
        return program
    first, *rest = program
    return [first, *f"--set observe.tensorboard={board} --set observe.experiment={experiment}".split(), *rest]


def run_of(program: Sequence[str]) -> str:
    """Return the run in the bucket that a program trains; empty where it trains none."""
    try:
        training = commands.training(shlex.join(program))
    except ValueError:
        return ""  # the trainer says what is wrong
    return training.name if training and not training.folder else ""


def curves(settings: Settings, run: str = "") -> str:
    """Return the URL of the curves of a run, or of all runs (docs/internals/architecture.md)."""
    folder = f"gs://{settings[StorageSettings].bucket_name}/runs"
    return f"{folder}/{run}/tensorboard" if run else folder


def team_of(settings: Settings, name: str) -> Team:
    """Return the team of that name. Raises SubmissionError."""
    if problems := list(_people(settings, JobRequest(name, ["train"]))):
        raise SubmissionError("the command", problems)
    return next(team for team in teams(settings) if team.name == name)
