"""Clusters."""

from __future__ import annotations

import asyncio
import hashlib
import re
from functools import partial
from types import MappingProxyType

from rehearsal.cloud.collections import Change, Collection, Verb, fingerprint
from rehearsal.cloud.collections.checks import acts_as, network, subnetwork
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.core.world import World
from rehearsal.cloud.services.container.pools import UPDATE, add_pool, forget_groups, set_fields

_CLUSTER = "container.projects.locations.clusters"
_NAME = r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
# https://cloud.google.com/kubernetes-engine/docs/release-notes, a copy of about September 2026: the version
# of a channel where a request names none, or the first numbers of this one.
_DEFAULTS = MappingProxyType(
    {
        "RAPID": "1.36.4-gke.1082000",
        "REGULAR": "1.35.7-gke.1222000",
        "STABLE": "1.35.6-gke.1250000",
        "EXTENDED": "1.35.6-gke.1250000",
    }
)
_VERSION = re.compile(r"1\.(\d+)(?:\.\d+)?(-gke\.\d+)?")
_NO_CHANNEL = "1.35.7-gke.1222000"
_POLL_S = 0.1
_NETWORKS = {"network": network("network"), "subnetwork": subnetwork("subnetwork")}


def _check_cluster(change: Change) -> None:
    """Complete a new cluster, and take its node pools out of it: they are resources of their own."""
    body, place = change.body, change.name.split("/")[3]
    if change.old:
        return
    # Exactly one of node pools and a number of nodes for a default pool.
    pools, count = body.pop("nodePools", []), body.get("initialNodeCount", 0)
    autopilot = (body.get("autopilot") or {}).get("enabled")
    if pools and count:
        raise bad_request("Cluster.initial_node_count and Cluster.node_pools can't both be set.")
    if not pools and not count and not autopilot:
        raise bad_request("Cluster.initial_node_count must be greater than zero.")
    if autopilot:
        raise NotEmulatedError("An Autopilot cluster")
    # Zones: the location itself, or those of a region.
    known = (name.rpartition("/")[2] for name, _ in change.resources.below(_zones(change)))
    zones = [zone for zone in known if zone == place or zone.rpartition("-")[0] == place]
    for zone in body.get("locations", ()):
        if zone not in zones:
            raise bad_request(f"Zone {zone} is not in the cluster's location {place}.")
    version = _version(body.get("initialClusterVersion", ""), body.get("releaseChannel") or {})
    body |= {
        "location": place,
        "zone": place,
        "locations": body.get("locations") or zones,
        "currentMasterVersion": version,
        "initialClusterVersion": version,
        "defaultMaxPodsConstraint": body.get("defaultMaxPodsConstraint") or {"maxPodsPerNode": "110"},
        "labelFingerprint": _fingerprint(body),
    }
    _check_ranges(change)
    _give_endpoints(change, place)
    if change.world.control_planes is not None:
        _await_control_plane(change)
    first = body.get("nodeConfig")
    for pool in pools or [{"name": "default-pool", "initialNodeCount": count, "config": first or {}}]:
        change.finish.append(lambda pool=pool: add_pool(change, pool))  # type: ignore[misc]


def _await_control_plane(change: Change) -> None:
    """Let the creation wait until the control plane answers; a world has one control plane."""
    if any("/clusters/" in name and name.count("/") == 5 for name in change.world.directory):
        raise NotEmulatedError("A second cluster beside one that has a control plane")
    change.waits.append(partial(_until_it_answers, change.world, change.name))


async def _until_it_answers(world: World, name: str) -> None:
    while (report := (world.control_planes or {}).get(name, {"state": ""}))["state"] != "ready":
        if report["state"] == "failed":
            raise ApiError(500, "INTERNAL", f"The control plane did not come up: {report['message']}")
        await asyncio.sleep(_POLL_S)


def _version(wanted: str, channel: dict[str, str]) -> str:
    """Return the version that a request gets: for none, or for the first numbers of one."""
    default = _DEFAULTS.get(channel.get("channel", ""), _NO_CHANNEL)
    if wanted in ("", "-", "latest") or f"{default}.".startswith(f"{wanted}."):
        return default
    numbers = _VERSION.fullmatch(wanted)
    if numbers is None or not 0 <= int(default.split(".")[1]) - int(numbers[1]) <= 1:
        raise bad_request(f'Master version "{wanted}" is unsupported.')
    return wanted if numbers[2] else f"1.{numbers[1]}.9-gke.1000000"  # the patch is made up


def _check_ranges(change: Change) -> None:
    """ApiError 400 unless the subnet has the secondary ranges that are named; adds their addresses."""
    policy = change.body.get("ipAllocationPolicy") or {}
    subnet = _full(change, "subnetwork")
    existing = change.world.directory.get(subnet, {}).get("secondaryIpRanges", ())
    ranges = {entry["rangeName"]: entry["ipCidrRange"] for entry in existing}
    for what, field, shown in (
        ("Pod", "clusterSecondaryRangeName", "clusterIpv4CidrBlock"),
        ("Services", "servicesSecondaryRangeName", "servicesIpv4CidrBlock"),
    ):
        if name := policy.get(field):
            if name not in ranges:
                id_ = subnet.rpartition("/")[2]
                raise bad_request(f'{what} secondary range "{name}" not found in subnetwork "{id_}".')
            policy[shown] = ranges[name]


def _give_endpoints(change: Change, place: str) -> None:
    endpoints = change.body.setdefault("controlPlaneEndpointsConfig", {})
    number = hashlib.sha256(change.name.encode()).hexdigest()[:24]
    endpoints.setdefault("dnsEndpointConfig", {})["endpoint"] = (
        f"gke-{number}-{change.world.number}.{place}.gke.goog"
    )
    _give_address(change)
    shown = change.body.setdefault("networkConfig", {})
    for field in ("network", "subnetwork"):
        if change.body.get(field):
            shown[field] = _full(change, field)


def _give_address(change: Change) -> None:
    """Set the control plane's address, which one without IP endpoints hasn't."""
    change.body.pop("endpoint", None)
    if (change.body["controlPlaneEndpointsConfig"].get("ipEndpointsConfig") or {}).get(
        "enabled"
    ) is not False:
        change.body["endpoint"] = "192.0.2.10"


def _full(change: Change, field: str) -> str:
    """Return the full name of the network or subnetwork, which a request may name by its last word."""
    given = change.body.get(field, "")
    return change.resources.references.target(_NETWORKS[field], change.name, given) if given else ""


def _zones(change: Change) -> str:
    return f"projects/{change.world.project}/zones"


def _fingerprint(body: JsonObject) -> str:
    return fingerprint(body.get("resourceLabels") or {})


def _show_cluster(change: Change) -> None:
    pools = [body for _, body in change.resources.below(f"{change.name}/nodePools")]
    change.body["nodePools"] = pools
    change.body["currentNodeCount"] = sum(
        int(pool.get("initialNodeCount", 0)) * len(pool["locations"]) for pool in pools
    )


def _remember_pools(change: Change) -> None:
    change.private["pools"] = dict(change.resources.below(f"{change.name}/nodePools"))


def _deleted(change: Change) -> None:
    for name, pool in change.private["pools"].items():
        forget_groups(change.world, name, pool)


def _update_cluster(change: Change) -> None:
    """clusters.update: each `desiredX` of its `update` is the cluster's `x`, where that is as simple."""
    update = change.sent.get("update") or {}
    if "desiredNodePoolAutoscaling" in update:
        name = f"{change.name}/nodePools/{update.get('desiredNodePoolId', '')}"
        if name not in change.world.directory:
            raise bad_request(f"Node pool {name.rpartition('/')[2]!r} not found.")
        change.world.directory[name]["autoscaling"] = update["desiredNodePoolAutoscaling"]
        return
    given = [key for key in update if key != "etag"]
    if len(given) != 1:  # the description of ClusterUpdate in the discovery document
        raise bad_request(
            f"Exactly one update can be applied to a cluster with each request, not {len(given)}."
        )
    value, plain = update[given[0]], given[0].removeprefix("desired")
    *above, field = _PLACES.get(plain, (plain[:1].lower() + plain[1:],))
    if (above or [field])[0] not in change.shape.fields:
        raise NotEmulatedError(f"ClusterUpdate.{given[0]}")
    body = change.body
    for name in above:
        body = body.setdefault(name, {})
    body[field] = value
    if plain == "ControlPlaneEndpointsConfig":
        _give_address(change)


# Fields of ClusterUpdate that aren't called after the cluster's.
_PLACES: dict[str, tuple[str, ...]] = {
    "DefaultEnablePrivateNodes": ("networkConfig", "defaultEnablePrivateNodes"),
    "MasterVersion": ("currentMasterVersion",),
    "StackType": ("ipAllocationPolicy", "stackType"),
}


def _set_labels(change: Change) -> None:
    if change.sent.get("labelFingerprint") != change.old.get("labelFingerprint"):
        raise bad_request("Labels could not be set due to fingerprint mismatch.")
    change.body["resourceLabels"] = change.sent.get("resourceLabels", {})
    change.body["labelFingerprint"] = _fingerprint(change.body)


CLUSTERS = Collection(
    _CLUSTER,
    pattern=_NAME,
    defaults={"network": "default"},
    references=(*_NETWORKS.values(), acts_as("nodeConfig.serviceAccount")),
    creating={"status": "PROVISIONING"},
    ready={"status": "RUNNING"},
    ending={"status": "STOPPING"},
    check=_check_cluster,
    deleting=_remember_pools,
    deleted=_deleted,
    shown=_show_cluster,
    verbs={
        "update": Verb(_update_cluster, operation="UPDATE_CLUSTER"),
        "setResourceLabels": Verb(_set_labels, operation="SET_LABELS"),
        "setLocations": Verb(set_fields, operation="UPDATE_CLUSTER"),
        "setMaintenancePolicy": Verb(set_fields, operation="SET_MAINTENANCE_POLICY"),
    },
    permissions=dict.fromkeys(("setResourceLabels", "setLocations", "setMaintenancePolicy"), UPDATE),
    seconds=240.0,
    change_seconds=30.0,
)
