"""GKE layer: a cluster, its CPU nodes, and a node pool for each TPU slice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from infra import names
from infra.gcp.roles import ACT_AS_NODES, Role
from infra.gke import pools
from infra.gke.one_pool import checked
from infra.gke.rules import RULES
from infra.gke.settings import GkeSettings, PoolSettings
from infra.layers import Layer, deferred
from infra.outputs import Outputs, output
from infra.providers import GOOGLE
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from pulumi import Output


class GkeOutputs(Outputs):
    """What queues and people need of the cluster."""

    cluster_name: Output[str] = output("`tpu`")
    location: Output[str] = output("`us-east5`")
    endpoint: Output[str] = output("the control plane's DNS name, `gke-….us-east5.gke.goog`")
    workload_pool: Output[str] = output("`PROJECT.svc.id.goog`")
    namespaces: Output[list[str]] = output("list: Kubernetes namespaces whose pods may use the buckets")
    kubernetes_account: Output[str] = output("the service account in each of them that pods run as")
    workload_account_email: Output[str] | None = output(
        "Google account that pods impersonate; absent: no `gke:workloadAccountId`", default=None
    )
    pools: Output[list[dict[str, Any]]] = output(
        "list: name, acceleratorType, topology, machineType, hosts, chips, zone, provisioning,"
        " provisioningLabel, scales, pricePerHour"
    )
    multislice_group: Output[str] = output("value of the TPU nodes' label `multislice-group`")
    price_per_hour: Output[float] | None = output(
        "US dollars, of the cluster and all nodes; absent: a price isn't known", default=None
    )
    node_account_email: Output[str] = output("`tpu-gke-nodes@PROJECT.iam.gserviceaccount.com`")
    artifact_bucket: Output[str] | None = output("absent: no `gke:artifactBucket`", default=None)
    kubeconfig: Output[str] = output("for kubectl with gke-gcloud-auth-plugin; it holds no token")


def _planned(settings: Settings) -> dict[str, Any]:
    desired = settings[GkeSettings]
    return {
        "cluster_name": desired.cluster_name,
        "location": pools.region(settings),
        "workload_pool": f"{settings.project}.svc.id.goog",
        "namespaces": list(desired.namespaces),
        "kubernetes_account": desired.kubernetes_account,
        "pools": [pool.outputs() for pool in pools.pools(settings)],
        "multislice_group": desired.multislice_group,
        "node_account_email": names.account_email(settings, desired.node_account_id),
    }


def _services(settings: Settings) -> Iterator[str]:
    yield "compute.googleapis.com"
    yield "container.googleapis.com"


def _at_google(settings: Settings) -> dict[str, str]:
    place = f"projects/{settings.project}/locations/{pools.region(settings)}"
    id_ = f"{place}/clusters/{settings[GkeSettings].cluster_name}"
    names = [id_, *(f"{id_}/nodePools/{pool.name}" for pool in pools.pools(settings))]
    return {name: f"https://container.googleapis.com/v1/{name}" for name in names}


_ROLES = (
    Role(
        "roles/container.clusterAdmin", "create the cluster and its node pools",
        ("container.clusters.create", "container.clusters.delete", "container.clusters.get",
         "container.clusters.update", "container.operations.get"),
    ),
    Role(
        "roles/compute.networkAdmin", "create the cluster's subnet",
        ("compute.subnetworks.create", "compute.subnetworks.delete", "compute.subnetworks.get",
         "compute.subnetworks.update"),
    ),
    Role(
        "roles/compute.viewer", "count the nodes of a pool", ("compute.instanceGroupManagers.list",),
    ),
    Role(
        "roles/iam.serviceAccountAdmin", "create the nodes' account and say who uses it",
        ("iam.serviceAccounts.create", "iam.serviceAccounts.get", "iam.serviceAccounts.getIamPolicy",
         "iam.serviceAccounts.setIamPolicy", "iam.serviceAccounts.delete"),
    ),
    Role(
        "roles/resourcemanager.projectIamAdmin", "let nodes pull images and write logs",
        ("resourcemanager.projects.getIamPolicy", "resourcemanager.projects.setIamPolicy"),
    ),
    Role(
        "roles/storage.admin", "let pods use the buckets",
        ("storage.buckets.get", "storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy"),
    ),
    Role(
        "roles/storage.admin", "create the bucket of artifacts",
        ("storage.buckets.create", "storage.buckets.delete", "storage.buckets.update"),
        setting="artifact_bucket",
    ),
    ACT_AS_NODES,
)  # fmt: skip

LAYER = Layer(
    name="gke",
    reads=("storage", "network"),
    may_read=("builds",),
    settings=GkeSettings,
    rules=RULES,
    record_rules={PoolSettings: checked},
    roles=_ROLES,
    grants=lambda given: (*given[GkeSettings].node_roles, *given[GkeSettings].workload_roles),
    services=_services,
    providers=GOOGLE,
    outputs=GkeOutputs,
    planned=_planned,
    prices=pools.rows,
    rates=pools.rates,
    at_google=_at_google,
    ids={
        "gcp:container/cluster:Cluster": "projects/{project}/locations/{location}/clusters/{name}",
        "gcp:container/nodePool:NodePool": (
            "projects/{project}/locations/{location}/clusters/{cluster}/nodePools/{name}"
        ),
    },
    program=deferred(f"{__name__}.program"),
)
