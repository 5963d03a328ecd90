"""Rules of the serverless Spark service for a batch's runtime and properties, and usage of its nodes.

https://cloud.google.com/dataproc-serverless/docs/concepts/properties, and
https://cloud.google.com/dataproc-serverless/docs/concepts/versions/dataproc-serverless-versions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_VERSION = "2.3"
# The last day on which each runtime is supported, as read on 2026-11-20; older ones aren't any more.
SUPPORTED_UNTIL = {"2.2": "2026-09-30", "2.3": "2027-11-26", "3.0": "2027-01-31"}
_CORES = (4, 8, 16)
_MEMORY_MIB_PER_CORE = (1024, 7424)
_DEFAULT_MEMORY, _OVERHEAD_OF_PYSPARK, _LEAST_OVERHEAD_MIB = "9600m", 0.4, 384
_LEAST_DISK_GIB, _BOOT_DISK_GIB, _DEFAULT_DISK_GIB = 250, 50, 400
_EXECUTORS = (2, 2000)
_UNITS_MIB = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024, "": 1}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
# The service chooses these.
_REFUSED = ("spark.master", "spark.yarn.", "spark.shuffle.service.", "spark.hadoop.yarn.")
# DCU of one vCPU, and of one GiB up to 8 per vCPU and above: https://cloud.google.com/dataproc-serverless/pricing
_DCU_PER_CORE, _DCU_PER_GIB, _DCU_PER_GIB_ABOVE, _GIB_PER_CORE = 0.6, 0.1, 0.2, 8
_LEAST_RUN_S = 60


@dataclass(frozen=True)
class SparkNode:
    """The driver, or one executor."""

    cores: int
    memory_mib: float
    disk_gib: float

    @property
    def dcu(self) -> float:
        """Data compute units."""
        gib = self.memory_mib / 1024
        within = min(gib, _GIB_PER_CORE * self.cores)
        return self.cores * _DCU_PER_CORE + within * _DCU_PER_GIB + (gib - within) * _DCU_PER_GIB_ABOVE


def size_mib(text: str) -> float | None:
    """MiB of `9600m` or `250g`; None for what is no size."""
    size = _SIZE.fullmatch(text.strip())
    return float(size[1]) * _UNITS_MIB[size[2].lower()] if size else None


def problems(version: str, properties: Mapping[str, str], today: str) -> list[str]:
    """Return the problems of a batch, on a day (`2026-11-20`)."""
    short = ".".join(version.split(".")[:2])
    problems = []
    if short not in SUPPORTED_UNTIL:
        problems.append(
            f"runtime version '{version}' is not supported; there are {', '.join(SUPPORTED_UNTIL)}"
        )
    elif today > SUPPORTED_UNTIL[short]:
        problems.append(f"runtime version '{version}' is not supported since {SUPPORTED_UNTIL[short]}")
    for name in properties:
        if name.startswith(_REFUSED) or not name.startswith(("spark.", "dataproc.")):
            problems.append(f"property '{name}' can't be set for a batch")
    for role in ("driver", "executor"):
        problems += _of_node(role, properties)
    for name in ("spark.executor.instances", *(f"spark.dynamicAllocation.{bound}" for bound in _BOUNDS)):
        low, high = _EXECUTORS
        if name in properties and not (properties[name].isdigit() and low <= int(properties[name]) <= high):
            problems.append(f"property '{name}' must be from {low} to {high}, not '{properties[name]}'")
    return problems


_BOUNDS = ("initialExecutors", "minExecutors", "maxExecutors")


def _of_node(role: str, properties: Mapping[str, str]) -> list[str]:
    problems = []
    cores = properties.get(f"spark.{role}.cores", "4")
    if cores not in map(str, _CORES):
        problems.append(f"property 'spark.{role}.cores' must be one of {_CORES}, not '{cores}'")
    for name in (f"spark.{role}.memory", f"spark.{role}.memoryOverhead", f"spark.dataproc.{role}.disk.size"):
        if name in properties and size_mib(properties[name]) is None:
            problems.append(f"property '{name}' must be a size such as 9600m, not '{properties[name]}'")
    if problems:
        return problems
    node = node_of(role, properties)
    low, high = _MEMORY_MIB_PER_CORE
    if not low <= node.memory_mib / node.cores <= high:
        problems.append(
            f"memory and overhead of the {role} are {node.memory_mib / node.cores:.0f}m per core; "
            f"they must be from {low}m to {high}m"
        )
    if node.disk_gib < _LEAST_DISK_GIB:
        problems.append(f"property 'spark.dataproc.{role}.disk.size' must be at least {_LEAST_DISK_GIB}g")
    return problems


def node_of(role: str, properties: Mapping[str, str]) -> SparkNode:
    """Return the driver's node or an executor's, of properties that are fine."""
    memory = size_mib(properties.get(f"spark.{role}.memory", _DEFAULT_MEMORY)) or 0.0
    given = properties.get(f"spark.{role}.memoryOverhead")
    overhead = size_mib(given) if given else max(memory * _OVERHEAD_OF_PYSPARK, _LEAST_OVERHEAD_MIB)
    disk = properties.get(f"spark.dataproc.{role}.disk.size")
    gib = (size_mib(disk) or 0.0) / 1024 if disk else float(_DEFAULT_DISK_GIB)
    return SparkNode(int(properties.get(f"spark.{role}.cores", "4")), memory + (overhead or 0.0), gib)


def usage(properties: Mapping[str, str], run_s: float) -> dict[str, str]:
    """`approximateUsage` of a run with the executors that it begins with; it counts as a minute at least."""
    dynamic = properties.get("spark.dynamicAllocation.enabled", "true") == "true"
    name = "spark.dynamicAllocation.initialExecutors" if dynamic else "spark.executor.instances"
    executors, seconds = int(properties.get(name, "2")), max(run_s, _LEAST_RUN_S)
    driver, executor = node_of("driver", properties), node_of("executor", properties)
    dcu = driver.dcu + executors * executor.dcu
    disk_gib = driver.disk_gib + executors * executor.disk_gib + (1 + executors) * _BOOT_DISK_GIB
    return {
        "milliDcuSeconds": str(math.ceil(dcu * 1000 * seconds)),
        "shuffleStorageGbSeconds": str(math.ceil(disk_gib * seconds)),
    }
