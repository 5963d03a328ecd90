"""Rules between slices, and with settings of other layers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from infra.catalog import region_of
from infra.core.layer import up_command
from infra.errors import Problem
from infra.layers.data.settings import DataSettings
from infra.layers.network.settings import NetworkSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings import commands
from infra.settings.images import undeclared, unreachable
from infra.settings.schema import ADDED_SLICES, FleetSettings, Relation, Settings
from infra.slices import nodes
from infra.slices.paths import HOSTS
from infra.slices.settings import TpuSettings

_SHORTEST_WAIT_S = 180  # systemd gives a job up that starts more than 20 times an hour
_MOST_WORKERS = 4096  # workload.train.cluster


def _location(settings: Settings, given: set[str]) -> Iterator[Problem]:
    location = settings[StorageSettings].location
    if settings[StorageSettings].allow_cross_region:
        return
    homes = {region_of(zone) for slice_ in settings[TpuSettings].slices for zone in slice_.zones}
    for region in nodes.regions(settings):
        if region != location:
            verb, fix = "are in", f"write storage:location: {region}, or storage:allowCrossRegion: true"
            if region not in homes:
                verb, fix = (
                    "may be moved to",
                    "take it out of fallbackZones, or storage:allowCrossRegion: true",
                )
            yield Problem(
                "storage:location",
                f'"{location}"',
                f"slices {verb} {region}, and every byte between regions is slow and is billed",
                fix,
            )


def _known_zones(settings: Settings, given: set[str]) -> Iterator[Problem]:
    known = nodes.known_zones(settings)
    for zone in nodes.zones(settings):
        if zone not in known:
            yield nodes.unknown_zone("tpu:slices", zone)


def _secrets(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield secrets of the file's slices that no account may read; `tpu run` looks its own up."""
    known, up = settings[StorageSettings].secrets, up_command("storage", settings.environment)
    for i, slice_ in enumerate(() if ADDED_SLICES in given else settings[TpuSettings].slices):
        yield from slice_.variables.undeclared(f"tpu:slices[{i}].secrets", known, up)


def _images(settings: Settings, given: set[str]) -> Iterator[Problem]:
    known, up = settings[StorageSettings].repositories, up_command("storage", settings.environment)
    for i, slice_ in enumerate(settings[TpuSettings].slices):
        path, image = f"tpu:slices[{i}].image", slice_.image
        if image:
            yield from unreachable(path, image, settings[NetworkSettings].reaches_any_host)
        if image and ADDED_SLICES not in given:  # `tpu run` looks its own up
            yield from undeclared(path, image, settings.project, known, up)


def _unique_names(settings: Settings, given: set[str]) -> Iterator[Problem]:
    times = Counter(slice_.name for slice_ in settings[TpuSettings].slices)
    for name in sorted(name for name in times if times[name] > 1):
        yield Problem(
            "tpu:slices",
            f'{times[name]} slices called "{name}"',
            "each slice has its own name",
            "rename one",
        )


def _unique_nodes(settings: Settings, given: set[str]) -> Iterator[Problem]:
    owners: dict[str, set[str]] = defaultdict(set)
    fixed = set()  # another fleet's member gets the next free id
    for node in nodes.nodes(settings):
        owners[node.name].add(node.slice)
        if node.member is None or node.together:
            fixed.add(node.name)
    clashes: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, slices in sorted(owners.items()):
        if len(slices) > 1 and name in fixed:
            clashes[tuple(sorted(slices))].append(name)
    for clashing, shared in clashes.items():
        yield Problem(
            "tpu:slices",
            f"{', '.join(shared)} in {' and '.join(clashing)}",
            "a node has its id in its zone for itself",
            "rename the slice, or set a fleet's firstWorkerId past the other's ids",
        )


def _one_writer(settings: Settings, given: set[str]) -> Iterator[Problem]:
    writers: dict[str, list[nodes.Node]] = defaultdict(list)
    for node in nodes.nodes(settings):
        training = commands.training(node.run or "")
        if training and not training.folder:
            writers[training.name].append(node)
    for run, several in writers.items():
        if len({node.slice if node.together else node.name for node in several}) > 1:
            slices = sorted({node.slice for node in several})
            yield Problem(
                "tpu:slices",
                f'run "{run}" on {len(several)} nodes of {" and ".join(slices)}',
                "one node trains a run: a second would overwrite and remove its checkpoints",
                "add --name to the run of one of the slices; members of a fleet can't train, unless"
                " multislice: true makes one job of them",
            )


def _mounted(settings: Settings, given: set[str]) -> Iterator[Problem]:
    for i, slice_ in enumerate(settings[TpuSettings].slices):
        bucket = settings[StorageSettings].bucket_name
        yield from commands.elsewhere(f"tpu:slices[{i}].run", slice_.run or "", bucket)


def _on_disk(settings: Settings, given: set[str]) -> Iterator[Problem]:
    data, bucket = settings.get(DataSettings), settings[StorageSettings].bucket_name
    for i, slice_ in enumerate(() if data and data.snapshot else settings[TpuSettings].slices):
        yield from commands.on_disk(f"tpu:slices[{i}].run", slice_.run or "", bucket, settings.environment)


def _barrier(settings: Settings, given: set[str]) -> Iterator[Problem]:
    several = [slice_ for slice_ in settings[TpuSettings].slices if slice_.multislice]
    if several and settings[TpuSettings].barrier_timeout_s < _SHORTEST_WAIT_S:
        yield Problem(
            "tpu:barrierTimeoutS",
            f"{settings[TpuSettings].barrier_timeout_s} beside {several[0].name}, a multislice job",
            "a slice that waits for another to come back is started at most 20 times an hour",
            f"write {_SHORTEST_WAIT_S} or more",
        )


def _together(settings: Settings, given: set[str]) -> Iterator[Problem]:
    for slice_ in (slice_ for slice_ in settings[TpuSettings].slices if slice_.multislice):
        hosts = sum(node.kind.hosts for node in nodes.nodes(settings) if node.slice == slice_.name)
        if hosts > _MOST_WORKERS:
            yield Problem(
                "tpu:slices",
                f"{hosts} hosts in {slice_.name}",
                f"the trainer takes a job of at most {_MOST_WORKERS} hosts",
                "lower count",
            )


def _own_code(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings[TpuSettings].code:
        return
    for number, slice_ in enumerate(settings[TpuSettings].slices):
        # A bundle of its own brings it along.
        if slice_.run and not slice_.bundle:
            yield from commands.missing_file(f"tpu:slices[{number}].run", slice_.run)


def _silence(settings: Settings, given: set[str]) -> Iterator[Problem]:
    heartbeat_timeout_s, barrier_s = (
        settings[FleetSettings].heartbeat_timeout_s,
        settings[TpuSettings].barrier_timeout_s,
    )
    if heartbeat_timeout_s <= barrier_s:
        yield Problem(
            "fleet:heartbeatTimeoutS",
            f"{heartbeat_timeout_s} beside tpu:barrierTimeoutS {barrier_s}",
            "a host sends no heartbeat while it waits for the others at the barrier",
            f"write more than {barrier_s}, or lower tpu:barrierTimeoutS",
        )


RULES: tuple[Relation, ...] = (
    (("storage:location", "storage:allowCrossRegion"), _location),
    (("tpu:additionalZones",), _known_zones),
    (("storage:secrets", "tpu:slices[].secrets"), _secrets),
    (
        (
            "gcp:project",
            "network:cloudNat",
            "network:existingNetwork",
            "storage:repositories",
            "tpu:slices[].image",
        ),
        _images,
    ),
    (("tpu:slices[].name",), _unique_names),
    (("tpu:slices[].count", "tpu:slices[].firstWorkerId"), _unique_nodes),
    (("tpu:slices[].count", "tpu:slices[].multislice", "tpu:slices[].run"), _one_writer),
    (("gcp:project", "storage:bucketName", "tpu:slices[].run"), _mounted),
    (("data:snapshot", "storage:bucketName", "tpu:slices[].run"), _on_disk),
    (("tpu:barrierTimeoutS",), _barrier),
    (HOSTS, _together),
    (("tpu:code",), _own_code),
    (("fleet:heartbeatTimeoutS", "tpu:barrierTimeoutS"), _silence),
)
