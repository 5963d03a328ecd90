"""Rules between the pipeline's settings, and with those of the layers that it reads."""

import ipaddress
from collections.abc import Iterator
from datetime import UTC, datetime

from infra.catalog import region_of
from infra.errors import Problem
from infra.layers.network.names import subnet_ranges
from infra.layers.network.settings import NetworkSettings
from infra.layers.pipeline import changes, paths, price, spark
from infra.layers.pipeline.settings import NO_TRAINING, PipelineSettings
from infra.settings.schema import Relation, Settings
from infra.settings.unread import ReadWith, unread
from infra.slices import nodes

_ADDRESSES_KEPT = 4


def _runtime(settings: Settings, given: set[str]) -> Iterator[Problem]:
    yield from spark.runtime_problems(settings, datetime.now(UTC).date())


def _place(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Spark stands in the bucket's region, in the subnet that network makes there."""
    if settings.get(PipelineSettings) is None:
        return
    region, network = paths.region(settings), settings[NetworkSettings]
    if region not in nodes.regions(settings):
        rule = f"Spark runs beside the bucket, in {region}, and network makes subnets where slices may be"
        near = next((zone for zone in nodes.known_zones(settings) if region_of(zone) == region), "")
        fix = (
            f"write tpu:zones: [{near or f'a zone of {region}'}], then tpu up {settings.environment} network"
        )
        yield Problem("tpu:zones", f"no zone of {region}", rule, fix)
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


def _training(settings: Settings, given: set[str]) -> Iterator[Problem]:
    from infra.layers.pipeline.handoff import problems  # it imports the layers that train

    if PipelineSettings in settings.sections:
        yield from problems(settings)


def _domain(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired = settings.get(PipelineSettings)
    if desired and "." in desired.raw_bucket_name and not desired.existing_raw_bucket:
        yield Problem(
            "pipeline:rawBucketName", f'"{desired.raw_bucket_name}"',
            "a bucket that is named by a domain is made by who has verified the domain",
            "make it, and add pipeline:existingRawBucket: true; or write a name without dots",
        )  # fmt: skip


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
    (
        (*_TRAIN, *_TRAINS, "tpu:zones", "tpu:bundle", "gke:tpuPools", "queue:teams", "queue:image"),
        _training,
    ),
    (
        (*_SPARK, *_TRAIN, "pipeline:maxExecutors", "pipeline:trainHours", "pipeline:ttlMinutes"),
        price.problems,
    ),
    (
        (*_TRAIN, "fleet:dollarsPerHour", "tpu:slices", "tpu:zones", "gke:tpuPools"),
        price.budget_problems,
    ),
    (("pipeline:rawBucketName", "pipeline:existingRawBucket"), _domain),
    unread(
        "pipeline",
        PipelineSettings,
        ReadWith(("trainZone", "trainSpot"), "train: fleet", lambda item: item.train == "fleet"),
        ReadWith(("trainTeam",), "train: jobset", lambda item: item.train == "jobset"),
        ReadWith(("trainImage",), "train: vertex", lambda item: item.train == "vertex"),
        ReadWith(
            ("trainRun", "trainSlice", "trainHours"),
            "train: fleet, jobset or vertex",
            lambda item: item.train != NO_TRAINING,
        ),
        ReadWith(("minExecutors",), "dynamicAllocation: true", lambda item: item.dynamic_allocation),
        ReadWith(("rawNearlineDays",), "existingRawBucket: false", lambda item: not item.existing_raw_bucket),
    ),
    (("pipeline:changes",), changes.problems),
)
