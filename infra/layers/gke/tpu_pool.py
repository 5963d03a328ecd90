"""A node pool that is a TPU slice."""

import pulumi
import pulumi_gcp as gcp

from google_facts import gke_pools
from infra.core.guard import PODS, Living
from infra.layers.gke.cluster import node_defaults
from infra.layers.gke.identity import NodeIdentity
from infra.layers.gke.pools import QUEUED, SPOT, Pool, cluster_id, region
from infra.layers.gke.settings import GkeSettings
from infra.settings.schema import Settings

GROUP_LABEL, PROVISIONING_LABEL = "multislice-group", "tpu-provisioning"
_BOOT_DISK_GIB = 100


class TpuPool(pulumi.ComponentResource):
    """A slice: GKE creates and removes all of its nodes together."""

    pool: gcp.container.NodePool

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        cluster: pulumi.Input[str],
        nodes: NodeIdentity,
        opts: pulumi.ResourceOptions | None = None,
    ):
        """Declare the pool; `cluster`: its name."""
        super().__init__("tpu:gke:TpuPool", pool.name, None, opts)
        desired = settings[GkeSettings]
        self.pool = gcp.container.NodePool(
            pool.name,
            name=pool.name,
            cluster=cluster,
            location=region(settings),
            node_locations=[pool.zone],
            node_count=None if pool.scales else pool.nodes,
            initial_node_count=0 if pool.scales else None,
            autoscaling=_autoscaling(pool) if pool.scales else None,
            max_pods_per_node=desired.pods_per_tpu_node,
            # A single machine has no neighbours to be placed beside: with a topology GKE refuses it.
            placement_policy=(
                {"type": "COMPACT", "tpu_topology": pool.kind.topology} if pool.nodes > 1 else None
            ),
            queued_provisioning={"enabled": True} if pool.provisioning == QUEUED else None,
            management={"auto_repair": not pool.is_flex_start, "auto_upgrade": True},
            network_config={"enable_private_nodes": True},
            node_config=_node_config(pool, desired, nodes.email),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[nodes.account],
                hooks=nodes.acting,
                # GKE adds no nodes to a slice and takes no other machines for it: a new pool is needed
                # (https://cloud.google.com/kubernetes-engine/docs/concepts/tpus). The provider's schema has
                # these as changes in place.
                replace_on_changes=["placementPolicy", "nodeConfig.machineType", "nodeLocations"],
                delete_before_replace=True,
                # Only how it begins: that a pool scales is switched in place.
                ignore_changes=["initialNodeCount"],
            ),
        )
        Living(
            PODS,
            settings.project,
            settings.environment,
            {"cluster": cluster_id(settings), "pool": pool.name, "id": self.pool.id},
            [self.pool],
            pool.name,
        )
        self.register_outputs({})


def _autoscaling(pool: Pool) -> gcp.container.NodePoolAutoscalingArgsDict:
    # Limits in each zone and not of all: flex-start takes no others
    # (https://github.com/GoogleCloudPlatform/cluster-toolkit, gke-node-pool). The pool is in one zone.
    policy = "ANY" if pool.is_flex_start else "BALANCED"
    return {"min_node_count": 0, "max_node_count": pool.nodes, "location_policy": policy}


def _node_config(pool: Pool, desired: GkeSettings, account: str) -> gcp.container.NodePoolNodeConfigArgsDict:
    config: gcp.container.NodePoolNodeConfigArgsDict = {
        "machine_type": pool.machine.name,
        "disk_type": "hyperdisk-balanced",  # the only boot disk that v6e takes
        "disk_size_gb": _BOOT_DISK_GIB,
        "gvnic": {"enabled": True},
        "labels": {
            GROUP_LABEL: desired.multislice_group,
            PROVISIONING_LABEL: pool.provisioning_label,
            **({gke_pools.QUEUED_LABEL: gke_pools.QUEUED_VALUE} if pool.provisioning == QUEUED else {}),
        },
        "resource_labels": dict(pool.labels),
        "taints": [{"key": "google.com/tpu", "value": "present", "effect": "NO_SCHEDULE"}],
        **node_defaults(account),
    }
    if pool.provisioning == SPOT:
        config["spot"] = True
    if pool.is_flex_start:
        config["flex_start"] = True
        config["reservation_affinity"] = {"consume_reservation_type": "NO_RESERVATION"}
    if pool.max_run_duration_s:
        config["max_run_duration"] = f"{pool.max_run_duration_s}s"
    if pool.reservation:
        config["reservation_affinity"] = {
            "consume_reservation_type": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [pool.reservation],
        }
    return config
