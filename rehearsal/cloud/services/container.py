"""GKE: clusters and node pools. No control plane runs behind a cluster; its endpoint answers nobody.

https://cloud.google.com/kubernetes-engine/docs/reference/rest/v1/projects.locations.clusters
"""

from __future__ import annotations

from rehearsal.cloud.collections import Change, Collection, Entry, Reference, Verb
from rehearsal.cloud.service import JsonObject, NotEmulatedError, bad_request

_CLUSTER = "container.projects.locations.clusters"
_POOL = f"{_CLUSTER}.nodePools"
_NAME = r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
_UPDATE = "container.clusters.update"
_VERSION = "1.33.5-gke.1080000"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_PATH_FIELDS = frozenset({"name", "projectId", "zone", "clusterId", "nodePoolId", "etag"})  # say which one


def _check_cluster(change: Change) -> None:
    """Complete a new cluster, and take its node pools out of it: they are resources of their own."""
    body, place = change.body, change.name.split("/")[3]
    if change.old:
        return
    pools, count = body.pop("nodePools", []), body.get("initialNodeCount", 0)
    autopilot = (body.get("autopilot") or {}).get("enabled")
    if pools and count:
        raise bad_request("Cluster.initial_node_count and Cluster.node_pools can't both be set.")
    if not pools and not count and not autopilot:
        raise bad_request("Cluster.initial_node_count must be greater than zero.")
    if autopilot:
        raise NotEmulatedError("An Autopilot cluster")
    known = (name.rpartition("/")[2] for name, _ in change.resources.below(_zones(change)))
    zones = [zone for zone in known if zone == place or zone.rpartition("-")[0] == place]
    version = body.get("initialClusterVersion", _VERSION)
    body |= {
        "location": place,
        "zone": place,
        "locations": body.get("locations") or zones,
        "endpoint": "192.0.2.10",
        "currentMasterVersion": version,
        "initialClusterVersion": version,
    }
    for pool in pools or [{"name": "default-pool", "initialNodeCount": count}]:
        change.finish.append(lambda pool=pool: _add_pool(change, pool))  # type: ignore[misc]


def _zones(change: Change) -> str:
    return f"projects/{change.world.project}/zones"


def _add_pool(cluster: Change, pool: JsonObject) -> None:
    """A pool that is made with its cluster."""
    name = f"{cluster.name}/nodePools/{pool['name']}"
    shape = cluster.resources.shape(_POOL)
    link = f"{cluster.body['selfLink']}/nodePools/{pool['name']}"
    made = Change(cluster.resources, shape, cluster.call, name, pool, dict(pool), {})
    _check_pool(made)
    body = made.body | {"status": "RUNNING", "selfLink": link}
    cluster.world.directory[name] = shape.writable(body, output=True)


def _check_pool(change: Change) -> None:
    if change.old:
        return
    cluster = change.world.directory[change.name.partition("/nodePools/")[0]]
    change.body.setdefault("version", cluster["currentMasterVersion"])
    change.body.setdefault("locations", cluster["locations"])
    config = {"machineType": "e2-medium", "diskSizeGb": 100, "oauthScopes": list(_SCOPES)}
    change.body["config"] = config | change.body.get("config", {})


def _show_cluster(change: Change) -> None:
    pools = [body for _, body in change.resources.below(f"{change.name}/nodePools")]
    change.body["nodePools"] = pools
    change.body["currentNodeCount"] = sum(
        int(pool.get("initialNodeCount", 0)) * len(pool["locations"]) for pool in pools
    )


def _update_cluster(change: Change) -> None:
    """clusters.update: each `desiredX` of its `update` is the cluster's `x`, where that is as simple."""
    for key, value in (change.sent.get("update") or {}).items():
        plain = key.removeprefix("desired")
        field = {"MasterVersion": "currentMasterVersion"}.get(plain, plain[:1].lower() + plain[1:])
        if key == "etag":
            continue
        if field not in change.shape.fields:
            raise NotEmulatedError(f"ClusterUpdate.{key}")
        change.body[field] = value


def _update_pool(change: Change) -> None:
    """nodePools.update: what nodes share goes into `config`, out of its wrapping (`{labels: {labels}}`)."""
    config = change.shape.properties("NodeConfig")
    for key, value in change.sent.items():
        if key in _PATH_FIELDS:
            continue
        if key == "nodeVersion":
            change.body["version"] = value
        elif key in config:
            inner = value[key] if isinstance(value, dict) and list(value) == [key] else value
            change.body.setdefault("config", {})[key] = inner
        elif key in change.shape.fields:
            change.body[key] = value
        else:
            raise NotEmulatedError(f"UpdateNodePoolRequest.{key}")


def _resize(change: Change) -> None:
    change.body["initialNodeCount"] = change.sent.get("nodeCount", 0)


def _set(change: Change) -> None:
    """A method whose request has fields of the resource by their own names."""
    change.body |= {key: value for key, value in change.sent.items() if key not in _PATH_FIELDS}


ENTRY = Entry(
    "container",
    ("v1",),
    (
        Collection(
            _CLUSTER,
            pattern=_NAME,
            defaults={"network": "default"},
            references=(
                Reference("network", ("compute.networks",), short="projects/{project}/global/networks/{id}"),
                Reference(
                    "subnetwork",
                    ("compute.subnetworks",),
                    short="projects/{project}/regions/{region}/subnetworks/{id}",
                ),
            ),
            creating={"status": "PROVISIONING"},
            ready={"status": "RUNNING"},
            ending={"status": "STOPPING"},
            check=_check_cluster,
            shown=_show_cluster,
            verbs={
                "update": Verb(_update_cluster, operation="UPDATE_CLUSTER"),
                "setResourceLabels": Verb(_set, operation="SET_LABELS"),
                "setLocations": Verb(_set, operation="UPDATE_CLUSTER"),
            },
            permissions=dict.fromkeys(("setResourceLabels", "setLocations"), _UPDATE),
            seconds=240.0,
            change_seconds=30.0,
        ),
        Collection(
            _POOL,
            # https://cloud.google.com/kubernetes-engine/docs/how-to/iam: a pool is part of its cluster.
            permission="container.clusters",
            permissions=dict.fromkeys(
                ("create", "delete", "setSize", "setAutoscaling", "setManagement"), _UPDATE
            ),
            pattern=_NAME,
            creating={"status": "PROVISIONING"},
            ready={"status": "RUNNING"},
            ending={"status": "STOPPING"},
            check=_check_pool,
            verbs={
                "update": Verb(_update_pool, operation="UPGRADE_NODES"),
                "setSize": Verb(_resize, operation="SET_NODE_POOL_SIZE"),
                "setAutoscaling": Verb(_set, operation="UPDATE_CLUSTER"),
                "setManagement": Verb(_set, operation="SET_NODE_POOL_MANAGEMENT"),
            },
            seconds=90.0,
            change_seconds=30.0,
        ),
    ),
    roles={
        "roles/container.admin": ("container.*",),
        "roles/container.clusterAdmin": ("container.clusters.*", "container.operations.*"),
        "roles/container.viewer": ("container.*.get", "container.*.list"),
    },
)
