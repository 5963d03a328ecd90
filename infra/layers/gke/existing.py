"""An existing cluster: read and used as it is, after a check of what its TPU pools and their jobs need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulumi
import pulumi_gcp as gcp
from pulumi.output import Unknown

from infra.layers.gke import pools
from infra.layers.gke.settings import GkeSettings
from infra.settings.schema import Settings

_TPU_MACHINES = "ct"


def existing_cluster(settings: Settings, opts: pulumi.ResourceOptions) -> gcp.container.Cluster:
    """Return the cluster, read as a resource that the stack doesn't own: no destroy deletes it."""
    return gcp.container.Cluster.get("existing", pools.cluster_id(settings), opts=opts)


def checked_name(
    settings: Settings, network_id: pulumi.Input[str], cluster: gcp.container.Cluster
) -> pulumi.Output[str]:
    """Return the cluster's name once it was found fit; pools that are given it wait for that.

    A plan reads the cluster, too. Raises RunError with every miss and its fix.
    """

    def check(read: dict[str, Any]) -> str:
        misses = [f"{problem}\n    fix: {fix}" for problem, fix in _misses(settings, read)]
        if misses:
            refused = f"gke:existingCluster: {pools.cluster_id(settings)} can't be used as it is:"
            raise pulumi.RunError("\n".join((refused, *misses)))
        return settings[GkeSettings].cluster_name

    return pulumi.Output.all(
        wanted=network_id,
        network=_field(cluster.network),
        autopilot=_field(cluster.enable_autopilot),
        pods=cluster.ip_allocation_policy.apply(_range_of_pods, run_with_unknowns=True),
        identity=_field(cluster.workload_identity_config, "workload_pool"),
        mounts=_field(cluster.addons_config, "gcs_fuse_csi_driver_config", "enabled"),
        reached=_field(
            cluster.control_plane_endpoints_config, "dns_endpoint_config", "allow_external_traffic"
        ),
        machines=cluster.node_pools.apply(_machines, run_with_unknowns=True),
    ).apply(check)


def _misses(settings: Settings, read: dict[str, Any]) -> Iterator[tuple[str, str]]:
    name, region = settings[GkeSettings].cluster_name, pools.region(settings)
    update = f"gcloud container clusters update {name} --project={settings.project} --location={region}"
    pool = f"{settings.project}.svc.id.goog"
    if read["autopilot"]:
        yield "it is an Autopilot cluster, which takes no node pools", "name a Standard cluster"
        return
    network = str(read["network"]).partition("projects/")[2]
    if f"projects/{network}" != read["wanted"]:
        problem = f"its network is projects/{network}, and the environment's {read['wanted']}"
        yield problem, f"network:existingNetwork: projects/{network}"
    if not read["pods"]:
        yield "its pods have no range of their own (VPC-native)", "name a VPC-native cluster"
    if read["identity"] != pool:
        yield "it has no Workload Identity, by which pods use the buckets", f"{update} --workload-pool={pool}"
    if not read["mounts"]:
        problem = "it has no Cloud Storage FUSE driver, by which jobs mount the buckets"
        yield problem, f"{update} --update-addons=GcsFuseCsiDriver=ENABLED"
    if not read["reached"]:
        yield "its DNS endpoint takes no traffic from outside", f"{update} --enable-dns-access"
    if all(machine.startswith(_TPU_MACHINES) for machine in read["machines"]):
        fix = f"gcloud container node-pools create cpu --cluster={name} --project={settings.project}"
        yield "it has no nodes without TPUs, where controllers run", f"{fix} --location={region}"


def _field(output: pulumi.Output[Any], *path: str) -> pulumi.Output[Any]:
    """Return a field of what was read; None where Google leaves it out, which a preview takes for unknown."""
    return output.apply(lambda value: _part(value, *path), run_with_unknowns=True)


def _range_of_pods(policy: Any) -> Any:
    return _part(policy, "cluster_secondary_range_name") or _part(policy, "cluster_ipv4_cidr_block")


def _machines(node_pools: Any) -> list[str]:
    present = () if isinstance(node_pools, Unknown) else node_pools or ()
    return [str(_part(pool, "node_config", "machine_type")) for pool in present]


def _part(value: Any, *path: str) -> Any:
    for name in path:
        value = getattr(value, name, None)
    return None if isinstance(value, Unknown) else value
