"""Quotas: how many v6e chips the project may have, and the refusal of more nodes.

CPUs are listed alone; what GKE's chips count for, services/container refuses, and builds services/functions.

Kinds and names: https://cloud.google.com/tpu/docs/quota. The region's and the zone's are both enforced, and a
reservation counts against on demand (https://cloud.google.com/tpu/docs/consumption-options). Google keeps
them at 0 until a request for more; here it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from google_facts import builds, gke_pools
from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.services.tpu.catalog import ZONES
from rehearsal.cloud.services.tpu.node import Node

SERVICE = "tpu.googleapis.com"
COMPUTE = "compute.googleapis.com"
BUILD = "cloudbuild.googleapis.com"
_BRACES = str.maketrans("", "", "{}")
# Chips of each kind, or CPUs, in each place, unless a scenario sets another: this project's choice.
GRANTED = 8192


@dataclass(frozen=True)
class Quota:
    """A limit: its name in refusals, its metric, and its scope."""

    name: str
    metric: str
    dimension: str  # "region" or "zone"
    also: Mapping[str, str] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """As Service Usage writes it."""
        return "/".join(["1/{project}", *(f"{{{key}}}" for key in (self.dimension, *self.also))])

    def place(self, zone: str) -> str:
        """Return the region or zone that a node in `zone` counts for."""
        return zone if self.dimension == "zone" else zone.rpartition("-")[0]


ON_DEMAND = (
    Quota("TPUV6EPerProjectPerRegionForTPUAPI", f"{SERVICE}/tpu-v6e", "region"),
    Quota("TPUV6EPerProjectPerZoneForTPUAPI", f"{SERVICE}/tpu-v6e", "zone"),
)
REVOCABLE = (
    Quota("TPUV6EPreemptiblePerProjectPerRegionForTPUAPI", f"{SERVICE}/tpu-v6e-preemptible", "region"),
    Quota("TPUV6EPreemptiblePerProjectPerZoneForTPUAPI", f"{SERVICE}/tpu-v6e-preemptible", "zone"),
)
CPUS = (Quota("CPUS-per-project-region", f"{COMPUTE}/cpus", "region"),)
GKE = tuple(
    (Quota(known.name, known.metric, "region", known.family),)
    for known in (gke_pools.ON_DEMAND, gke_pools.PREEMPTIBLE)
)
BUILDS = (Quota(builds.TITLE, builds.METRIC, "region", builds.ALSO),)
OF_SERVICES = {SERVICE: (ON_DEMAND, REVOCABLE), COMPUTE: (CPUS, *GKE), BUILD: (BUILDS,)}


class Quotas:
    """The limits of one project."""

    def __init__(self, limits: dict[tuple[str, str], int] | None = None) -> None:
        """`limits`: the world's, which are filled."""
        self._limits = {} if limits is None else limits
        self._limits |= {
            (quota.name, quota.place(zone)): GRANTED
            for metrics in OF_SERVICES.values()
            for quotas in metrics
            for quota in quotas
            for zone in sorted(ZONES)
        }

    def set(self, name: str, place: str, chips: int) -> None:
        """Another limit from here on; ValueError if there is no such quota. Nodes that exist stay."""
        if (name, place) not in self._limits:
            names = ", ".join(sorted({known for known, _ in self._limits}))
            raise ValueError(f"no quota {name!r} in {place!r}; the names are {names}, in places with v6e")
        if chips < 0:
            raise ValueError(f"limit: {chips} must be 0 or more")
        self._limits[name, place] = chips

    def require(self, wanted: Node, nodes: Iterable[Node]) -> None:
        """Raise ApiError 429 unless `wanted` fits beside `nodes`, of which all count, in any state."""
        alike = [node for node in nodes if node.revocable == wanted.revocable]
        exceeded = []
        for quota in REVOCABLE if wanted.revocable else ON_DEMAND:
            place = quota.place(wanted.zone)
            used = sum(node.slice.chips for node in alike if quota.place(node.zone) == place)
            if used + wanted.slice.chips > self._limits[quota.name, place]:
                exceeded.append((quota, place))
        if exceeded:
            # Several are one sentence, each part with commas between, as users of the API have reported.
            names = ",".join(quota.name for quota, _ in exceeded)
            limits = ",".join(str(self._limits[quota.name, place]) for quota, place in exceeded)
            places = ",".join(f"{quota.dimension} {place}" for quota, place in exceeded)
            text = f"Quota limit '{names}' has been exceeded. Limit: {limits} in {places}."
            raise ApiError(429, "RESOURCE_EXHAUSTED", text)

    def metrics(self, consumer: str, service: str = SERVICE) -> list[JsonObject]:
        """Every ConsumerQuotaMetric of one of OF_SERVICES; `consumer` is `projects/NUMBER`."""
        metrics = []
        for quotas in OF_SERVICES[service]:
            metric = quotas[0].metric
            name = f"{consumer}/services/{service}/consumerQuotaMetrics/{quote(metric, safe='')}"
            limits = [
                {
                    "name": f"{name}/limits/{quote(quota.unit.translate(_BRACES)[1:], safe='')}",
                    "metric": metric,
                    "unit": quota.unit,
                    "quotaBuckets": [{}, *self._buckets(quota)],
                }
                for quota in quotas
            ]
            metrics.append({"name": name, "metric": metric, "unit": "1", "consumerQuotaLimits": limits})
        return metrics

    def _buckets(self, quota: Quota) -> Iterator[JsonObject]:
        """Return a limit for each place; 0 is left out, as JSON of protocol buffers omits zeros."""
        for (name, place), chips in self._limits.items():
            if name == quota.name:
                limit: JsonObject = {"effectiveLimit": str(chips)} if chips else {}
                yield {**limit, "dimensions": {quota.dimension: place, **quota.also}}
