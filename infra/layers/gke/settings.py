"""Settings of the GKE layer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from google_facts.machines import CPU_FAMILIES, cpu_family
from infra.catalog import CATALOG
from infra.google.role import BASIC
from infra.layers.gke.facts import CHANNELS, MACHINES, MAX_FLEX_START_S
from infra.settings import rules
from infra.settings.schema import STACK_LABELS, labels_setting, setting

_NODES_PER_POOL = 64
_ROLE = re.compile(r"roles/[A-Za-z][A-Za-z0-9]*(\.[A-Za-z0-9]+)*")
# Owner of the account that nodes run as.
NODES = "the GKE nodes'"
_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"  # https://www.rfc-editor.org/rfc/rfc1123
NAMESPACE = rules.pattern(
    _LABEL,
    "a Kubernetes namespace: 1 to 63 lowercase letters, digits and hyphens, first and last no hyphen",
    "rename it",
)
_KUBERNETES_ACCOUNT = rules.pattern(
    f"(?!default$){_LABEL}",
    "1 to 63 lowercase letters, digits and hyphens, and not default: every pod that names none has that one",
    "give it a name of its own, such as trainer",
)
_POOL_NAME = rules.pattern(
    "[a-z]([-a-z0-9]{0,34}[a-z0-9])?",
    "1 to 36 lowercase letters, digits and hyphens (a number is added to it), first a letter, last no hyphen",
    "rename it",
)
_CPU_MACHINE = rules.Rule(
    lambda name: cpu_family(name) is not None,
    f"a machine type without accelerators, of {', '.join(CPU_FAMILIES)}",
    "write e.g. n2-standard-4",
)
_NODE_ROLE = rules.Rule(
    lambda role: bool(_ROLE.fullmatch(role)) and not role.startswith("roles/storage.") and role not in BASIC,
    "a role on the project, such as roles/container.defaultNodeServiceAccount; no basic role (owner, editor, "
    "viewer), and none of Cloud Storage, which pods are granted on their buckets",
    "remove it",
)


def of_the_cluster(namespace: str) -> bool:
    """Return True for a namespace of Kubernetes, GKE or a controller, whose pods have rights of their own."""
    controllers = ("default", "kueue-system", "jobset-system")
    return namespace in controllers or namespace.startswith(("kube-", "gke-", "gmp-"))


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """An item of `gke:tpuPools`: a node pool that is a slice, or with `count` several equal pools."""

    name: str = setting(
        "first part of the node pools' names, NAME-0, NAME-1, …", rule=_POOL_NAME, example="train"
    )
    accelerator_type: str | None = setting(
        "size by name; this or topology", default=None, rule=rules.one_of(*(k.name for k in CATALOG.types))
    )
    topology: str | None = setting(
        "size by grid of chips; this or acceleratorType", default=None, rule=rules.TOPOLOGY
    )
    machine_type: str | None = setting(
        "machine of each node; by the size, unless given (v6e-8 is one ct6e-standard-8t, or two "
        "ct6e-standard-4t, which a multislice job needs)",
        default=None,
        rule=rules.one_of(*(machine.name for machine in MACHINES)),
    )
    num_nodes: int | None = setting(
        "nodes of each slice, which the size says; only checked",
        default=None,
        rule=rules.between(1, _NODES_PER_POOL),
    )
    zone: str = setting("zone of the slices", rule=rules.ZONE, example="us-east5-b")
    count: int = setting(
        "number of slices; 0 removes them and keeps the cluster", default=1, rule=rules.between(0, 200)
    )
    spot: bool = setting("Spot: about half the price, preempted at any time", default=False)
    flex_start: bool = setting(
        "flex-start: Google creates the nodes when a job asks and chips are there, for seven days at most",
        default=False,
    )
    queued: bool = setting(
        "flex-start with queued provisioning: all nodes of a job at once, by the ProvisioningRequests of "
        "Kueue; as Google's blueprint for v6e has it",
        default=False,
    )
    reservation: str | None = setting(
        "name of the reservation that the chips come from", default=None, rule=rules.RESOURCE_NAME
    )
    autoscaling: bool = setting(
        "between no node and all, as jobs need them; flex-start and queued pools always scale", default=False
    )
    max_run_duration_s: int | None = setting(
        "how long a node lives, seconds; a flex-start pool's week, unless given",
        default=None,
        rule=rules.between(600, MAX_FLEX_START_S, "s"),
        example="86400",
    )
    labels: Mapping[str, str] = labels_setting("labels of the machines", STACK_LABELS)

    @property
    def is_flex_start(self) -> bool:
        """True if its nodes come by flex-start, as queued ones do, too."""
        return self.flex_start or self.queued


@dataclass(frozen=True, kw_only=True)
class GkeSettings:
    """A GKE cluster for training, with a node pool for each TPU slice."""

    cluster_name: str = setting(
        "name of the cluster; another one is another cluster, which would need ranges of its own: take the "
        "layer down before",
        default="tpu",
        rule=rules.NETWORK_NAME,
        per_environment=True,
    )
    existing_cluster: bool = setting(
        "use the cluster of that name in that region, which somebody else made: its TPU pools alone are made "
        "here, and no destroy deletes it",
        default=False,
    )
    description: str = setting(
        "what the cluster is for; GKE takes it once, when the cluster is made",
        default="Training on TPU slices",
    )
    region: str | None = setting(
        "region of the cluster; storage:location, unless given", default=None, rule=rules.REGION
    )
    channel: str = setting(
        "release channel, which upgrades the control plane", default="REGULAR", rule=rules.one_of(*CHANNELS)
    )
    version: str = setting(
        "version to begin with, or its first numbers",
        default="1.35",
        rule=rules.pattern(
            r"1\.\d{2}(\.\d+(-gke\.\d+)?)?",
            "a GKE version, such as 1.35",
            "write e.g. 1.35 or 1.35.7-gke.1222000",
        ),
    )
    exclude_upgrades: bool = setting(
        "hold minor versions, and upgrades of nodes, back until the version's end of support: an upgrade "
        "recreates nodes under running jobs",
        default=True,
    )
    maintenance_start: str = setting(
        "when a day's four hours of maintenance begin, UTC",
        default="03:00",
        rule=rules.pattern(r"([01]\d|2[0-3]):[0-5]\d", "a time from 00:00 to 23:59", "write e.g. 03:00"),
    )
    deletion_protection: bool | None = setting(
        "Google refuses to delete the cluster; true in every environment but `dev`, unless given",
        default=None,
    )
    existing_subnet: str | None = setting(
        "id of a subnet of that region, with two secondary ranges, instead of one of our own",
        default=None,
        rule=rules.SUBNET_ID,
    )
    subnet_range: str = setting("addresses of the nodes", default="10.129.0.0/20", rule=rules.SUBNET_RANGE)
    pods_range: str = setting(
        "addresses of the pods: a secondary range of the subnet, which keeps it and its name for life; every "
        "node takes a block of it",
        default="192.168.64.0/20",
        rule=rules.PODS_RANGE,
    )
    services_range: str = setting(
        "addresses of the services: a secondary range of the subnet, which keeps it and its name for life",
        default="192.168.80.0/20",
        rule=rules.SUBNET_RANGE,
    )
    pods_range_name: str = setting(
        "name of the pods' range in the subnet", default="pods", rule=rules.RESOURCE_NAME
    )
    services_range_name: str = setting(
        "name of the services' range in the subnet", default="services", rule=rules.RESOURCE_NAME
    )
    pods_per_tpu_node: int = setting(
        "pods that a TPU node holds at most, by which its block is sized: 15 take a /27, 110 a /24",
        default=15,
        rule=rules.between(8, 110),
    )
    cpu_pool_zones: tuple[str, ...] = setting(
        "zones of the CPU nodes, where controllers run; the first TPU pool's, unless given",
        default=(),
        rule=rules.ZONE,
        not_empty="controllers run on CPU nodes",
    )
    cpu_pool_nodes: int = setting("CPU nodes in each of these zones", default=3, rule=rules.between(1, 1000))
    cpu_pool_machine_type: str = setting(
        "machine of the CPU nodes",
        default="n2-standard-4",
        rule=_CPU_MACHINE,
    )
    cpu_pool_disk_type: str = setting(
        "boot disk of the CPU nodes",
        default="pd-balanced",
        rule=rules.one_of("pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced"),
    )
    cpu_pool_disk_gib: int = setting("size of that disk", default=200, rule=rules.between(20, 65536, "GiB"))
    tpu_pools: tuple[PoolSettings, ...] = setting("the TPU slices, a node pool each", default=())
    multislice_group: str = setting(
        "value of the node label `multislice-group`, by which a multislice job finds its pools",
        default="multi-slice-group",
        rule=rules.RESOURCE_NAME,
    )
    node_account_id: str = setting(
        "account that all nodes run as", default="tpu-gke-nodes", rule=rules.ACCOUNT_ID, per_environment=True
    )
    node_roles: tuple[str, ...] = setting(
        "its roles on the project: write logs and metrics; images are granted by repository, by `queue`",
        default=("roles/container.defaultNodeServiceAccount",),
        rule=_NODE_ROLE,
        not_empty="without a role nodes can't write logs and metrics",
    )
    node_account_users: tuple[str, ...] = setting(
        "who may create nodes that run as it, beside the project's owners", default=(), rule=rules.MEMBER
    )
    namespaces: tuple[str, ...] = setting(
        "Kubernetes namespaces whose pods may use the buckets",
        default=("tpu-training",),
        rule=NAMESPACE,
        not_empty="pods of these namespaces alone may use the buckets",
    )
    kubernetes_account: str = setting(
        "Kubernetes service account in each of these namespaces that pods run as",
        default="trainer",
        rule=_KUBERNETES_ACCOUNT,
        per_environment=True,
    )
    workload_account_id: str | None = setting(
        "Google account that pods impersonate; without it the Kubernetes accounts are granted their roles "
        "directly",
        default=None,
        rule=rules.ACCOUNT_ID,
    )
    workload_roles: tuple[str, ...] = setting(
        "roles on the project that pods have, beside those on the buckets",
        default=("roles/logging.logWriter",),
        rule=_NODE_ROLE,
    )
    security_group: str | None = setting(
        "the group that contains those whose members may be granted rights on the cluster; without it only "
        "users may. Taken out again it stays: Pulumi's provider can't switch it off",
        default=None,
        rule=rules.pattern(
            r"gke-security-groups@[a-z0-9-]+(\.[a-z0-9-]+)+",
            "gke-security-groups@ and your domain: Google takes no other name",
            "write e.g. gke-security-groups@example.com",
        ),
    )
    artifact_bucket: str | None = setting(
        "a bucket of the cluster's own, for what jobs leave beside checkpoints; without it none is made",
        default=None,
        rule=rules.BUCKET_NAME,
    )
    force_destroy: bool = setting(
        "delete the artifact bucket with all it holds when the stack is destroyed; refused in `prod`",
        default=False,
    )
