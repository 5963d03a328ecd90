"""The cluster, its CPU nodes, and its subnet."""

import pulumi
import pulumi_gcp as gcp

from google_facts.scopes import EVERYTHING
from infra.core import names
from infra.core.guard import FIXED, Living
from infra.layers.gke import pools
from infra.layers.gke.identity import NodeIdentity
from infra.layers.gke.settings import GkeSettings
from infra.layers.network.settings import NetworkSettings
from infra.settings.schema import Settings

_EXCLUDED_FROM = "2026-01-01T00:00:00Z"  # any time in the past; another one would be a diff
_SCOPES = [EVERYTHING]  # roles say what an account may do


class TrainingCluster(pulumi.ComponentResource):
    """A regional cluster without public addresses: people reach it by its DNS name, which asks IAM."""

    cluster: gcp.container.Cluster
    cpu_pool: gcp.container.NodePool

    def __init__(
        self,
        settings: Settings,
        network_id: pulumi.Input[str],
        nodes: NodeIdentity,
        opts: pulumi.ResourceOptions | None = None,
    ):
        desired = settings[GkeSettings]
        super().__init__("tpu:gke:TrainingCluster", desired.cluster_name, None, opts)
        protected = desired.deletion_protection
        self.cluster = gcp.container.Cluster(
            desired.cluster_name,
            name=desired.cluster_name,
            location=pools.region(settings),
            node_locations=list(pools.cpu_zones(settings)),
            description=desired.description,
            network=network_id,
            subnetwork=self._subnet(settings, network_id),
            networking_mode="VPC_NATIVE",
            ip_allocation_policy={
                "cluster_secondary_range_name": desired.pods_range_name,
                "services_secondary_range_name": desired.services_range_name,
            },
            datapath_provider="ADVANCED_DATAPATH",
            private_cluster_config={"enable_private_nodes": True},
            control_plane_endpoints_config={
                "dns_endpoint_config": {"allow_external_traffic": True},
                "ip_endpoints_config": {"enabled": False},
            },
            release_channel={"channel": desired.channel},
            min_master_version=desired.version,
            maintenance_policy=self._maintenance(desired),
            workload_identity_config={"workload_pool": f"{settings.project}.svc.id.goog"},
            authenticator_groups_config=(
                {"security_group": desired.security_group} if desired.security_group else None
            ),
            addons_config={
                "gcs_fuse_csi_driver_config": {"enabled": True},
                "gce_persistent_disk_csi_driver_config": {"enabled": True},
                "gcp_filestore_csi_driver_config": {"enabled": True},
            },
            logging_config={"enable_components": ["SYSTEM_COMPONENTS", "WORKLOADS"]},
            monitoring_config={
                "enable_components": ["SYSTEM_COMPONENTS", "JOBSET"],
                "managed_prometheus": {"enabled": True},
            },
            deletion_protection=settings.protected if protected is None else protected,
            # The first pool is only there because a cluster can't be made without one. It must not run as
            # the project's default account, which may be disabled.
            initial_node_count=1,
            remove_default_node_pool=True,
            node_config={"service_account": nodes.account.email, "oauth_scopes": _SCOPES},
            opts=pulumi.ResourceOptions(
                parent=self,
                hooks=nodes.acting,
                # node_config says nothing of a cluster whose first pool is gone, and a difference replaces it
                # (https://github.com/pulumi/pulumi-gcp/issues/744); so does a new description. The channel
                # upgrades the version. Without IP endpoints GKE sets the private one, which pulumi-gcp 9
                # would take back at every update.
                ignore_changes=[
                    "nodeConfig",
                    "initialNodeCount",
                    "minMasterVersion",
                    "description",
                    "privateClusterConfig.enablePrivateEndpoint",
                ],
            ),
        )
        self.cpu_pool = gcp.container.NodePool(
            "cpu",
            name="cpu",
            cluster=self.cluster.name,
            location=pools.region(settings),
            node_locations=list(pools.cpu_zones(settings)),
            node_count=desired.cpu_pool_nodes,
            max_pods_per_node=pools.PODS_PER_CPU_NODE,
            management={"auto_repair": True, "auto_upgrade": True},
            network_config={"enable_private_nodes": True},
            node_config={
                "machine_type": desired.cpu_pool_machine_type,
                "disk_type": desired.cpu_pool_disk_type,
                "disk_size_gb": desired.cpu_pool_disk_gib,
                **node_defaults(nodes.account.email),
            },
            # Of no use once the pool is there, and any difference, as of a refresh, would replace it.
            opts=pulumi.ResourceOptions(parent=self, hooks=nodes.acting, ignore_changes=["initialNodeCount"]),
        )
        self.register_outputs({})

    def _subnet(self, settings: Settings, network_id: pulumi.Input[str]) -> pulumi.Input[str]:
        desired = settings[GkeSettings]
        if desired.existing_subnet:
            return desired.existing_subnet
        name = names.fitted(f"{settings[NetworkSettings].name}-{desired.cluster_name}")
        subnet = gcp.compute.Subnetwork(
            name,
            name=name,
            network=network_id,
            region=pools.region(settings),
            ip_cidr_range=desired.subnet_range,
            secondary_ip_ranges=[
                {"range_name": desired.pods_range_name, "ip_cidr_range": desired.pods_range},
                {"range_name": desired.services_range_name, "ip_cidr_range": desired.services_range},
            ],
            private_ip_google_access=True,
            log_config={
                "aggregation_interval": "INTERVAL_10_MIN",
                "flow_sampling": settings[NetworkSettings].flow_log_sampling,
                "metadata": "INCLUDE_ALL_METADATA",
            },
            opts=pulumi.ResourceOptions(parent=self),
        )
        # Google changes no secondary range that is there, and adds none in a request that removes one
        # (https://github.com/hashicorp/terraform-provider-google/issues/2570). Another subnet beside this one
        # would need ranges of its own.
        fixed = {
            "gke:clusterName": desired.cluster_name,
            "gke:region": pools.region(settings),
            "gke:podsRange": desired.pods_range,
            "gke:podsRangeName": desired.pods_range_name,
            "gke:servicesRange": desired.services_range,
            "gke:servicesRangeName": desired.services_range_name,
        }
        Living(FIXED, settings.project, settings.environment, {**fixed}, [subnet], "the cluster's subnet")
        return subnet.id

    def _maintenance(self, desired: GkeSettings) -> gcp.container.ClusterMaintenancePolicyArgsDict:
        policy: gcp.container.ClusterMaintenancePolicyArgsDict = {
            "daily_maintenance_window": {"start_time": desired.maintenance_start}
        }
        if desired.exclude_upgrades:
            policy["maintenance_exclusions"] = [
                {
                    "exclusion_name": "no-upgrades",
                    "start_time": _EXCLUDED_FROM,
                    "exclusion_options": {
                        "scope": "NO_MINOR_OR_NODE_UPGRADES",
                        "end_time_behavior": "UNTIL_END_OF_SUPPORT",
                    },
                }
            ]
        return policy


def node_defaults(account: pulumi.Input[str]) -> gcp.container.NodePoolNodeConfigArgsDict:
    """Return the settings of every node: an account, signed kernels, and metadata that hides the
    account's token from pods."""
    return {
        "service_account": account,
        "oauth_scopes": _SCOPES,
        "workload_metadata_config": {"mode": "GKE_METADATA"},
        "shielded_instance_config": {"enable_secure_boot": True, "enable_integrity_monitoring": True},
    }
