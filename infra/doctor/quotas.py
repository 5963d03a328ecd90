"""Quotas that slices and layers need, compared with the project's limits.

https://cloud.google.com/service-usage/docs/reference/rest/v1beta1/services.consumerQuotaMetrics/list
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from infra.catalog import region_of
from infra.doctor.finding import MISSING, OK, OPTIONAL, Finding
from infra.doctor.report import UNKNOWN
from infra.google.client import Client
from infra.google.failures import Kind, fix_of
from infra.google.quotas import Quota, Use, chips
from infra.slices.nodes import Node

UNLIMITED = -1
_UNIT = re.compile(r"1/\{project\}(?:/\{\w+\})*?/\{(region|zone)\}(?:/\{\w+\})*")
_METRICS = "https://serviceusage.googleapis.com/v1beta1/projects/{}/services/{}/consumerQuotaMetrics"

Limits = dict[tuple[str, str, frozenset[tuple[str, str]]], int]
"""Limits by metric, its region or zone, and dimensions with values; without any: of all others."""


def listed(metrics: Iterable[Mapping[str, Any]]) -> Limits:
    """Parse the limits that Service Usage lists."""
    return {
        (str(metric.get("metric")), unit[1], frozenset((bucket.get("dimensions") or {}).items())):
        # A limit of 0 isn't written out: JSON made of protocol buffers leaves zeros away.
        int(bucket.get("effectiveLimit", 0))
        for metric in metrics
        for limit in metric.get("consumerQuotaLimits") or ()
        if (unit := _UNIT.fullmatch(str(limit.get("unit"))))
        for bucket in limit.get("quotaBuckets") or ()
    }  # fmt: skip


def limit_of(quota: Quota, limits: Limits) -> int | None:
    """Return a number; UNLIMITED; None where Google lists no such quota."""
    target = {(quota.dimension, quota.place), *quota.also}
    matching = [
        (len(dimensions), limit)
        for (metric, dimension, dimensions), limit in limits.items()
        if (metric, dimension) == (quota.metric, quota.dimension) and dimensions <= target
    ]
    return max(matching)[1] if matching else None


def check(google: Client, nodes: Sequence[Node], uses: Sequence[Use], what: str) -> Iterator[Finding]:
    """Yield a finding for each quota: of the nodes, at their zones and fallback zones, and of the layers."""
    current: dict[Quota, int] = {}
    for node in nodes:
        for quota in _quotas(node, node.zone):
            current[quota] = current.get(quota, 0) + node.kind.chips
    # Where none is yet, what the largest of those that may be moved there needs.
    fallback: dict[Quota, int] = {}
    for node in nodes:
        for quota in {quota for zone in node.places for quota in _quotas(node, zone)} - current.keys():
            fallback[quota] = max(fallback.get(quota, 0), node.kind.chips)
    needed = [
        *((Use(quota, count, "the settings ask for"), MISSING) for quota, count in sorted(current.items())),
        *((Use(quota, count, "a slice that is moved here needs"), OPTIONAL)
          for quota, count in sorted(fallback.items())),
        *((use, MISSING) for use in uses),
    ]  # fmt: skip
    limits: Limits = {}
    for service in sorted({use.quota.service for use, _ in needed}):
        limits |= listed(google.items(_METRICS.format(google.project, service), "metrics", {"view": "FULL"}))
    for use, short in needed:
        yield _compared(use, limit_of(use.quota, limits), short, google.project, what)


def _compared(use: Use, limit: int | None, short: str, project: str, what: str) -> Finding:
    quota, name = use.quota, f"{what} {use.quota.place}"
    required = f"{quota.name}: {use.why} {use.amount} {quota.unit}"
    if limit is None:
        return Finding(name, UNKNOWN, f"{required}, Google lists no such quota", fix_of(Kind.QUOTA))
    if limit == UNLIMITED or use.amount <= limit:
        return Finding(name, OK, f"{required}, allowed are {'all' if limit == UNLIMITED else limit}")
    dimensions = ",".join(f"{key}={value}" for key, value in ((quota.dimension, quota.place), *quota.also))
    if quota.fix:
        return Finding(name, short, f"{required}, allowed are {limit}", quota.fix)
    request = (
        f"gcloud beta quotas preferences create --project={project} "
        f"--service={quota.service} --quota-id={quota.name} "
        f"--dimensions={dimensions} --preferred-value={use.amount}"
    )
    return Finding(name, short, f"{required}, allowed are {limit}", f"{fix_of(Kind.QUOTA)}; or: {request}")


def _quotas(node: Node, zone: str) -> tuple[Quota, Quota]:
    return chips("region", region_of(zone), spot=node.spot), chips("zone", zone, spot=node.spot)
