"""GKE's clusters and node pools. A pool's nodes are counted in the instance groups of its zones.

Recorded in tests/rehearsal/providers/recordings/container.*.json; what an update sends beyond labels and
autoscaling is as the API's description has it, and not recorded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rehearsal.providers.gcp import mapping
from rehearsal.providers.gcp.lifecycle import Context, PlannedUpdate, Resource
from rehearsal.providers.gcp.table import COMPUTE, Service, Update
from rehearsal.providers.plugin.errors import ProviderApiError

CONTAINER = Service("CONTAINER", "https://container.googleapis.com/v1beta1/")
_CLUSTER = "projects/{project}/locations/{location}/clusters/{name}"
_DEFAULT_SCOPES = tuple(
    f"https://www.googleapis.com/auth/{name}"
    for name in (
        "devstorage.read_only", "logging.write", "monitoring", "service.management.readonly",
        "servicecontrol", "trace.append",
    )
)  # fmt: skip


def _exclusions(items: list[dict[str, Any]] | None, _planned: Mapping[str, Any]) -> dict[str, Any]:
    """Exclusions are a list with names in Pulumi and a map by name at Google."""
    return {
        item["exclusionName"]: {
            "startTime": item["startTime"],
            **({"endTime": item["endTime"]} if item.get("endTime") else {}),
            "maintenanceExclusionOptions": item.get("exclusionOptions") or {},
        }
        for item in items or ()
    }


def _exclusion_list(raw: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [
        {
            "exclusionName": name,
            "startTime": window.get("startTime", ""),
            "endTime": window.get("endTime", ""),
            "exclusionOptions": window.get("maintenanceExclusionOptions"),
        }
        for name, window in (raw or {}).items()
    ]


class _OfGke(Resource):
    """A resource whose requests wait while the cluster is busy with another operation.

    https://github.com/hashicorp/terraform-provider-google, resource_container_node_pool.go: what is refused
    as a failed precondition is sent again.
    """

    def call(self, context: Context, *arguments: Any, **more: Any) -> Any:
        """As any, and again while the cluster is busy."""
        while True:
            try:
                return super().call(context, *arguments, **more)
            except ProviderApiError as error:
                if "incompatible operation" not in str(error) or time.monotonic() > context.deadline:
                    raise
            context.client.pause(context.poll_s)


class Cluster(_OfGke):
    """A cluster; the pool that it is created with is removed at once with `remove_default_node_pool`."""

    def content(self, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the cluster with the official provider's additions."""
        content = super().content(planned, inputs)
        private = planned.get("privateClusterConfig") or {}
        network = content.setdefault("networkConfig", {})
        if private.get("enablePrivateNodes"):
            network["defaultEnablePrivateNodes"] = True
        content.setdefault("ipAllocationPolicy", {})["useIpAliases"] = True
        content.setdefault("nodeConfig", {"oauthScopes": list(_DEFAULT_SCOPES)})
        if planned.get("minMasterVersion"):
            content["initialClusterVersion"] = planned["minMasterVersion"]
        return {
            **content,
            "autopilot": {"enabled": False},
            "autoscaling": {"enableNodeAutoprovisioning": False},
            "binaryAuthorization": {"enabled": False},
            "controlPlaneEndpointsConfig": _endpoints(planned),
            "legacyAbac": {"enabled": False},
            "networkPolicy": {},
            "notificationConfig": {"pubsub": {}},
        }

    def get(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the cluster with the full names of its networks."""
        rest = super().get(context, known)
        whole = (rest or {}).get("networkConfig") or {}
        return rest and {**rest, **{key: whole[key] for key in ("network", "subnetwork") if key in whole}}

    def after_create(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Remove the first pool, then read the cluster."""
        if planned.get("removeDefaultNodePool"):
            self.call(context, "DELETE", f"{self.item(planned)}/nodePools/default-pool", planned)
        return super().after_create(context, id_, planned)

    def written(self, context: Context, request: Update, change: PlannedUpdate) -> dict[str, Any]:
        """Return an update's body; in a ClusterUpdate each field is called `desired…`."""
        content = super().written(context, request, change)
        if request.wrap != "update":
            return content
        if "controlPlaneEndpointsConfig" in content:
            content["controlPlaneEndpointsConfig"] = _endpoints(change.planned)
        return {f"desired{key[0].upper()}{key[1:]}": value for key, value in content.items()}


def _endpoints(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the endpoints of the control plane with every switch explicit."""
    given = planned.get("controlPlaneEndpointsConfig") or {}
    dns, ip = given.get("dnsEndpointConfig") or {}, given.get("ipEndpointsConfig") or {}
    private = planned.get("privateClusterConfig") or {}
    enabled = ip.get("enabled") is not False
    addresses: dict[str, Any] = {
        "enabled": enabled,
        "enablePublicEndpoint": enabled and not private.get("enablePrivateEndpoint"),
        "globalAccess": False,
        "privateEndpointSubnetwork": private.get("privateEndpointSubnetwork") or "",
    }
    if authorized := planned.get("masterAuthorizedNetworksConfig"):
        blocks = [
            {key: block[key] for key in ("cidrBlock", "displayName") if block.get(key)}
            for block in authorized.get("cidrBlocks") or ()
        ]
        addresses["authorizedNetworksConfig"] = {"enabled": True, "cidrBlocks": blocks}
    switches = ("allowExternalTraffic", "enableK8sCertsViaDns", "enableK8sTokensViaDns")
    return {
        "dnsEndpointConfig": {name: bool(dns.get(name)) for name in switches},
        "ipEndpointsConfig": addresses,
    }


class NodePool(_OfGke):
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
        """Return an update's body: shared node settings are wrapped in their own name, autoscaling is the
        cluster's.
        """
        planned = change.planned
        if request.fields == "autoscaling":
            return {
                "desiredNodePoolId": planned["name"],
                "desiredNodePoolAutoscaling": _autoscaling(planned.get("autoscaling")),
            }
        if request.fields == "nodeConfig":
            config = self.table.field("nodeConfig")
            now, then = (
                mapping.encode(config, values.get("nodeConfig") or {}, planned)
                for values in (planned, change.state)
            )
            changed = [key for key in _SHARED if now.get(key) != then.get(key)]
            return {"name": planned["name"], **{key: {key: now.get(key)} for key in changed}}
        content = super().written(context, request, change)
        return {"nodeCount": content["initialNodeCount"]} if request.suffix == ":setSize" else content

    def patch(self, context: Context, request: Update, change: PlannedUpdate) -> None:
        """Send an update; autoscaling goes to the cluster."""
        if request.fields != "autoscaling":
            super().patch(context, request, change)
            return
        path = self.item(change.planned).partition("/nodePools/")[0]
        body = {"update": self.written(context, request, change)}
        self.call(context, "PUT", path, change.planned, body=body)


_SHARED = ("labels", "resourceLabels", "tags", "taints")


def _autoscaling(given: Mapping[str, Any] | None) -> dict[str, Any]:
    if not given:
        return {"enabled": False}
    limits = {"minNodeCount": 0, "totalMinNodeCount": 0, **{k: v for k, v in given.items() if v}}
    return {"enabled": True, **limits}


CLUSTER = Cluster(
    "gcp:container/cluster:Cluster",
    CONTAINER,
    _CLUSTER,
    (
        Update(
            "resourceLabels", "POST", ":setResourceLabels",
            extra={"labelFingerprint": "{labelFingerprint}"},
        ),
        Update("maintenancePolicy", "POST", ":setMaintenancePolicy"),
        Update(
            "addonsConfig controlPlaneEndpointsConfig loggingConfig monitoringConfig nodeLocations"
            " releaseChannel",
            "PUT", changed_only=True, wrap="update",
        ),
    ),
    {
        "location": "nameless",
        "addonsConfig.httpLoadBalancing.disabled": "given",
        "autopilotPrivilegedAdmissions clusterTelemetry fleet": "refused",
        "controlPlaneEndpointsConfig": "never updated",
        "controlPlaneEndpointsConfig.*": "given",
        "datapathProvider": "at=networkConfig.datapathProvider",
        "deletionProtection": "local default=true",
        "enableShieldedNodes": "at=shieldedNodes.enabled default=true given",
        "initialNodeCount": "fixed",
        "loggingConfig.enableComponents": "at=componentConfig.enableComponents",
        "monitoringConfig.enableComponents": "at=componentConfig.enableComponents",
        "monitoringConfig.managedPrometheus": "at=managedPrometheusConfig",
        "maintenancePolicy.dailyMaintenanceWindow": "at=window.dailyMaintenanceWindow",
        **{
            f"maintenancePolicy.maintenanceExclusions.{path}": f"at={path.rpartition('.')[2]}"
            for path in ("exclusionName", "exclusionOptions", "exclusionOptions.scope",
                         "exclusionOptions.endTimeBehavior")
        },
        "maintenancePolicy.maintenanceExclusions": {
            "is": "at=window.maintenanceExclusions", "encode": _exclusions, "decode": _exclusion_list,
        },
        "masterAuthorizedNetworksConfig minMasterVersion networkingMode": "local",
        "masterVersion": "at=currentMasterVersion",
        "network subnetwork": "fixed",
        "nodeLocations": "at=locations set",
        "removeDefaultNodePool": "local",
    },
    create_wrap="cluster",
    looks_first=True,
    client_library=True,
)  # fmt: skip

NODE_POOL = NodePool(
    "gcp:container/nodePool:NodePool",
    CONTAINER,
    "projects/{project}/locations/{location}/clusters/{cluster}/nodePools/{name}",
    (
        Update("nodeCount", "POST", ":setSize"),
        Update("management", "POST", ":setManagement"),
        Update("autoscaling", "PUT"),
        Update("nodeLocations", "PUT", changed_only=True, extra={"name": "{name}"}),
        Update("nodeConfig", "PUT"),
    ),
    {
        "autoscaling.minNodeCount autoscaling.totalMaxNodeCount autoscaling.totalMinNodeCount": "always",
        "management.*": "given",
        "maxPodsPerNode": "at=maxPodsConstraint.maxPodsPerNode computed",
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
        "nodeConfig.*": "fixed",
        "nodeConfig.labels nodeConfig.resourceLabels nodeConfig.tags nodeConfig.taints": "free",
        "nodeCount": "at=initialNodeCount computed",
        "nodeLocations": "at=locations set computed",
        "initialNodeCount": "given computed",
    },
    create_wrap="nodePool",
    looks_first=True,
    client_library=True,
)
