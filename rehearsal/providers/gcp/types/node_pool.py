"""GKE's node pools, whose nodes are counted in the instance groups of their zones.

Recorded in tests/rehearsal/providers/recordings/container.NodePool*.json; what an update sends beyond labels
and autoscaling is as in the provider's source (google-beta/services/container, node_config.go and
resource_container_node_pool.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rehearsal.providers.gcp import mapping
from rehearsal.providers.gcp.lifecycle import Context, PlannedUpdate
from rehearsal.providers.gcp.table import COMPUTE, Update
from rehearsal.providers.gcp.types.gke import CONTAINER, OfGke
from rehearsal.providers.plugin.errors import StandInError


class NodePool(OfGke):
    """A node pool."""

    def content(self, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the pool with the official provider's additions."""
        content = super().content(planned, inputs)
        content.setdefault("config", {})["loggingConfig"] = {"variantConfig": {}}
        content["networkConfig"] = content.get("networkConfig") or {}
        if planned.get("autoscaling"):
            content["autoscaling"]["enabled"] = True
        return content

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the pool with the number of nodes per zone from its instance groups."""
        known = self.known(id_, prior, context.settings)
        rest = self.get(context, known)
        outputs = super().read(context, id_, prior) if rest is not None else None
        if outputs is None or rest is None:
            return None
        named = {str(url).rpartition("/")[2] for url in rest.get("instanceGroupUrls", ())}
        groups: list[Mapping[str, Any]] = []
        for zone in outputs["nodeLocations"]:
            path = f"projects/{known['project']}/zones/{zone}/instanceGroupManagers"
            pool = context.send(COMPUTE, "GET", path, library=True)
            groups += [item for item in pool.get("items", ()) if item["name"] in named]
        return {
            **outputs,
            "nodeCount": sum(group["targetSize"] for group in groups) // max(1, len(groups)),
            "managedInstanceGroupUrls": [group["instanceGroup"] for group in groups],
        }

    def written(self, context: Context, request: Update, change: PlannedUpdate) -> dict[str, Any]:
        """Return an update's body; autoscaling is the cluster's."""
        planned = change.planned
        match request.fields:
            case "autoscaling":
                return {
                    "desiredNodePoolId": planned["name"],
                    "desiredNodePoolAutoscaling": _autoscaling(planned.get("autoscaling")),
                }
            case "nodeCount":
                return {"nodeCount": planned["nodeCount"]}
            case "version":
                return {"nodePoolId": planned["name"], "nodeVersion": planned["version"]}
        return super().written(context, request, change)

    def patch(self, context: Context, request: Update, change: PlannedUpdate) -> None:
        """Send an update; autoscaling goes to the cluster, each part of the nodes' settings by itself."""
        planned, item = change.planned, self.item(change.planned)
        if request.fields == "autoscaling":
            body = {"update": self.written(context, request, change)}
            self.call(context, "PUT", item.partition("/nodePools/")[0], planned, body=body)
        elif request.fields == "nodeConfig":
            for content in self._node_requests(change):
                self.call(context, "PUT", item, planned, body=content)
        elif request.fields == "networkConfig":
            network = mapping.encode(self.table.field("networkConfig"), planned["networkConfig"], planned)
            body = {"nodePoolId": planned["name"], "nodeNetworkConfig": network}
            self.call(context, "PUT", item, planned, body=body)
        else:
            super().patch(context, request, change)

    def _node_requests(self, change: PlannedUpdate) -> Iterator[dict[str, Any]]:
        """Yield the bodies for changed settings of nodes, in the official provider's order."""
        config, planned = self.table.field("nodeConfig"), change.planned
        now, then = (
            mapping.encode(config, values.get("nodeConfig") or {}, planned)
            for values in (planned, change.state)
        )
        changed = {key for key in now.keys() | then.keys() if now.get(key) != then.get(key)}
        if unknown := changed - _MACHINES.keys() - _SHARED.keys() - _SWITCHES - _LOGGING:
            raise StandInError(f"the stand-in can't change nodeConfig.{min(unknown)} of a pool in place")
        if changed & _LOGGING:
            yield {"name": planned["name"], "loggingConfig": now.get("loggingConfig")}
        if changed & _MACHINES.keys():
            kept = {key: now[key] for key in _MACHINES if now.get(key)}
            yield {"name": planned["name"], **{k: str(v) if _MACHINES[k] else v for k, v in kept.items()}}
        for key, wrapper in _SHARED.items():
            if key in changed:
                yield {"name": planned["name"], key: {wrapper: now.get(key) or _NOTHING[wrapper]}}
        for key in sorted(changed & _SWITCHES, reverse=True):
            yield {"nodePoolId": planned["name"], key: now.get(key) or {}}


# Settings of nodes that change together, and whether Google's JSON has the number as a text there.
_MACHINES = {"diskSizeGb": True, "diskType": False, "machineType": False}
# Others by themselves, wrapped in the name that the API's types have.
_SHARED = {"taints": "taints", "tags": "tags", "resourceLabels": "labels", "labels": "labels"}
_NOTHING: Mapping[str, Any] = {"taints": [], "tags": [], "labels": {}}
_SWITCHES = {"workloadMetadataConfig", "gvnic"}
_LOGGING = {"loggingConfig"}


def _autoscaling(given: Mapping[str, Any] | None) -> dict[str, Any]:
    if not given:
        return {"enabled": False}
    limits = {"minNodeCount": 0, "totalMinNodeCount": 0, **{k: v for k, v in given.items() if v}}
    return {"enabled": True, **limits}


NODE_POOL = NodePool(
    "gcp:container/nodePool:NodePool",
    CONTAINER,
    "projects/{project}/locations/{location}/clusters/{cluster}/nodePools/{name}",
    (
        Update("autoscaling", "PUT"),
        Update("nodeConfig", "PUT"),
        Update("nodeCount", "POST", ":setSize"),
        Update("management", "POST", ":setManagement"),
        Update("version", "PUT"),
        Update("nodeLocations", "PUT"),
        Update("upgradeSettings", "PUT"),
        Update("networkConfig", "PUT"),
    ),
    {
        "autoscaling.minNodeCount autoscaling.totalMaxNodeCount autoscaling.totalMinNodeCount": "always",
        "management.*": "given",
        "maxPodsPerNode": "at=maxPodsConstraint.maxPodsPerNode",
        "nodeConfig": "at=config",
        "nodeConfig.effectiveTaints": "at=taints never",
        "nodeConfig.loggingVariant": {
            "is": "at=loggingConfig.variantConfig.variant own",
            "decode": lambda raw: raw or "DEFAULT",
        },
        "nodeConfig.kubeletConfig.insecureKubeletReadonlyPortEnabled": {
            "encode": lambda text, _: text == "TRUE",
            "decode": lambda raw: str(bool(raw)).upper(),
        },
        "nodeCount": "at=initialNodeCount",
        "nodeLocations": "at=locations",
        "initialNodeCount": "given",
    },
    create_wrap="nodePool",
    unsent=("placementPolicy",),
    looks_first=True,
    client_library=True,
)
