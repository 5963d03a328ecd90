"""Node pools. Each has an instance group in each of its zones, with the number of nodes.

The rules of TPU pools are those of https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from functools import partial

from google_facts import gke_pools
from google_facts.scopes import EVERYTHING
from rehearsal.cloud.collections import Change, Collection, Verb
from rehearsal.cloud.collections.checks import acts_as
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.core.operations import compute_link
from rehearsal.cloud.core.world import World
from rehearsal.cloud.services.container import chips
from rehearsal.cloud.services.tpu import catalog

_POOL = "container.projects.locations.clusters.nodePools"
UPDATE = "container.clusters.update"
PATH_FIELDS = frozenset({"name", "projectId", "zone", "clusterId", "nodePoolId", "etag"})  # name the resource
_SCOPES = (EVERYTHING,)
_NAME = r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
_TPU_MACHINE = re.compile(r"ct6e-standard-([148])t")
_MOST_PODS = 256


def add_pool(cluster: Change, pool: JsonObject) -> None:
    """Add a pool that is created with its cluster."""
    name = f"{cluster.name}/nodePools/{pool['name']}"
    shape = cluster.resources.shape(_POOL)
    link = f"{cluster.body['selfLink']}/nodePools/{pool['name']}"
    made = Change(cluster.resources, shape, cluster.call, name, pool, dict(pool), {})
    _complete(made, cluster.body)
    body = made.body | {"status": "RUNNING", "selfLink": link}
    cluster.world.directory[name] = shape.writable(body, output=True)
    _make_groups(cluster.world, name, body)


def _check_pool(change: Change) -> None:
    if change.old:
        return
    cluster = change.world.directory[change.name.partition("/nodePools/")[0]]
    _complete(change, cluster)
    _check_tpus(change.body)
    _check_room(change, cluster)
    nodes = int(change.body.get("initialNodeCount", 0)) * len(change.body["locations"])
    change.waits.append(partial(chips.require, change.world, change.name, change.body, nodes))


def _complete(change: Change, cluster: JsonObject) -> None:
    body = change.body
    body.setdefault("version", cluster["currentMasterVersion"])
    body.setdefault("locations", cluster["locations"])
    given = {"machineType": "e2-medium", **body.get("config", {})}
    disk = "hyperdisk-balanced" if _TPU_MACHINE.fullmatch(given["machineType"]) else "pd-balanced"
    body["config"] = {"diskType": disk, "diskSizeGb": 100, "oauthScopes": list(_SCOPES), **given}
    pods = int((body.get("maxPodsConstraint") or {}).get("maxPodsPerNode") or 110)
    if not 8 <= pods <= _MOST_PODS:
        raise bad_request(f"Max pods per node must be between 8 and {_MOST_PODS}.")
    body["maxPodsConstraint"] = {"maxPodsPerNode": str(pods)}
    body["podIpv4CidrSize"] = 32 - _block(pods).bit_length() + 1
    body["instanceGroupUrls"] = [compute_link(group) for group in _groups(change.world, change.name, body)]


def _check_tpus(body: JsonObject) -> None:
    config, placement = body["config"], body.get("placementPolicy") or {}
    machine, topology = _TPU_MACHINE.fullmatch(config["machineType"]), placement.get("tpuTopology")
    if machine is None:
        if topology:
            raise bad_request(f"Machine type {config['machineType']} doesn't support TPU topologies.")
        return
    for zone in body["locations"]:
        if zone not in catalog.ZONES:
            raise bad_request(f"Machine type {config['machineType']} is not available in zone {zone}.")
    if config.get("diskType") not in catalog.DISK_TYPES:
        raise bad_request(f"Disk type {config.get('diskType')} is not supported by {config['machineType']}.")
    if config.get("spot") and config.get("flexStart"):
        raise bad_request("Spot and flex-start can't both be set.")
    chips, scaling = int(machine[1]), body.get("autoscaling") or {}
    _check_flex_start(body, config, scaling)
    # A slice of several machines: its topology decides the number of nodes.
    if topology is None:
        return
    slice_ = catalog.find_topology(topology)
    if slice_ is None or chips != 4 or slice_.chips <= chips:
        raise bad_request(f"TPU topology {topology} is not supported by {config['machineType']}.")
    nodes = slice_.chips // chips
    if scaling.get("enabled"):
        # The limit of each zone; of one in total, GKE has no zone's (vllm-project/ci-infra#545).
        most = scaling.get("maxNodeCount", 0)
        if most != nodes:
            text = f"Maximum node count {most} is not a valid size of TPU pod slice with topology {topology}"
            raise bad_request(text)
    elif body.get("initialNodeCount", 0) != nodes:
        raise bad_request(f"The number of nodes of a {topology} slice must be {nodes}.")


def _check_flex_start(body: JsonObject, config: JsonObject, scaling: JsonObject) -> None:
    """Refuse what Google's blueprints say that flex-start and queued provisioning need; words are ours.

    https://github.com/GoogleCloudPlatform/cluster-toolkit, modules/compute/gke-node-pool
    """
    queued = (body.get("queuedProvisioning") or {}).get("enabled")
    if queued and not config.get("flexStart"):
        raise bad_request("Queued provisioning of TPUs requires flex-start.")
    if not config.get("flexStart"):
        return
    for zone in body["locations"]:
        if zone not in gke_pools.FLEX_START_ZONES:  # or pods would wait permanently
            raise bad_request(f"Flex-start of {config['machineType']} is not available in zone {zone}.")
    affinity = (config.get("reservationAffinity") or {}).get("consumeReservationType")
    for wrong, rule in (
        (not scaling.get("enabled") or scaling.get("minNodeCount", 0), "autoscaling from 0 nodes"),
        ((body.get("management") or {}).get("autoRepair"), "auto-repair to be disabled"),
        (affinity != "NO_RESERVATION", "the reservation affinity NO_RESERVATION"),
    ):
        if wrong:
            raise bad_request(f"Flex-start requires {rule}.")


def _block(pods: int) -> int:
    """Addresses of the pods' range that a node takes."""
    return 1 << (2 * pods - 1).bit_length()


def _check_room(change: Change, cluster: JsonObject) -> None:
    """Every node that a pool may have needs a block of the pods' range."""
    cidr = (cluster.get("ipAllocationPolicy") or {}).get("clusterIpv4CidrBlock")
    if not cidr:
        return
    name = change.name.partition("/nodePools/")[0]
    pools = [body for _, body in change.resources.below(f"{name}/nodePools")]
    taken = sum(_addresses(pool) for pool in (*pools, change.body))
    if taken > ipaddress.IPv4Network(cidr).num_addresses:
        text = f"IP space of {cidr} is exhausted: its nodes need {taken} addresses for pods."
        raise ApiError(403, "PERMISSION_DENIED", text, reason="ipSpaceExhausted")


def _addresses(pool: JsonObject) -> int:
    nodes = int(pool.get("initialNodeCount", 0)) * len(pool["locations"])
    return nodes * _block(int(pool["maxPodsConstraint"]["maxPodsPerNode"]))


def _groups(world: World, name: str, body: JsonObject) -> list[str]:
    """Full names of a pool's instance groups."""
    cluster, pool = name.split("/")[5], name.rpartition("/")[2]
    stem = f"gke-{cluster}-{pool}"[:40].rstrip("-")
    suffix = hashlib.sha256(name.encode()).hexdigest()[:8]
    return [
        f"projects/{world.project}/zones/{zone}/instanceGroupManagers/{stem}-{suffix}-grp"
        for zone in body["locations"]
    ]


def _make_groups(world: World, name: str, body: JsonObject) -> None:
    for group in _groups(world, name, body):
        zone, id_ = group.rpartition("/instanceGroupManagers/")[0], group.rpartition("/")[2]
        world.directory[group] = {
            "kind": "compute#instanceGroupManager",
            "name": id_,
            "baseInstanceName": id_.removesuffix("-grp"),
            "zone": compute_link(zone),
            "targetSize": int(body.get("initialNodeCount", 0)),
            "instanceGroup": compute_link(f"{zone}/instanceGroups/{id_}"),
            "selfLink": compute_link(group),
        }


def sizes(world: World, name: str, body: JsonObject) -> dict[str, int]:
    """Return the number of nodes of a pool in each of its zones."""
    groups = zip(body["locations"], _groups(world, name, body), strict=True)
    return {zone: world.directory.get(group, {}).get("targetSize", 0) for zone, group in groups}


def resize(world: World, name: str, zone: str, count: int) -> None:
    """Let a pool's instance group in a zone have so many nodes."""
    body = world.require(name)
    for group in _groups(world, name, body):
        if f"/zones/{zone}/" in group:
            world.directory[group]["targetSize"] = count


def _created(change: Change) -> None:
    _make_groups(change.world, change.name, change.body)


def forget_groups(world: World, name: str, body: JsonObject) -> None:
    """Delete the instance groups of a pool."""
    for group in _groups(world, name, body):
        world.directory.pop(group, None)


def _update_pool(change: Change) -> None:
    """Serve nodePools.update: fields of NodeConfig go into `config`, lists and maps out of their wrappers."""
    config, request = (change.shape.properties(name) for name in ("NodeConfig", "UpdateNodePoolRequest"))
    for key, value in change.sent.items():
        if key in PATH_FIELDS:
            continue
        if key in config:
            wrapper = request[key].get("$ref")
            if wrapper and wrapper != config[key].get("$ref"):
                (inside,) = change.shape.properties(wrapper)
                change.body["config"][key] = value.get(inside)
            else:
                change.body["config"][key] = value
            continue
        field = _RENAMED.get(key, key)
        if field not in change.shape.fields:
            raise NotEmulatedError(f"UpdateNodePoolRequest.{key}")
        change.body[field] = value
    _check_slice(change)
    if change.body["locations"] != change.old["locations"]:
        change.finish.append(lambda: _move_groups(change))


_RENAMED = {"nodeVersion": "version", "nodeNetworkConfig": "networkConfig"}


def _check_slice(change: Change) -> None:
    """Refuse other machines or another place for a slice of TPUs: a new pool is needed.

    https://cloud.google.com/kubernetes-engine/docs/concepts/tpus says so of slices of several nodes; of a
    single one it wasn't verified.
    """
    for field in ("machineType", "locations"):
        now, old = (
            (body["config"] if field == "machineType" else body).get(field)
            for body in (change.body, change.old)
        )
        if now != old and _TPU_MACHINE.fullmatch(change.old["config"]["machineType"]):
            raise bad_request(f"Node pool {change.id}: {field} of a TPU slice can't be changed.")


def _move_groups(change: Change) -> None:
    count = max(sizes(change.world, change.name, change.old).values(), default=0)
    forget_groups(change.world, change.name, change.old)
    groups = _groups(change.world, change.name, change.body)
    change.body["instanceGroupUrls"] = [compute_link(group) for group in groups]
    _make_groups(change.world, change.name, {**change.body, "initialNodeCount": count})


def _resize(change: Change) -> None:
    change.body["initialNodeCount"] = change.sent.get("nodeCount", 0)
    _check_tpus(change.body)
    change.finish.append(lambda: _make_groups(change.world, change.name, change.body))


def set_fields(change: Change) -> None:
    """Serve a method whose request has fields of the resource under their own names."""
    change.body |= {key: value for key, value in change.sent.items() if key not in PATH_FIELDS}


POOLS = Collection(
    _POOL,
    # https://cloud.google.com/kubernetes-engine/docs/how-to/iam: a pool is part of its cluster.
    permission="container.clusters",
    permissions=dict.fromkeys(("create", "delete", "setSize", "setAutoscaling", "setManagement"), UPDATE),
    pattern=_NAME,
    references=(acts_as("config.serviceAccount"),),
    creating={"status": "PROVISIONING"},
    ready={"status": "RUNNING"},
    ending={"status": "STOPPING"},
    check=_check_pool,
    created=_created,
    deleted=lambda change: forget_groups(change.world, change.name, change.old),
    verbs={
        "update": Verb(_update_pool, operation="UPGRADE_NODES"),
        "setSize": Verb(_resize, operation="SET_NODE_POOL_SIZE"),
        "setAutoscaling": Verb(set_fields, operation="UPDATE_CLUSTER"),
        "setManagement": Verb(set_fields, operation="SET_NODE_POOL_MANAGEMENT"),
    },
    seconds=90.0,
    change_seconds=30.0,
)
