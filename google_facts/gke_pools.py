"""Facts about GKE's node pools with v6e chips, as typed values: `gke_pools.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from google_facts import table

_FACTS = table("gke_pools")
_POOL, _REQUEST = _FACTS["queued_pool"], _FACTS["queued_request"]
QUEUED_LABEL: str = _POOL["label"]
"""Label and taint of nodes of a queued pool."""
QUEUED_VALUE: str = _POOL["value"]
CLASS: str = _REQUEST["class"]
"""Provisioning class of requests for nodes of queued pools."""
TOPOLOGY: str = _REQUEST["topology"]
DURATION: str = _REQUEST["duration"]
"""Parameters of such requests."""
DURATION_ANNOTATION: str = _REQUEST["annotation"]
"""Annotation of a job that becomes the parameter DURATION."""
FLEX_START_ZONES: tuple[str, ...] = tuple(_FACTS["flex_start"]["zones"])
"""Zones that have v6e by flex-start."""
FLEX_START_MINOR: int = _FACTS["flex_start"]["first_minor"]
"""First minor version of Kubernetes with TPUs by flex-start."""


@dataclass(frozen=True)
class ChipQuota:
    """A quota of chips in a region.

    Attributes:
        name: as the Cloud Quotas API calls it.
        refused_as: as refusals do.
        metric: as Service Usage lists it.
        family: dimension beside the region, with its value; none where the metric is of v6e alone.
    """

    name: str
    refused_as: str
    metric: str
    family: Mapping[str, str] = field(default_factory=dict)


def _quota(block: str) -> ChipQuota:
    return ChipQuota(**{key: value for key, value in _FACTS[block].items() if key not in ("source", "read")})


ON_DEMAND, PREEMPTIBLE = _quota("on_demand"), _quota("preemptible")
