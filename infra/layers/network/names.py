"""Names and ids that the network layer owns and other layers read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from infra.layers.network.settings import NetworkSettings
from infra.settings.schema import Settings

# The TPU API documents network tags, and only these, as what firewall rules match on a node.
SLICE_TAG = "tpu-slice"
CLUSTER_LABEL = "slurm"
"""Label of the nodes of a Slurm cluster with its name, by which a destroy finds them."""
_CLUSTER = re.compile(r"[a-z][-a-z0-9]{0,51}")


def host_tag(cluster: str) -> str:
    """Return the network tag of a Slurm cluster's hosts, which they have beside the slices' one."""
    return f"{cluster}-host"


def slice_tags(labels: Mapping[str, str]) -> list[str]:
    """Return the network tags of a node with these labels."""
    cluster = labels.get(CLUSTER_LABEL, "")
    return [SLICE_TAG, *([host_tag(cluster)] if _CLUSTER.fullmatch(cluster) else [])]


# Source addresses of Identity-Aware Proxy: https://cloud.google.com/iap/docs/using-tcp-forwarding
IAP_RANGE = "35.235.240.0/20"


# A range for each region that is known to have v6e, so that a new region never moves another's.
# Each /20 holds 4,092 hosts.
DEFAULT_RANGES: Mapping[str, str] = MappingProxyType(
    {
        "us-central1": "10.64.0.0/20",
        "us-east1": "10.64.16.0/20",
        "us-east5": "10.64.32.0/20",
        "europe-west4": "10.64.48.0/20",
        "asia-northeast1": "10.64.64.0/20",
        "us-south1": "10.64.80.0/20",
    }
)


def network_id(settings: Settings) -> str:
    """Return the network's id: the created or the existing one's."""
    created = f"projects/{settings.project}/global/networks/{settings[NetworkSettings].name}"
    return settings[NetworkSettings].existing_network or created


def subnet_name(settings: Settings, region: str) -> str:
    """Return the name of the created subnet in a region."""
    return f"{settings[NetworkSettings].name}-{region}"


def subnet_id(settings: Settings, region: str) -> str:
    """Return the subnet's id in a region: the created or the existing one's."""
    if settings[NetworkSettings].existing_network:
        return settings[NetworkSettings].existing_subnets[region]
    return f"projects/{settings.project}/regions/{region}/subnetworks/{subnet_name(settings, region)}"


def subnet_ranges(settings: Settings, regions: Iterable[str]) -> dict[str, str]:
    """Return region → address range of created subnets; regions without a range are left out."""
    ranges = {**DEFAULT_RANGES, **settings[NetworkSettings].subnet_ranges}
    return {region: ranges[region] for region in regions if region in ranges}
