"""Rules between the pipeline's settings, and with those of the layers that it reads."""

import ipaddress
from collections.abc import Iterator
from datetime import UTC, datetime

from infra import names, nodes
from infra.catalog import CATALOG, region_of
from infra.errors import InfraError, Problem
from infra.gke.settings import GkeSettings
from infra.network.settings import NetworkSettings
from infra.pipeline import places, price, schedule, spark
from infra.pipeline.settings import PipelineSettings
from infra.queue.settings import QueueSettings
from infra.settings.schema import Relation, Settings
from infra.storage.settings import StorageSettings
from infra.tpu.settings import TpuSettings

_ADDRESSES_KEPT = 4
_VERTEX_CHIPS = 8


def _runtime(settings: Settings, given: set[str]) -> Iterator[Problem]:
    yield from spark.runtime_problems(settings, datetime.now(UTC).date())


def _buckets(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired, storage = settings.get(PipelineSettings), settings[StorageSettings]
    if desired is None:
        return
    taken = {
        storage.bucket_name: "the checkpoint bucket",
        names.steps_bucket(settings): "the steps' bucket",
        names.controller_bucket(settings): "the fleet controller's bucket",
        str(storage.state_bucket_name): "the bucket of Pulumi's state",
    }
    for key, name in (
        ("rawBucketName", desired.raw_bucket_name),
        ("scratchBucketName", places.scratch_bucket(settings)),
    ):
        if name in taken:
            yield Problem(f"pipeline:{key}", f'"{name}"', f"that is {taken[name]}", "name another bucket")
        taken[name] = "the raw bucket"


def _place(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Spark stands in the bucket's region, in the subnet that network makes there."""
    if settings.get(PipelineSettings) is None:
        return
    region, network = places.region(settings), settings[NetworkSettings]
    if region not in nodes.regions(settings):
        rule = f"Spark runs beside the bucket, in {region}, and network makes subnets where slices may be"
        fix = f"tpu:zones: [a zone of {region}], then pulumi -C infra/network up -s {settings.environment}"
        yield Problem("pipeline", f"no zone of {region}", rule, fix)
        return
    text = names.subnet_ranges(settings, [region]).get(region)
    if text is None or network.existing_network:
        return
    hosts = sum(
        one.kind.hosts for one in nodes.nodes(settings) if region in {region_of(zone) for zone in one.places}
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
        if schedule.fires(desired.schedule, datetime.now(UTC).date()):
            return
        rule, fix = "a schedule that comes; this day doesn't", "correct day and month"
    except ValueError as error:
        rule = f"minute hour day month weekday, as crontab writes them; wrong: {error}"
        fix = 'write e.g. "30 2 * * mon-fri"'
    yield Problem("pipeline:schedule", f'"{desired.schedule}"', rule, fix)


def _training(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired = settings.get(PipelineSettings)
    if desired is None:
        return
    if desired.train == "fleet":
        yield from _fleet(settings, desired)
    elif desired.train == "jobset":
        yield from _jobset(settings, desired)
    elif desired.train == "vertex":
        chips = next(kind.chips for kind in CATALOG.types if kind.name == desired.train_slice)
        if chips > _VERTEX_CHIPS:
            rule = f"a custom job of several hosts is documented for no v6e: {_VERTEX_CHIPS} chips at most"
            fix = "train: fleet, or a smaller slice"
            yield Problem("pipeline:trainSlice", f'"{desired.train_slice}"', rule, fix)
        if desired.train_image is None:
            fix = f"tpu job image {settings.environment}, and its digest as pipeline:trainImage"
            yield Problem("pipeline:trainImage", "nothing", "a custom job runs in an image", fix)


def _fleet(settings: Settings, desired: PipelineSettings) -> Iterator[Problem]:
    covered = nodes.zones(settings)
    if desired.train_zone not in covered:
        found = f'"{desired.train_zone}"' if desired.train_zone else "nothing"
        rule = f"a slice stands where there is a subnet: {', '.join(covered) or 'in no zone'}"
        yield Problem("pipeline:trainZone", found, rule, "one of these, or add the zone to tpu:zones")
    if settings[TpuSettings].bundle is None:
        fix = f"tpu publish {settings.environment}"
        yield Problem("tpu:bundle", "nothing", "hosts that train on the shards install the bundle", fix)


def _jobset(settings: Settings, desired: PipelineSettings) -> Iterator[Problem]:
    from infra.jobs.submission import Request, submission  # imports the queue's client
    from infra.pipeline.handoff import command

    queue = settings.get(QueueSettings)
    if queue is None or settings.get(GkeSettings) is None:
        yield Problem("pipeline:train", '"jobset"', "the layers gke and queue are on", "write their settings")
        return
    member = f"serviceAccount:{places.account(settings, places.ORCHESTRATOR)}"
    team = next((one for one in queue.teams if one.name == desired.train_team), None)
    if team is None:
        known = ", ".join(one.name for one in queue.teams)
        found = f'"{desired.train_team}"' if desired.train_team else "nothing"
        yield Problem("pipeline:trainTeam", found, f"one of queue:teams: {known}", "write one of these")
        return
    if member not in team.members:
        rule = "the workflow submits as a member of the team"
        fix = f"add {member} to the members of {team.name}, then pulumi -C infra/queue up"
        yield Problem(f"queue:teams ({team.name})", f"{len(team.members)} members without it", rule, fix)
    try:
        submission(
            settings, Request(team.name, command(settings).split(), name="tokens", size=desired.train_slice)
        )
    except InfraError as error:
        yield Problem("pipeline:trainSlice", f'"{desired.train_slice}"', str(error), "mend what it names")


def _code(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired = settings.get(PipelineSettings)
    if desired and desired.existing_raw_bucket and "pipeline:rawNearlineDays" in given:
        fix = "remove it, or set it on the bucket"
        yield Problem("pipeline:rawNearlineDays", "a value beside existingRawBucket",
                      "a bucket that belongs to somebody else isn't changed", fix)  # fmt: skip


_SPARK = tuple(
    f"pipeline:{key}"
    for key in (
        "driverCores", "driverMemoryMib", "driverOverheadMib", "executorCores", "executorMemoryMib",
        "executorOverheadMib",
    )
)  # fmt: skip
_TRAIN = ("pipeline:train", "pipeline:trainRun", "pipeline:trainSlice", "pipeline:trainZone",
          "pipeline:trainTeam", "pipeline:trainImage")  # fmt: skip
RULES: tuple[Relation, ...] = (
    (("pipeline:runtimeVersion",), _runtime),
    (_SPARK, spark.memory_problems),
    (("pipeline:minExecutors", "pipeline:maxExecutors"), spark.executor_problems),
    (("pipeline:rawBucketName", "pipeline:scratchBucketName", "storage:bucketName"), _buckets),
    (
        ("storage:location", "network:subnetRanges", "pipeline:maxExecutors", "tpu:slices", "tpu:zones"),
        _place,
    ),
    (("pipeline:schedule",), _schedule),
    (
        (*_TRAIN, "tpu:slices", "tpu:zones", "tpu:bundle", "gke:tpuPools", "queue:teams", "queue:image"),
        _training,
    ),
    (
        (*_SPARK, *_TRAIN, "pipeline:maxExecutors", "pipeline:trainHours", "pipeline:ttlMinutes"),
        price.problems,
    ),
    (("pipeline:existingRawBucket", "pipeline:rawNearlineDays"), _code),
)
