"""Declares the GKE layer."""

import json
from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra.core import upstream
from infra.core.layer import directory
from infra.errors import CommandError
from infra.layers.builds.outputs import applying_member
from infra.layers.gke import existing, pools
from infra.layers.gke.cluster import TrainingCluster
from infra.layers.gke.identity import NodeIdentity, WorkloadIdentity
from infra.layers.gke.outputs import GkeOutputs
from infra.layers.gke.settings import GkeSettings
from infra.layers.gke.tpu_pool import TpuPool
from infra.layers.network.outputs import NetworkOutputs
from infra.layers.storage.outputs import StorageOutputs
from infra.prices import row as prices_row
from infra.settings.schema import Settings


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> GkeOutputs:
    """Return the cluster, its pools, and who may do what."""
    desired, provider = settings[GkeSettings], providers["gcp"]
    opts = pulumi.ResourceOptions(provider=provider)
    # All that it reads, first: what isn't up is reported before anything is made.
    network_id = upstream.read(NetworkOutputs, settings).network_id
    storage = upstream.read(StorageOutputs, settings)
    buckets: dict[str, pulumi.Input[str]] = {
        "checkpoints": storage.bucket_name,
        "steps": storage.steps_bucket_name,
    }
    host = existing.require_fit(settings) if desired.existing_cluster else None
    nodes = NodeIdentity(settings, applying_member(settings), opts)
    after = pulumi.ResourceOptions(provider=provider, depends_on=[nodes])
    made: list[pulumi.Resource] = []
    if host:
        endpoint = pulumi.Output.from_input(host)
        cluster_name = pulumi.Output.from_input(desired.cluster_name)
    else:
        cluster = TrainingCluster(settings, network_id, nodes, after).cluster
        endpoint = cluster.control_plane_endpoints_config.apply(
            lambda config: dns_name(config, settings.environment)
        )
        cluster_name = cluster.name
        made.append(cluster)
    slices = pools.pools(settings)
    for pool in slices:
        TpuPool(settings, pool, cluster_name, nodes, after)
    name = desired.artifact_bucket
    artifacts = ArtifactBucket(settings, name, opts).bucket if name else None
    if artifacts:
        buckets["artifacts"] = artifacts.name
    workload = WorkloadIdentity(settings, storage.project_number, buckets, made, opts)
    hourly = prices_row.total([row.hourly for row in pools.rows(settings)])
    return GkeOutputs(
        cluster_name=cluster_name,
        location=pulumi.Output.from_input(pools.region(settings)),
        endpoint=endpoint,
        workload_pool=pulumi.Output.from_input(f"{settings.project}.svc.id.goog"),
        namespaces=pulumi.Output.from_input(list(desired.namespaces)),
        kubernetes_account=pulumi.Output.from_input(desired.kubernetes_account),
        workload_account_email=workload.account.email if workload.account else None,
        pools=pulumi.Output.from_input([pool.outputs() for pool in slices]),
        multislice_group=pulumi.Output.from_input(desired.multislice_group),
        price_per_hour=None if hourly is None else pulumi.Output.from_input(hourly),
        node_account_email=nodes.account.email,
        artifact_bucket=artifacts.name if artifacts else None,
        kubeconfig=endpoint.apply(lambda host: kubeconfig(settings, host)),
    )


def dns_name(
    config: gcp.container.outputs.ClusterControlPlaneEndpointsConfig, environment: str
) -> pulumi.Output[str]:
    """Return the control plane's DNS name, which Google chooses.

    A preview that took it for empty would be a plan that no update can follow, and an update would replace
    the cluster's provider, and with it all objects. Raises CommandError where an update has none.
    """
    name: Any = (config.dns_endpoint_config and config.dns_endpoint_config.endpoint) or ""
    if not name and not pulumi.runtime.is_dry_run():
        raise CommandError(
            "the cluster has no DNS endpoint yet\n"
            f"    fix: pulumi -C {directory('gke')} refresh -s {environment}; then again"
        )
    return pulumi.Output.from_input(name or pulumi.UNKNOWN)


def kubeconfig(settings: Settings, host: str) -> str:
    """Return a kubeconfig whose token is asked for at each call, by the plug-in of the Google Cloud CLI.

    By the application default credentials, with which Pulumi asks Google too: one login, one account.
    https://cloud.google.com/kubernetes-engine/docs/how-to/cluster-access-for-kubectl
    """
    name = f"gke_{settings.project}_{pools.region(settings)}_{settings[GkeSettings].cluster_name}"
    execute = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "gke-gcloud-auth-plugin",
        "args": ["--use_application_default_credentials"],
        "installHint": "gcloud components install gke-gcloud-auth-plugin",
        "interactiveMode": "Never",
        "provideClusterInfo": True,
    }
    # The control plane's DNS name has a certificate of a public authority: none is given here.
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": f"https://{host}"}}],
            "users": [{"name": name, "user": {"exec": execute}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        },
        indent=2,
    )


class ArtifactBucket(pulumi.ComponentResource):
    """A private bucket, which the stack's end leaves as it is unless `gke:forceDestroy` gives it up."""

    bucket: gcp.storage.Bucket

    def __init__(self, settings: Settings, name: str, opts: pulumi.ResourceOptions | None = None):
        super().__init__("tpu:gke:ArtifactBucket", name, None, opts)
        given_up = settings[GkeSettings].force_destroy
        self.bucket = gcp.storage.Bucket(
            name,
            name=name,
            location=pools.region(settings),
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            force_destroy=given_up,
            lifecycle_rules=[{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}],
            opts=pulumi.ResourceOptions(parent=self, protect=not given_up, retain_on_delete=not given_up),
        )
        self.register_outputs({})
