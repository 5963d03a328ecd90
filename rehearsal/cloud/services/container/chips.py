"""Quotas that the chips of node pools count for.

They are Compute Engine's, not the TPU API's: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus.
Flex-start counts for the quota of spot, and for that of on demand where it doesn't fit. The words of a
creation are those of kubernetes-sigs/sig-storage-local-static-provisioner#526, of a scale-up those of
huggingface/Google-Cloud-Containers#126.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from google_facts import gke_pools
from google_facts.gke_pools import ChipQuota
from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.world import World

_MACHINE = re.compile(r"ct6e-standard-([148])t")
_ON_DEMAND, _SPOT, _FLEX_START = "on demand", "spot", "flex-start"
_OF: dict[str, tuple[ChipQuota, ...]] = {
    _ON_DEMAND: (gke_pools.ON_DEMAND,),
    _SPOT: (gke_pools.PREEMPTIBLE,),
    _FLEX_START: (gke_pools.PREEMPTIBLE, gke_pools.ON_DEMAND),
}


def _kind(pool: JsonObject) -> str | None:
    """Return the way in which a pool gets its chips; None without any, or by a reservation."""
    config = pool.get("config") or {}
    affinity = (config.get("reservationAffinity") or {}).get("consumeReservationType")
    if not _MACHINE.fullmatch(config.get("machineType", "")) or affinity == "SPECIFIC_RESERVATION":
        return None
    return _SPOT if config.get("spot") else _FLEX_START if config.get("flexStart") else _ON_DEMAND


def _chips(pool: JsonObject, nodes: int) -> int:
    match = _MACHINE.fullmatch(pool["config"]["machineType"])
    return nodes * int(match[1]) if match else 0


def _others(world: World, name: str, region: str) -> Iterator[tuple[JsonObject, int]]:
    """Yield the other pools of a region, with the number of their nodes."""
    for full, pool in world.directory.items():
        if "/nodePools/" not in full or full == name or full.split("/")[3] != region:
            continue
        nodes = sum(
            world.directory[group]["targetSize"]
            for url in pool.get("instanceGroupUrls", ())
            if (group := f"projects/{url.partition('/projects/')[2]}") in world.directory
        )
        yield pool, nodes


def exceeded(world: World, name: str, pool: JsonObject, nodes: int) -> str:
    """Return Compute Engine's refusal of a pool's nodes; empty where its chips fit."""
    region, kind = name.split("/")[3], _kind(pool)
    if kind is None or not nodes:
        return ""
    for quota in _OF[kind]:
        used = sum(
            _chips(other, count)
            for other, count in _others(world, name, region)
            if (of := _kind(other)) and _OF[of][0] == quota
        )
        limit = world.limits.get((quota.name, region))
        if limit is None or used + _chips(pool, nodes) <= limit:
            return ""
    quota = _OF[kind][0]
    limit = world.limits[quota.name, region]
    return f"Quota '{quota.refused_as}' exceeded.  Limit: {limit}.0 in region {region}."


async def require(world: World, name: str, pool: JsonObject, nodes: int) -> None:
    """Raise ApiError 429, as the operation's error, unless a new pool's chips fit."""
    if why := exceeded(world, name, pool, nodes):
        cluster, id_ = name.split("/")[5], name.rpartition("/")[2]
        text = (
            "Insufficient quota to satisfy the request: Not all instances running in IGM after 26.6s. "
            f"Expected {nodes}, running 0, transitioning {nodes}. Current errors: [GCE_QUOTA_EXCEEDED]: "
            f"Instance 'gke-{cluster}-{id_}-0' creation failed: {why}"
        )
        raise ApiError(429, "RESOURCE_EXHAUSTED", text)
