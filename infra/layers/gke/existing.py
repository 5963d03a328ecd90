"""An existing cluster: read and used as it is, after a check of what its TPU pools and their jobs need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pulumi

from google_facts import gke_pools
from infra.errors import Problem, SettingsError
from infra.google import kubernetes
from infra.google.client import Client, RequestError
from infra.google.failures import Kind
from infra.layers.gke import pools
from infra.layers.gke.settings import GkeSettings
from infra.layers.network.names import network_id
from infra.settings.schema import Settings

_COMPUTE = "https://compute.googleapis.com/compute/v1"


def require_fit(settings: Settings) -> str:
    """Return the DNS name of the cluster's control plane.

    The cluster is in no state: no update changes it, and no destroy deletes it. Raises InfraError with
    everything that it lacks.
    """
    name, region = settings[GkeSettings].cluster_name, pools.region(settings)
    source, path = f"Pulumi.{settings.environment}.yaml", "gke:clusterName"
    google = Client(settings.project)
    cluster = kubernetes.described(google, pools.cluster_id(settings))
    if cluster is None:
        listing = f"gcloud container clusters list --project={settings.project}"
        fix = f"write the name and gke:region of one that is listed: {listing}"
        raise SettingsError(source, [Problem(path, name, f"there is no such cluster in {region}", fix)])
    for warning in _unreached(google, cluster):
        pulumi.log.warn(f"{name}, {warning}")
    misses = _misses(settings, cluster)
    if problems := [Problem(path, f"{name}, {has}", rule, fix) for has, rule, fix in misses]:
        raise SettingsError(source, problems)
    return kubernetes.endpoint(cluster)


def _misses(settings: Settings, cluster: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what the cluster has, what it needs, and the fix."""
    name, region = settings[GkeSettings].cluster_name, pools.region(settings)
    update = f"gcloud container clusters update {name} --project={settings.project} --location={region}"
    pool = f"{settings.project}.svc.id.goog"
    if _part(cluster, "autopilot", "enabled"):
        yield "an Autopilot cluster", "node pools are added to it", "name a Standard cluster"
        return
    network = str(_part(cluster, "networkConfig", "network"))
    if network != network_id(settings):
        rule = f"it is in the environment's network, {network_id(settings)}"
        yield f"of network {network}", rule, f"write network:existingNetwork: {network}"
    if not _part(cluster, "ipAllocationPolicy", "useIpAliases"):
        yield "routes-based", "its pods have a range of their own (VPC-native)", "name a VPC-native cluster"
    if (identity := _part(cluster, "workloadIdentityConfig", "workloadPool")) != pool:
        rule = "pods use the buckets by Workload Identity"
        yield f"workload pool {identity or 'none'}", rule, f"{update} --workload-pool={pool}"
    if not _part(cluster, "addonsConfig", "gcsFuseCsiDriverConfig", "enabled"):
        rule = "jobs mount the buckets by the Cloud Storage FUSE driver"
        yield "without that driver", rule, f"{update} --update-addons=GcsFuseCsiDriver=ENABLED"
    if not _part(cluster, "controlPlaneEndpointsConfig", "dnsEndpointConfig", "allowExternalTraffic"):
        rule = "its DNS endpoint takes traffic from outside"
        yield "closed to the outside", rule, f"{update} --enable-dns-access"
    version, least = str(cluster.get("currentMasterVersion")), gke_pools.FLEX_START_MINOR
    minor = version.split(".")[1:2]
    if minor and int(minor[0]) < least and any(pool.is_flex_start for pool in pools.pools(settings)):
        upgrade = f"gcloud container clusters upgrade {name} --master --cluster-version=1.{least}"
        fix = f"{upgrade} --project={settings.project} --location={region}; or spot: true"
        yield f"of version {version}", f"TPUs come by flex-start from 1.{least} on", fix
    machines = [str(_part(item, "config", "machineType")) for item in cluster.get("nodePools") or ()]
    if all(machine.startswith(pools.TPU_MACHINES) for machine in machines):
        fix = f"gcloud container node-pools create cpu --cluster={name} --project={settings.project}"
        yield "without CPU nodes", "controllers run on nodes without TPUs", f"{fix} --location={region}"


def _unreached(google: Client, cluster: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning if nodes without external addresses may reach no Google API from the subnetwork.

    They may do so by Cloud NAT or a Private Service Connect endpoint, which the subnetwork doesn't name.
    """
    path = str(_part(cluster, "networkConfig", "subnetwork"))
    try:
        subnet = google.json("GET", f"{_COMPUTE}/{path}")
    except RequestError as error:
        if error.failure.kind is Kind.PERMISSION:  # a Shared VPC's host project
            return
        raise
    if not subnet.get("privateIpGoogleAccess"):
        _, project, _, region, _, name = path.split("/")
        fix = f"gcloud compute networks subnets update {name} --project={project} --region={region}"
        rule = "nodes of its pools have no external addresses, and pull images by it"
        yield (
            f"of subnetwork {name} without Private Google Access: {rule}\n"
            f"    fix, unless another way leads to Google: {fix} --enable-private-ip-google-access"
        )


def _part(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
