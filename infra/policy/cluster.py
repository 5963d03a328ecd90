"""Rules for GKE and what runs on it."""

from collections.abc import Iterator

from infra.policy.rule import Resource, Rule, every, given, literal
from infra.settings.schema import Settings

_CLUSTER = ("gcp:container/cluster:Cluster",)
_POOL = ("gcp:container/nodePool:NodePool",)
_PODS = ("kubernetes:apps/v1:*", "kubernetes:batch/v1:*", "kubernetes:core/v1:Pod")


def _workload_identity(resource: Resource, settings: Settings) -> Iterator[str]:
    if (pool := resource.get("workloadIdentityConfig.workloadPool")) != f"{settings.project}.svc.id.goog":
        yield f"workloadIdentityConfig.workloadPool: {pool or 'nothing'}"


def _repaired(resource: Resource, _: Settings) -> Iterator[str]:
    # Google wants it off for nodes that come for a job: they are recreated, not repaired.
    for_a_job = (
        resource.get("nodeConfig.flexStart") is True or resource.get("queuedProvisioning.enabled") is True
    )
    if resource.get("management.autoRepair") is not True and not for_a_job:
        yield f"management.autoRepair: {resource.get('management.autoRepair') or 'nothing'}"


def _protected(resource: Resource, settings: Settings) -> Iterator[str]:
    if settings.protected and resource.get("deletionProtection") is not True:
        yield f"deletionProtection: {resource.get('deletionProtection')}"


def _confined(resource: Resource, _: Settings) -> Iterator[str]:
    pod = resource.get("spec.template.spec") or resource.get("spec") or {}
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield f"{key}: true"
    for container in (*(pod.get("containers") or ()), *(pod.get("initContainers") or ())):
        if (container.get("securityContext") or {}).get("privileged"):
            yield f"containers.{container.get('name')}: privileged"


RULES = (
    Rule("K01", _CLUSTER, "nodes and control plane have no external address",
         "private nodes, and the DNS endpoint alone", "CKV_GCP_25, CKV_GCP_64, CKV_GCP_18",
         every(literal("privateClusterConfig.enablePrivateNodes", True),
               literal("controlPlaneEndpointsConfig.ipEndpointsConfig.enabled", False))),
    Rule("K02", _CLUSTER, "pods get accounts by Workload Identity", "workload_identity_config", "CKV_GCP_69",
         _workload_identity),
    Rule("K11", _POOL, "pods can't read their node's metadata", "workload_metadata_config", "CKV_GCP_69",
         literal("nodeConfig.workloadMetadataConfig.mode", "GKE_METADATA")),
    Rule("K03", _POOL, "nodes have secure boot and integrity monitoring", "shielded_instance_config",
         "CKV_GCP_68, CKV_GCP_72",
         every(literal("nodeConfig.shieldedInstanceConfig.enableSecureBoot", True),
               literal("nodeConfig.shieldedInstanceConfig.enableIntegrityMonitoring", True))),
    Rule("K04", _CLUSTER, "a cluster is in a release channel", "gke:channel", "CKV_GCP_70",
         literal("releaseChannel.channel", "REGULAR", "STABLE", "RAPID", "EXTENDED")),
    Rule("K12", _POOL, "broken nodes are repaired", "management.auto_repair", "CKV_GCP_9",
         _repaired),
    Rule("K05", _CLUSTER, "pods have VPC addresses, and Dataplane V2 enforces network policies",
         "VPC_NATIVE and ADVANCED_DATAPATH", "CKV_GCP_12, CKV_GCP_23",
         every(literal("networkingMode", "VPC_NATIVE"), literal("datapathProvider", "ADVANCED_DATAPATH"))),
    Rule("K06", _CLUSTER, "no client certificates, no ABAC", "omit both",
         "CKV_GCP_13, CKV_GCP_7",
         every(literal("masterAuth.clientCertificateConfig.issueClientCertificate", None, False),
               literal("enableLegacyAbac", None, False))),
    Rule("K07", _POOL, "nodes have their own service account", "node_config.service_account", "CKV2_GCP_1",
         given("nodeConfig.serviceAccount")),
    Rule("K09", _CLUSTER, "clusters have deletion protection, except in dev",
         "gke:deletionProtection: true; or, to delete it, an exception in policy:exceptions", "", _protected),
    Rule("K10", _PODS, "controllers use neither the host's network nor privileged containers",
         "omit hostNetwork and privileged", "", _confined),
)  # fmt: skip
