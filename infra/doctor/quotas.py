"""Chips that slices need, against what the project may have of Cloud TPU.

https://cloud.google.com/service-usage/docs/reference/rest/v1beta1/services.consumerQuotaMetrics/list
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.catalog import region_of
from infra.doctor.report import UNKNOWN
from infra.gcp.client import Client
from infra.gcp.failures import Kind, fix_of
from infra.nodes import Node
from tools.doctor import MISSING, OK, OPTIONAL, Finding

UNLIMITED = -1
_METRICS = (
    "https://serviceusage.googleapis.com/v1beta1/projects/{}/services/tpu.googleapis.com/consumerQuotaMetrics"
)


@dataclass(frozen=True, order=True)
class Quota:
    """One of the limits that a v6e node counts for: all of them are enforced.

    Names are those of refusals and of `gcloud quotas`, as users have met them (marin-community/marin#1612);
    metrics those of Service Usage. A reservation counts for on demand
    (https://cloud.google.com/tpu/docs/consumption-options).
    """

    spot: bool
    dimension: str  # "region" or "zone"
    place: str

    @property
    def name(self) -> str:
        """As Google calls it when it refuses."""
        kind = "Preemptible" if self.spot else ""
        return f"TPUV6E{kind}PerProjectPer{self.dimension.capitalize()}ForTPUAPI"

    @property
    def metric(self) -> str:
        """As Service Usage lists it."""
        return f"tpu.googleapis.com/tpu-v6e{'-preemptible' if self.spot else ''}"


Limits = dict[tuple[str, str, str], int]
"""Chips, by metric, dimension and place, which is empty where a limit is that of all others."""


def listed(metrics: Iterable[Mapping[str, Any]]) -> Limits:
    """The limits that Service Usage lists."""
    return {
        (str(metric.get("metric")), unit[1], (bucket.get("dimensions") or {}).get(unit[1], "")):
        # A limit of 0 isn't written out: JSON made of protocol buffers leaves zeros away.
        int(bucket.get("effectiveLimit", 0))
        for metric in metrics
        for limit in metric.get("consumerQuotaLimits") or ()
        if (unit := re.fullmatch(r"1/\{project\}/\{(region|zone)\}", str(limit.get("unit"))))
        for bucket in limit.get("quotaBuckets") or ()
    }  # fmt: skip


def limit_of(quota: Quota, limits: Limits) -> int | None:
    """Chips; UNLIMITED; None where Google lists no such quota."""
    everywhere = limits.get((quota.metric, quota.dimension, ""))
    return limits.get((quota.metric, quota.dimension, quota.place), everywhere)


def check(google: Client, nodes: Sequence[Node], what: str) -> Iterator[Finding]:
    """A finding for each quota that some nodes count for, where they are and where they may be moved."""
    limits = listed(google.items(_METRICS.format(google.project), "metrics", {"view": "FULL"}))
    here: dict[Quota, int] = {}
    for node in nodes:
        for quota in _quotas(node, node.zone):
            here[quota] = here.get(quota, 0) + node.kind.chips
    # Where none is yet, what the largest of those that may be moved there needs.
    there: dict[Quota, int] = {}
    for node in nodes:
        for quota in {quota for zone in node.places for quota in _quotas(node, zone)} - here.keys():
            there[quota] = max(there.get(quota, 0), node.kind.chips)
    for some, why, short in (
        (here, "the settings ask for", MISSING),
        (there, "a slice that is moved here needs", OPTIONAL),
    ):
        for quota, chips in sorted(some.items()):
            limit, name = limit_of(quota, limits), f"{what} {quota.place}"
            asked = f"{quota.name}: {why} {chips} {'spot' if quota.spot else 'on-demand'} chips"
            if limit is None:
                yield Finding(name, UNKNOWN, f"{asked}, Google lists no such quota", fix_of(Kind.QUOTA))
            elif limit == UNLIMITED or chips <= limit:
                yield Finding(name, OK, f"{asked}, allowed are {'all' if limit == UNLIMITED else limit}")
            else:
                request = (
                    f"gcloud beta quotas preferences create --project={google.project} "
                    f"--service=tpu.googleapis.com --quota-id={quota.name} "
                    f"--dimensions={quota.dimension}={quota.place} --preferred-value={chips}"
                )
                fix = f"{fix_of(Kind.QUOTA)}; or: {request}"
                yield Finding(name, short, f"{asked}, allowed are {limit}", fix)


def _quotas(node: Node, zone: str) -> tuple[Quota, Quota]:
    return Quota(node.spot, "region", region_of(zone)), Quota(node.spot, "zone", zone)
