"""Outputs of the gke layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.core import names
from infra.core.outputs import Outputs, output
from infra.layers.gke import pools
from infra.layers.gke.settings import GkeSettings
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from pulumi import Output


class GkeOutputs(Outputs, layer="gke"):
    """The cluster, for queues and people."""

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

    @staticmethod
    def planned(settings: Settings) -> Mapping[str, Any]:
        """Return the outputs that the settings determine, for previews of layers that read them."""
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
