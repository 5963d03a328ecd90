"""Price of a serverless Spark batch: predicted from its settings, or computed from its measured usage.

A vCPU counts 0.6 DCU; a GB of memory, overhead included, 0.1 DCU up to 8 GB for each vCPU and 0.2 above.
DCUs and shuffle storage are billed by the second, for a minute at least (premium shuffle storage for five).
Shuffle storage is all disks of all nodes.
https://cloud.google.com/dataproc-serverless/pricing
https://cloud.google.com/dataproc-serverless/docs/reference/rest/v1/projects.locations.batches#UsageMetrics
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.catalog.book import BOOK
from infra.prices.run import RunPrice

STANDARD, PREMIUM = TIERS = ("standard", "premium")
_DCU_PER_VCPU, _DCU_PER_GB, _DCU_PER_FURTHER_GB = 0.6, 0.1, 0.2
_GB_PER_VCPU = 8  # at the lower rate
_LEAST_S = {"dcu": 60, f"shuffle.{STANDARD}": 60, f"shuffle.{PREMIUM}": 300}
_S_PER_HOUR = 3600


@dataclass(frozen=True)
class SparkNode:
    """The driver, or an executor: vCPUs, memory with its overhead (GB), and all its disks (GiB).

    By default 4 vCPUs and 16 GB, as Google's page counts them, and the smallest disks: 250 GiB, and 50 GiB to
    boot from, which are billed as shuffle storage, too.
    """

    cores: int = 4
    memory_gb: float = 16.0
    disk_gib: float = 250.0 + 50.0

    @property
    def dcu(self) -> float:
        """Dataproc Compute Units."""
        further = max(0.0, self.memory_gb - self.cores * _GB_PER_VCPU)
        memory = _DCU_PER_GB * (self.memory_gb - further) + _DCU_PER_FURTHER_GB * further
        return _DCU_PER_VCPU * self.cores + memory


def predicted(
    driver: SparkNode, executor: SparkNode, executors: int, hours: float, tier: str, region: str
) -> RunPrice:
    """Return the list price of a batch that has a driver and so many executors for so many hours.

    With dynamic allocation, the most that it can cost is that of all executors that it may have, for all of
    its time to live.
    """
    seconds = hours * _S_PER_HOUR
    dcu_s = max(seconds, _LEAST_S["dcu"]) * (driver.dcu + executors * executor.dcu)
    shuffle_s = max(seconds, _LEAST_S[f"shuffle.{tier}"]) * (driver.disk_gib + executors * executor.disk_gib)
    return _price(dcu_s / _S_PER_HOUR, shuffle_s / _S_PER_HOUR, tier, region)


def _price(dcu_hours: float, gib_hours: float, tier: str, region: str) -> RunPrice:
    total, checked = 0.0, True
    for kind, quantity in (("dcu", dcu_hours), ("shuffle", gib_hours)):
        entry = BOOK[f"spark.{kind}.{tier}"]
        price = entry.price(region)
        if not quantity:
            continue
        if price.dollars is None:
            what = f"no price of {entry.service}, {entry.what}, in {region} is known"
            return RunPrice(None, what, f"write it into infra/catalog/prices.toml, {entry.id}")
        total += quantity * price.dollars
        checked = checked and price.checked
    why = f"{dcu_hours:,.2f} DCU-hours and {gib_hours:,.0f} GiB-hours of shuffle storage, {tier}"
    return RunPrice(total, why, checked=checked)
