"""What a run costs: predicted, at most, and by the hour of each of its parts.

https://cloud.google.com/dataproc-serverless/pricing: DCU-hours of vCPU and memory, per second, a minute at
least; shuffle storage by the disks' size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.catalog import CATALOG
from infra.errors import Problem
from infra.pipeline.settings import NO_TRAINING, PipelineSettings
from infra.settings.schema import Settings

# research: dataproc-serverless/pricing, read 2026-11-20, us-central1.
DCU_HOUR_USD = {"standard": 0.06, "premium": 0.089}
SHUFFLE_GB_HOUR_USD = 0.000054795
_DCU_PER_CORE, _DCU_PER_GB, _DCU_PER_MORE_GB, _GB_AT_FIRST_PRICE = 0.6, 0.1, 0.2, 8
CORE_S_PER_GIB = 400.0
"""Measured on a slower machine (docs/preprocess.md); a run's own price shows how far off it is."""
_START_MINUTES = 2.0
_BOOT_GB = 50
_MIB_PER_GB = 1024


def dcu(cores: int, memory_mib: float) -> float:
    """DCU of a node: 0.6 a core, 0.1 a GB of memory, and 0.2 for what is above 8 GB a core."""
    gb = memory_mib / _MIB_PER_GB
    first = min(gb, _GB_AT_FIRST_PRICE * cores)
    return cores * _DCU_PER_CORE + first * _DCU_PER_GB + (gb - first) * _DCU_PER_MORE_GB


def spark_hour_usd(desired: PipelineSettings, executors: int) -> float:
    """What a batch costs an hour with so many executors."""
    driver = dcu(desired.driver_cores, desired.driver_memory_mib + desired.driver_overhead_mib)
    one = dcu(desired.executor_cores, desired.executor_memory_mib + desired.executor_overhead_mib)
    disks = (1 + executors) * (desired.disk_gib + _BOOT_GB) * SHUFFLE_GB_HOUR_USD
    return (driver + executors * one) * DCU_HOUR_USD[desired.tier] + disks


def start_usd(desired: PipelineSettings) -> float:
    """What a batch costs until it works: driver and least executors, for two minutes."""
    return spark_hour_usd(desired, desired.min_executors) * _START_MINUTES / 60


def usd_per_gib(desired: PipelineSettings) -> float:
    """What a GiB of text costs, by the core-seconds that it takes, whatever the number of executors."""
    one = spark_hour_usd(desired, 1) - spark_hour_usd(desired, 0)
    return one / desired.executor_cores * CORE_S_PER_GIB / 3600


def training_hour_usd(settings: Settings) -> float | None:
    """What the slice costs an hour; None where its price isn't known, 0 without training."""
    desired = settings[PipelineSettings]
    if desired.train == NO_TRAINING:
        return 0.0
    kind = next(one for one in CATALOG.types if one.name == desired.train_slice)
    if desired.train != "fleet" or desired.train_zone is None:
        return None
    each = CATALOG.price(desired.train_zone)
    price = each.spot if desired.train_spot else each.on_demand
    return None if price is None else price * kind.chips


def most_usd(settings: Settings) -> float | None:
    """What a run costs at the very most: all executors until its time to live, training until its hours."""
    desired = settings[PipelineSettings]
    training = training_hour_usd(settings)
    if training is None:
        return None
    spark = spark_hour_usd(desired, desired.max_executors) * desired.ttl_minutes / 60
    return spark + training * desired.train_hours


def of_runs(settings: Settings) -> dict[str, Any]:
    """What the workflow computes a run's price of."""
    desired = settings[PipelineSettings]
    return {
        "dcu_hour_usd": DCU_HOUR_USD[desired.tier],
        "shuffle_gb_hour_usd": SHUFFLE_GB_HOUR_USD,
        "training_hour_usd": training_hour_usd(settings),
        "most_usd": most_usd(settings),
        "limit_usd": desired.max_run_cost_usd,
        "start_usd": start_usd(desired),
        "usd_per_gib": usd_per_gib(desired),
    }


def problems(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """More than `pipeline:maxRunCostUsd` allows, or an unknown price beside it."""
    desired = settings.get(PipelineSettings)
    if desired is None or desired.max_run_cost_usd is None:
        return
    most = most_usd(settings)
    if most is None:
        rule = f"a run that may cost ${desired.max_run_cost_usd:,} has prices that the book knows"
        yield Problem("pipeline:maxRunCostUsd", f"training by {desired.train}, of unknown price", rule,
                      "take it out, or train: fleet")  # fmt: skip
    elif most > desired.max_run_cost_usd:
        yield Problem(
            "pipeline:maxRunCostUsd", f"${desired.max_run_cost_usd:,}",
            f"a run costs ${most:,.2f} at most: {desired.max_executors} executors for "
            f"{desired.ttl_minutes} min, training for {desired.train_hours} h",
            "fewer executors, ttlMinutes or trainHours; or a larger limit",
        )  # fmt: skip
