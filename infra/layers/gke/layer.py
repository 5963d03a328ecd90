"""GKE layer: a cluster, its CPU nodes, and a node pool for each TPU slice."""

from __future__ import annotations

from collections.abc import Iterator

from infra.core.layer import Acting, Hooks, Layer, Named, Place, deferred
from infra.core.providers import GOOGLE
from infra.core.secrets import GRANTING
from infra.google.quotas import Use, gke_chips
from infra.google.role import Role, act_as
from infra.layers.gke import pools
from infra.layers.gke.one_pool import checked
from infra.layers.gke.outputs import GkeOutputs
from infra.layers.gke.pods import identity
from infra.layers.gke.rules import RULES
from infra.layers.gke.settings import NODES, GkeSettings, PoolSettings
from infra.settings.schema import Settings


def _services(settings: Settings) -> Iterator[str]:
    yield "compute.googleapis.com"
    yield "container.googleapis.com"


def _accounts(settings: Settings) -> Iterator[Named]:
    desired = settings[GkeSettings]
    yield Named("gke:nodeAccountId", desired.node_account_id, NODES)
    if desired.workload_account_id:
        yield Named("gke:workloadAccountId", desired.workload_account_id, "the pods'")


def _buckets(settings: Settings) -> Iterator[Named]:
    if name := settings[GkeSettings].artifact_bucket:
        yield Named("gke:artifactBucket", name, "the cluster's")


def _at_google(settings: Settings) -> dict[str, str]:
    id_ = pools.cluster_id(settings)
    own = [] if settings[GkeSettings].existing_cluster else [id_]
    names = [*own, *(f"{id_}/nodePools/{pool.name}" for pool in pools.pools(settings))]
    return {name: f"https://container.googleapis.com/v1/{name}" for name in names}


def _quotas(settings: Settings) -> Iterator[Use]:
    """Yield the chips of all pools at once. A reservation has its chips already."""
    why = "all pools of gke have"
    amounts: dict[bool, int] = {}
    for pool in pools.pools(settings):
        if not pool.reservation:
            revocable = pool.is_flex_start or pool.provisioning == pools.SPOT
            amounts[revocable] = amounts.get(revocable, 0) + pool.kind.chips
    for revocable, chips in sorted(amounts.items()):
        yield Use(gke_chips(pools.region(settings), revocable=revocable), chips, why)


_ACTING = Acting(
    "GKE nodes' account", "gke:nodeAccountUsers", lambda given: [given[GkeSettings].node_account_id]
)
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
        "roles/container.viewer", "see the jobs on a pool before it is deleted",
        ("container.clusters.connect", "container.nodes.list", "container.pods.list"),
    ),
    Role(
        "roles/iam.serviceAccountAdmin", "create the GKE nodes' account and its policy",
        ("iam.serviceAccounts.create", "iam.serviceAccounts.get", "iam.serviceAccounts.getIamPolicy",
         "iam.serviceAccounts.setIamPolicy", "iam.serviceAccounts.delete"),
    ),
    Role(
        "roles/resourcemanager.projectIamAdmin", "let GKE nodes write logs and metrics",
        ("resourcemanager.projects.getIamPolicy", "resourcemanager.projects.setIamPolicy"),
    ),
    Role(
        "roles/storage.admin", "let pods use the buckets",
        ("storage.buckets.get", "storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy"),
    ),
    Role(
        "roles/storage.admin", "create the artifact bucket",
        ("storage.buckets.create", "storage.buckets.delete", "storage.buckets.update"),
        setting="artifact_bucket",
    ),
    GRANTING,
    act_as(_ACTING.on, "create nodes that run as it"),
)  # fmt: skip


def _claims(settings: Settings) -> Iterator[Named]:
    """Yield the pods' identities: IAM knows a project's namespaces and accounts, and no cluster.

    https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity
    """
    account = settings[GkeSettings].kubernetes_account
    for namespace in settings[GkeSettings].namespaces:
        yield Named("gke:kubernetesAccount", account, identity(settings, namespace))


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
    accounts=_accounts,
    buckets=_buckets,
    places=lambda settings: [Place("gke:region", "container", pools.region(settings))],
    prices=pools.rows,
    rates=pools.rates,
    at_google=_at_google,
    hooks=Hooks(acting=_ACTING, claims=_claims, quotas=_quotas),
    ids={
        "gcp:container/cluster:Cluster": "projects/{project}/locations/{location}/clusters/{name}",
        "gcp:container/nodePool:NodePool": (
            "projects/{project}/locations/{location}/clusters/{cluster}/nodePools/{name}"
        ),
    },
    program=deferred(f"{__package__}.program"),
)
