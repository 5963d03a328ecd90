"""GKE's clusters.

Recorded in tests/rehearsal/providers/recordings/container.Cluster.json; what an update sends beyond labels is
as in the provider's source (google-beta/services/container/resource_container_cluster.go), each in a request
of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rehearsal.providers.gcp.lifecycle import Context, PlannedUpdate, Resource
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.table import Service, Update
from rehearsal.providers.plugin.errors import ProviderApiError
from rehearsal.providers.plugin.provider import Difference

CONTAINER = Service("container")
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


class OfGke(Resource):
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


class Cluster(OfGke):
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
        if content.get("authenticatorGroupsConfig"):
            content["authenticatorGroupsConfig"]["enabled"] = True
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
        """Return the cluster with the full names of its networks, and private switches in their old place."""
        rest = super().get(context, known)
        if rest is None:
            return None
        network = rest.get("networkConfig") or {}
        names = {key: network[key] for key in ("network", "subnetwork") if key in network}
        ip = (rest.get("controlPlaneEndpointsConfig") or {}).get("ipEndpointsConfig") or {}
        private = {
            **rest.get("privateClusterConfig", {}),
            "enablePrivateEndpoint": not ip.get("enablePublicEndpoint"),
            "enablePrivateNodes": bool(network.get("defaultEnablePrivateNodes")),
            "masterGlobalAccessConfig": {"enabled": bool(ip.get("globalAccess"))},
            "privateEndpoint": ip.get("privateEndpoint"),
            "privateEndpointSubnetwork": ip.get("privateEndpointSubnetwork"),
            "publicEndpoint": ip.get("publicEndpoint"),
        }
        return {**rest, **names, "privateClusterConfig": private}

    def after_create(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Remove the first pool, then read the cluster."""
        if planned.get("removeDefaultNodePool"):
            self.call(context, "DELETE", f"{self.item(planned)}/nodePools/default-pool", planned)
        return super().after_create(context, id_, planned)

    def differences(
        self, inputs: Mapping[str, Any], state: Mapping[str, Any], settings: Settings, ignored: Sequence[str]
    ) -> list[Difference]:
        """Return the differences, but for what the API dictates of a control plane without addresses."""
        changes = super().differences(inputs, state, settings, ignored)
        return [d for d in changes if _has_addresses(inputs) or d.path not in _DICTATED]

    def patch(self, context: Context, request: Update, change: PlannedUpdate) -> None:
        """Send an update; zones are first added, then removed."""
        if request.fields == "nodeLocations":
            wanted, current = (set(values["nodeLocations"]) for values in (change.planned, change.state))
            if current - wanted and wanted - current:
                united = {**change.planned, "nodeLocations": sorted(wanted | current)}
                super().patch(context, request, replace(change, planned=united))
        super().patch(context, request, change)

    def written(self, context: Context, request: Update, change: PlannedUpdate) -> dict[str, Any]:
        """Return an update's body; in a ClusterUpdate each field is called `desired…`."""
        content, planned = super().written(context, request, change), change.planned
        match request.fields:
            case "controlPlaneEndpointsConfig masterAuthorizedNetworksConfig":
                content = {"controlPlaneEndpointsConfig": _endpoints(planned)}
            case "privateClusterConfig":
                private = planned["privateClusterConfig"] or {}
                content = {"defaultEnablePrivateNodes": bool(private.get("enablePrivateNodes"))}
            case "authenticatorGroupsConfig":
                content["authenticatorGroupsConfig"]["enabled"] = True
            case "ipAllocationPolicy":
                content = {"stackType": planned["ipAllocationPolicy"]["stackType"]}
        if request.wrap != "update":
            return content
        return {f"desired{key[0].upper()}{key[1:]}": value for key, value in content.items()}


_DICTATED = (
    "privateClusterConfig.enablePrivateEndpoint",
    "privateClusterConfig.masterGlobalAccessConfig.enabled",
)


def _has_addresses(planned: Mapping[str, Any]) -> bool:
    given = planned.get("controlPlaneEndpointsConfig") or {}
    return (given.get("ipEndpointsConfig") or {}).get("enabled") is not False


def _endpoints(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the endpoints of the control plane with every switch explicit."""
    dns = (planned.get("controlPlaneEndpointsConfig") or {}).get("dnsEndpointConfig") or {}
    private = planned.get("privateClusterConfig") or {}
    switches = ("allowExternalTraffic", "enableK8sCertsViaDns", "enableK8sTokensViaDns")
    names = {"dnsEndpointConfig": {name: bool(dns.get(name)) for name in switches}}
    if not _has_addresses(planned):
        return {**names, "ipEndpointsConfig": {"enabled": False}}
    addresses: dict[str, Any] = {
        "enabled": True,
        "enablePublicEndpoint": not private.get("enablePrivateEndpoint"),
        "globalAccess": bool((private.get("masterGlobalAccessConfig") or {}).get("enabled")),
        "privateEndpointSubnetwork": private.get("privateEndpointSubnetwork") or "",
    }
    if authorized := planned.get("masterAuthorizedNetworksConfig"):
        blocks = [
            {key: block[key] for key in ("cidrBlock", "displayName") if block.get(key)}
            for block in authorized.get("cidrBlocks") or ()
        ]
        addresses["authorizedNetworksConfig"] = {"enabled": True, "cidrBlocks": blocks}
    return {**names, "ipEndpointsConfig": addresses}


CLUSTER = Cluster(
    "gcp:container/cluster:Cluster",
    CONTAINER,
    _CLUSTER,
    (
        *(
            Update(name, "PUT", wrap="update")
            for name in (
                "controlPlaneEndpointsConfig masterAuthorizedNetworksConfig", "privateClusterConfig",
                "ipAllocationPolicy", "addonsConfig", "enableShieldedNodes", "releaseChannel",
                "authenticatorGroupsConfig", "nodeLocations",
            )
        ),
        Update("maintenancePolicy", "POST", ":setMaintenancePolicy"),
        *(
            Update(name, "PUT", wrap="update")
            for name in ("workloadIdentityConfig", "loggingConfig", "monitoringConfig")
        ),
        Update(
            "resourceLabels", "POST", ":setResourceLabels",
            extra={"labelFingerprint": "{labelFingerprint}"},
        ),
    ),
    {
        "location": "nameless",
        "addonsConfig.httpLoadBalancing.disabled": "given",
        "autopilotPrivilegedAdmissions clusterTelemetry fleet": "refused",
        "controlPlaneEndpointsConfig": "never updated",
        "controlPlaneEndpointsConfig.*": "given",
        "datapathProvider": "at=networkConfig.datapathProvider",
        "deletionProtection": "local",
        "enableShieldedNodes": "at=shieldedNodes.enabled given",
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
        "nodeLocations": "at=locations",
        "nodePools": "refused",
        "removeDefaultNodePool": "local",
    },
    create_wrap="cluster",
    looks_first=True,
    client_library=True,
)  # fmt: skip
