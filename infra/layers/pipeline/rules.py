"""Rules between the pipeline's settings, and with those of the layers that it reads."""

import ipaddress
import math
from collections.abc import Iterator
from datetime import UTC, datetime

from infra.catalog import region_of
from infra.errors import Problem
from infra.layers.network.names import subnet_ranges
from infra.layers.network.settings import NetworkSettings
from infra.layers.pipeline import changes, paths, price, schedule, spark
from infra.layers.pipeline.settings import NO_TRAINING, PipelineSettings
from infra.settings.schema import Relation, Settings
from infra.slices import nodes

_ADDRESSES_KEPT = 4
# https://cloud.google.com/workflows/quotas; of a look at a batch, and at training without a heartbeat; others
_MOST_STEPS, _BATCH_STEPS, _TRAINING_STEPS, _OTHER_STEPS = 100_000, 3, 10, 10_000


def _runtime(settings: Settings, given: set[str]) -> Iterator[Problem]:
    yield from spark.runtime_problems(settings, datetime.now(UTC).date())


def _place(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Spark stands in the bucket's region, in the subnet that network makes there."""
    if settings.get(PipelineSettings) is None:
        return
    region, network = paths.region(settings), settings[NetworkSettings]
    if region not in nodes.regions(settings):
        rule = f"Spark runs beside the bucket, in {region}, and network makes subnets where slices may be"
        fix = f"tpu:zones: [a zone of {region}], then tpu up {settings.environment} network"
        yield Problem("pipeline", f"no zone of {region}", rule, fix)
        return
    text = subnet_ranges(settings, [region]).get(region)
    if text is None or network.existing_network:
        return
    hosts = sum(
        node.kind.hosts
        for node in nodes.nodes(settings)
        if region in {region_of(zone) for zone in node.places}
    )
    room = ipaddress.IPv4Network(text).num_addresses - _ADDRESSES_KEPT - hosts
    executors = settings[PipelineSettings].max_executors
    if executors + 1 > room:
        yield Problem(
            "pipeline:maxExecutors", str(executors),
            f"each has an address of {text}, as the driver and {hosts} hosts have: {max(room - 1, 0)} fit",
            f"lower it, or give network:subnetRanges.{region} a larger range",
        )  # fmt: skip


def _schedule(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired = settings.get(PipelineSettings)
    if desired is None or desired.schedule is None:
        return
    try:
        if schedule.fires(desired.schedule):
            return
        rule, fix = "a schedule that comes; this day doesn't", "correct day and month"
    except ValueError as error:
        rule = f"minute hour day month weekday, as crontab writes them; wrong: {error}"
        fix = 'write e.g. "30 2 * * mon-fri"'
    yield Problem("pipeline:schedule", f'"{desired.schedule}"', rule, fix)


def _training(settings: Settings, given: set[str]) -> Iterator[Problem]:
    from infra.layers.pipeline.handoff import problems  # it imports the layers that train

    if PipelineSettings in settings.sections:
        yield from problems(settings)


def _steps(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """More looks than Google lets an execution take: it would end it without a word, and keep its slice."""
    desired = settings.get(PipelineSettings)
    if desired is None:
        return
    hours = 0 if desired.train == NO_TRAINING else desired.train_hours
    steps_s = desired.ttl_minutes * 60 * _BATCH_STEPS + hours * 3600 * _TRAINING_STEPS
    least_s = math.ceil(steps_s / (_MOST_STEPS - _OTHER_STEPS))
    if desired.poll_s < least_s:
        yield Problem(
            "pipeline:pollS", f"{desired.poll_s} beside ttlMinutes {desired.ttl_minutes}, trainHours {hours}",
            f"a workflow ends after {_MOST_STEPS:,} steps, and each look takes some",
            f"write {least_s} or more; or lower ttlMinutes or trainHours",
        )  # fmt: skip


def _code(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired = settings.get(PipelineSettings)
    if desired and desired.existing_raw_bucket and "pipeline:rawNearlineDays" in given:
        fix = "remove it, or set it on the bucket"
        yield Problem("pipeline:rawNearlineDays", "a value beside existingRawBucket",
                      "an existing bucket isn't changed", fix)  # fmt: skip


def _unused(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield values that nothing reads: their author expects that they do something."""
    desired = settings.get(PipelineSettings)
    if desired is None:
        return
    for key, used, beside in (
        ("timeZone", desired.schedule is not None, "pipeline:schedule"),
        ("trainZone", desired.train == "fleet", "train: fleet"),
        ("trainTeam", desired.train == "jobset", "train: jobset"),
        ("trainImage", desired.train == "vertex", "train: vertex"),
    ):
        if f"pipeline:{key}" in given and not used:
            rule = f"it is read with {beside} alone"
            yield Problem(f"pipeline:{key}", f"a value without {beside}", rule, f"remove it, or add {beside}")


_SPARK = tuple(
    f"pipeline:{key}"
    for key in (
        "driverCores", "driverMemoryMib", "driverOverheadMib", "executorCores", "executorMemoryMib",
        "executorOverheadMib",
    )
)  # fmt: skip
_TRAIN = ("pipeline:train", "pipeline:trainRun", "pipeline:trainSlice", "pipeline:trainZone",
          "pipeline:trainTeam", "pipeline:trainImage")  # fmt: skip
_TRAINS = ("storage:location", "tpu:slices", "tpu:slices[].run", "tpu:code")
RULES: tuple[Relation, ...] = (
    (("pipeline:runtimeVersion",), _runtime),
    (_SPARK, spark.memory_problems),
    (("pipeline:minExecutors", "pipeline:maxExecutors"), spark.executor_problems),
    (
        ("storage:location", "network:subnetRanges", "pipeline:maxExecutors", "tpu:slices", "tpu:zones"),
        _place,
    ),
    (("pipeline:schedule",), _schedule),
    (
        (*_TRAIN, *_TRAINS, "tpu:zones", "tpu:bundle", "gke:tpuPools", "queue:teams", "queue:image"),
        _training,
    ),
    (
        (*_SPARK, *_TRAIN, "pipeline:maxExecutors", "pipeline:trainHours", "pipeline:ttlMinutes"),
        price.problems,
    ),
    (("pipeline:existingRawBucket", "pipeline:rawNearlineDays"), _code),
    (("pipeline:schedule", "pipeline:train"), _unused),
    (("pipeline:changes",), changes.problems),
    (("pipeline:pollS", "pipeline:ttlMinutes", "pipeline:train", "pipeline:trainHours"), _steps),
)
