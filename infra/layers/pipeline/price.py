"""Price of a run: predicted by the amount of text, maximum, and by the hour of each part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.catalog import CATALOG
from infra.catalog.book import BOOK
from infra.errors import Problem
from infra.layers.pipeline import paths
from infra.layers.pipeline.settings import NO_TRAINING, PipelineSettings
from infra.layers.pipeline.spark_price import SparkNode, predicted
from infra.settings.schema import ADDED_SLICES, FleetSettings, Settings
from infra.slices.price import at_most

CORE_S_PER_GIB = 400.0
"""Assumed, not measured: a GiB is 270 million tokens of 4 bytes, a core tokenizes 1.2 million a second, and
reading, deduplication and shuffling take as long again. `tpu pipeline cost` shows how far off it is.
"""
_START_H = 2 / 60  # until the executors are there
_BOOT_GIB = 50  # of each node, billed with its disk
_MIB_PER_GB = 1024


def _nodes(desired: PipelineSettings) -> tuple[SparkNode, SparkNode]:
    """Return the driver and an executor, as they are billed."""
    disk = desired.disk_gib + _BOOT_GIB
    driver = (desired.driver_memory_mib + desired.driver_overhead_mib) / _MIB_PER_GB
    executor = (desired.executor_memory_mib + desired.executor_overhead_mib) / _MIB_PER_GB
    return SparkNode(desired.driver_cores, driver, disk), SparkNode(desired.executor_cores, executor, disk)


def spark_usd(settings: Settings, executors: int, hours: float) -> float | None:
    """Return the price of a batch by executors and hours; None where a price isn't known."""
    desired = settings[PipelineSettings]
    return predicted(*_nodes(desired), executors, hours, desired.tier, paths.region(settings)).dollars


def start_usd(settings: Settings) -> float | None:
    """Return the price of a batch's start."""
    return spark_usd(settings, settings[PipelineSettings].min_executors, _START_H)


def usd_per_gib(settings: Settings) -> float | None:
    """Return the price of a GiB of text after the start."""
    with_, without = spark_usd(settings, 1, 1), spark_usd(settings, 0, 1)
    if with_ is None or without is None:
        return None
    return (with_ - without) / settings[PipelineSettings].executor_cores * CORE_S_PER_GIB / 3600


def training_hour_usd(settings: Settings) -> float | None:
    """Return the hourly price of training; None where it isn't known, 0 without training."""
    desired = settings[PipelineSettings]
    if desired.train == NO_TRAINING:
        return 0.0
    kind = next(kind for kind in CATALOG.types if kind.name == desired.train_slice)
    if desired.train == "jobset":
        from infra.layers.pipeline.handoff import pool_usd  # it imports the layers that train

        return pool_usd(settings, kind)
    if desired.train != "fleet" or desired.train_zone is None:
        return None
    chip = CATALOG.price(desired.train_zone)
    price = chip.spot if desired.train_spot else chip.on_demand
    return None if price is None else price * kind.chips


def most_usd(settings: Settings) -> float | None:
    """Return a run's maximum price: all executors until the TTL, training for `trainHours`."""
    desired = settings[PipelineSettings]
    training = training_hour_usd(settings)
    spark = spark_usd(settings, desired.max_executors, desired.ttl_minutes / 60)
    return None if training is None or spark is None else spark + training * desired.train_hours


@dataclass(frozen=True)
class RunPrices:
    """Prices that a run is recorded with; None where the book has none.

    Attributes:
        dcu_hour_usd: of a data compute unit.
        shuffle_gib_hour_usd: of a GiB of shuffle storage.
        training_hour_usd: of training.
        most_usd: maximum of a run.
        limit_usd: `pipeline:maxRunCostUsd`.
        start_usd: of a batch's start.
        usd_per_gib: of a GiB of text after that.
    """

    dcu_hour_usd: float | None
    shuffle_gib_hour_usd: float | None
    training_hour_usd: float | None
    most_usd: float | None
    limit_usd: float | None
    start_usd: float | None
    usd_per_gib: float | None

    def spark_usd(self, dcu_h: float, shuffle_gib_h: float) -> float | None:
        """Return the price of a batch by Google's figures."""
        if self.dcu_hour_usd is None or self.shuffle_gib_hour_usd is None:
            return None
        return dcu_h * self.dcu_hour_usd + shuffle_gib_h * self.shuffle_gib_hour_usd

    def training_usd(self, hours: float) -> float | None:
        """Return the price of training."""
        if not hours:
            return 0.0
        return None if self.training_hour_usd is None else hours * self.training_hour_usd

    def predicted_usd(self, gib: float) -> float | None:
        """Return the price of the shards of so much text."""
        if self.start_usd is None or self.usd_per_gib is None:
            return None
        return self.start_usd + gib * self.usd_per_gib


def of_runs(settings: Settings) -> RunPrices:
    """Return the prices that runs are recorded with."""
    desired, region = settings[PipelineSettings], paths.region(settings)
    return RunPrices(
        dcu_hour_usd=BOOK[f"spark.dcu.{desired.tier}"].price(region).dollars,
        shuffle_gib_hour_usd=BOOK[f"spark.shuffle.{desired.tier}"].price(region).dollars,
        training_hour_usd=training_hour_usd(settings),
        most_usd=most_usd(settings),
        limit_usd=desired.max_run_cost_usd,
        start_usd=start_usd(settings),
        usd_per_gib=usd_per_gib(settings),
    )


def problems(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """More than `pipeline:maxRunCostUsd` allows, or an unknown price beside it."""
    desired = settings.get(PipelineSettings)
    if desired is None or desired.max_run_cost_usd is None:
        return
    most = most_usd(settings)
    if most is None:
        rule = f"a run that may cost ${desired.max_run_cost_usd:,} has prices that the book knows"
        value = f"tier {desired.tier} with training by {desired.train}, of unknown price"
        yield Problem(
            "pipeline:maxRunCostUsd",
            value,
            rule,
            "take it out, or tier: standard and train: fleet or jobset",
        )
    elif most > desired.max_run_cost_usd:
        yield Problem(
            "pipeline:maxRunCostUsd", f"${desired.max_run_cost_usd:,}",
            f"a run costs ${most:,.2f} at most: {desired.max_executors} executors for "
            f"{desired.ttl_minutes} min, training for {desired.train_hours} h",
            "fewer executors, ttlMinutes or trainHours; or a larger limit",
        )  # fmt: skip


def budget_problems(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield a limit that holds the slices of the file, and not one of the pipeline beside them."""
    desired, limit = settings.get(PipelineSettings), settings[FleetSettings].dollars_per_hour
    if desired is None or desired.train != "fleet" or limit is None or ADDED_SLICES in given:
        return
    training = training_hour_usd(settings)
    billed = sum(row.hourly or 0 for row in at_most(settings))
    if training is None:
        value, fix = f"${limit:,}", "another trainZone or trainSlice, or no limit"
        rule = f"no budget holds {desired.train_slice} in {desired.train_zone}, whose price isn't known"
    elif billed <= limit < billed + training:
        value, fix = f"${limit:,}", "a smaller trainSlice, fewer slices, or a larger limit"
        rule = f"${billed:,.2f} an hour for the file's slices and ${training:,.2f} for one of the pipeline"
    else:
        return
    yield Problem("fleet:dollarsPerHour", value, rule, fix)
