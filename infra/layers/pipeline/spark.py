"""The Spark batch of a run, as the Dataproc API takes it, and what the service's rules say of its settings.

The one place that says what a batch is.
https://cloud.google.com/dataproc-serverless/docs/reference/rest/v1/projects.locations.batches#Batch
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

from infra.errors import Problem
from infra.layers.network.names import subnet_id
from infra.layers.pipeline import facts, paths
from infra.layers.pipeline.names import scratch_bucket
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

_PREFIX = "spark."
_WARN_DAYS = 60


def batch(settings: Settings, run: str, raw: str) -> dict[str, Any]:
    """Return the body of batches.create.

    Args:
        settings: of the environment.
        run: name of the run.
        raw: URL of its text; whoever may upload chooses it, so it is one argument, whatever it contains.
    """
    desired, code = settings[PipelineSettings], paths.code_folder(settings)
    tokens = f"gs://{settings[StorageSettings].bucket_name}/{paths.TOKENS}/{run}"
    changes = (f"input.sources={raw}", f"output.url={tokens}", *desired.changes)
    return {
        "pysparkBatch": {
            "mainPythonFileUri": f"{code}/main.py",
            "args": [
                desired.config,
                *(word for change in changes for word in ("--set", change)),
            ],
            "pythonFileUris": [f"{code}/workload.zip"],
            "archiveUris": [f"{code}/packages.tar.gz#packages"],
        },
        "runtimeConfig": {"version": desired.runtime_version, "properties": properties(settings)},
        "environmentConfig": {
            "executionConfig": {
                "serviceAccount": paths.account(settings, paths.SPARK),
                "subnetworkUri": subnet_id(settings, paths.region(settings)),
                "networkTags": [paths.TAG],
                "ttl": f"{desired.ttl_minutes * 60}s",
                "stagingBucket": scratch_bucket(settings),
            }
        },
        "labels": paths.labels(settings),
    }  # fmt: skip


def properties(settings: Settings) -> dict[str, str]:
    """Spark's properties.

    Dataproc's own defaults are 1000 executors at most and 1000 shuffle partitions:
    https://cloud.google.com/dataproc-serverless/docs/concepts/properties
    """
    desired = settings[PipelineSettings]
    most = desired.max_executors
    values: dict[str, Any] = {
        "driver.cores": desired.driver_cores,
        "driver.memory": f"{desired.driver_memory_mib}m",
        "driver.memoryOverhead": f"{desired.driver_overhead_mib}m",
        "executor.cores": desired.executor_cores,
        "executor.memory": f"{desired.executor_memory_mib}m",
        "executor.memoryOverhead": f"{desired.executor_overhead_mib}m",
        "dynamicAllocation.enabled": str(desired.dynamic_allocation).lower(),
        "sql.shuffle.partitions": most * desired.executor_cores * 2,
        "dataproc.driver.compute.tier": desired.tier,
        "dataproc.executor.compute.tier": desired.tier,
        "dataproc.driver.disk.size": f"{desired.disk_gib}g",
        "dataproc.executor.disk.size": f"{desired.disk_gib}g",
        # The packages are unpacked beside the job; Spark and Python are the runtime's.
        "dataproc.driverEnv.PYTHONPATH": "packages",
        "executorEnv.PYTHONPATH": "packages",
        # A thread per core in every Python worker would be cores squared.
        "executorEnv.TOKENIZERS_PARALLELISM": "false",
    }
    if desired.dynamic_allocation:
        values |= {
            "dynamicAllocation.initialExecutors": desired.min_executors,
            "dynamicAllocation.minExecutors": desired.min_executors,
            "dynamicAllocation.maxExecutors": most,
        }
    else:
        values["executor.instances"] = most
    return {f"{_PREFIX}{key}": str(value) for key, value in sorted(values.items())}


def memory_problems(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Memory per core that no node of the service has."""
    desired = settings.get(PipelineSettings)
    for who in ("driver", "executor") if desired else ():
        mib = getattr(desired, f"{who}_memory_mib") + getattr(desired, f"{who}_overhead_mib")
        number = getattr(desired, f"{who}_cores")
        least, most = facts.LEAST_MIB_PER_CORE * number, facts.MOST_MIB_PER_CORE * number
        if not least <= mib <= most:
            yield Problem(
                f"pipeline:{who}MemoryMib", f"{mib} MiB with pipeline:{who}OverheadMib, for {number} cores",
                f"{facts.LEAST_MIB_PER_CORE} to {facts.MOST_MIB_PER_CORE} MiB a core: {least} to {most} here",
                "write less memory, or more cores" if mib > most else "write more memory, or fewer cores",
            )  # fmt: skip


def executor_problems(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """More executors at least than at most."""
    desired = settings.get(PipelineSettings)
    if desired and desired.dynamic_allocation and desired.min_executors > desired.max_executors:
        yield Problem(
            "pipeline:minExecutors", str(desired.min_executors),
            f"not more than pipeline:maxExecutors, {desired.max_executors}",
            "raise maxExecutors, or lower it",
        )  # fmt: skip


def runtime_problems(settings: Settings, today: date) -> Iterator[Problem]:
    """Yield a runtime whose support has ended, or that can't run our job."""
    desired = settings.get(PipelineSettings)
    runtime = facts.RUNTIMES.get(desired.runtime_version) if desired else None
    if runtime is None:
        return
    if runtime.ends < today:
        value, rule = f'"{runtime.name}"', f"its support ended on {runtime.ends} (read {facts.RUNTIMES_READ})"
    elif runtime.why:
        value, rule = f'"{runtime.name}"', runtime.why
    else:
        return
    good = [runtime.name for runtime in facts.RUNTIMES.values() if not runtime.why and runtime.ends >= today]
    fix = f"write {good[0]}" if good else "add a newer one to infra/layers/pipeline/facts.toml, and try it"
    yield Problem("pipeline:runtimeVersion", value, rule, fix)


def runtime_ends_soon(settings: Settings, today: date) -> str:
    """Return a warning two months before the end of the runtime's support; empty before."""
    runtime = facts.RUNTIMES[settings[PipelineSettings].runtime_version]
    if runtime.ends - today > timedelta(days=_WARN_DAYS):
        return ""
    return (
        f"pipeline:runtimeVersion: the support of {runtime.name} ends on {runtime.ends}; from then on it "
        "is refused\n    fix: try a newer one, with its end in infra/layers/pipeline/facts.toml"
    )
