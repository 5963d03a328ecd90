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
    """An item of `gke:tpuPools`: `count` equal slices; GKE has a node pool for each."""

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
        "machine of each node; default: by size (v6e-8 is one ct6e-standard-8t, or two ct6e-standard-4t, "
        "which a multislice job needs)",
        default=None,
        rule=rules.one_of(*(machine.name for machine in MACHINES)),
    )
    num_nodes: int | None = setting(
        "optional check: nodes of each slice",
        default=None,
        rule=rules.between(1, _NODES_PER_POOL),
    )
    zone: str = setting("zone of the slices", rule=rules.ZONE, example="us-east5-b")
    count: int = setting(
        "number of slices; 0 removes them and keeps the cluster", default=1, rule=rules.between(0, 200)
    )
    spot: bool = setting("Spot: about half the price, preempted at any time", default=False)
    flex_start: bool = setting(
        "flex-start: Google creates nodes when a job needs them and has chips, for up to seven days",
        default=False,
    )
    queued: bool = setting(
        "flex-start with queued provisioning: all nodes of a job at once, by Kueue's ProvisioningRequests",
        default=False,
    )
    reservation: str | None = setting(
        "name of the reservation to use", default=None, rule=rules.RESOURCE_NAME
    )
    autoscaling: bool = setting(
        "GKE creates a slice's nodes when a job needs them, and deletes idle ones; flex-start and queued "
        "pools always scale",
        default=False,
    )
    max_run_duration_s: int | None = setting(
        "maximum lifetime of a node, seconds; default with flex-start: a week",
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
        "name of the cluster; take the layer down before you change it",
        default="tpu",
        rule=rules.NETWORK_NAME,
        per_environment=True,
    )
    existing_cluster: bool = setting(
        "use the existing cluster of that name and region: the layer adds TPU pools and never deletes it",
        default=False,
    )
    description: str = setting(
        "description of the cluster; GKE takes it only at creation",
        default="Training on TPU slices",
    )
    region: str | None = setting(
        "region of the cluster; default: storage:location", default=None, rule=rules.REGION
    )
    channel: str = setting(
        "release channel, which upgrades the control plane", default="REGULAR", rule=rules.one_of(*CHANNELS)
    )
    version: str = setting(
        "initial version, or its prefix",
        default="1.35",
        rule=rules.pattern(
            r"1\.\d{2}(\.\d+(-gke\.\d+)?)?",
            "a GKE version, such as 1.35",
            "write e.g. 1.35 or 1.35.7-gke.1222000",
        ),
    )
    exclude_upgrades: bool = setting(
        "postpone minor versions and upgrades of nodes, which recreate nodes under running jobs, until end "
        "of support",
        default=True,
    )
    maintenance_start: str = setting(
        "daily start of a four-hour maintenance window, UTC",
        default="03:00",
        rule=rules.pattern(r"([01]\d|2[0-3]):[0-5]\d", "a time from 00:00 to 23:59", "write e.g. 03:00"),
    )
    deletion_protection: bool | None = setting(
        "Google refuses to delete the cluster; default: true, in `dev` false",
        default=None,
    )
    existing_subnet: str | None = setting(
        "id of an existing subnet of that region to use, with two secondary ranges",
        default=None,
        rule=rules.SUBNET_ID,
    )
    subnet_range: str = setting("addresses of the nodes", default="10.129.0.0/20", rule=rules.SUBNET_RANGE)
    pods_range: str = setting(
        "addresses of the pods: a secondary range of the subnet, permanent with its name; every node takes a "
        "block of it",
        default="192.168.64.0/20",
        rule=rules.PODS_RANGE,
    )
    services_range: str = setting(
        "addresses of the services: a secondary range of the subnet, permanent with its name",
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
        "maximum pods of a TPU node, which size its block: 15 take a /27, 110 a /24",
        default=15,
        rule=rules.between(8, 110),
    )
    cpu_pool_zones: tuple[str, ...] = setting(
        "zones of the CPU nodes, where controllers run; default: that of the first TPU pool",
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
    tpu_pools: tuple[PoolSettings, ...] = setting("TPU slices; GKE has a node pool for each", default=())
    multislice_group: str = setting(
        "value of the node label `multislice-group`, by which a multislice job finds its pools",
        default="multi-slice-group",
        rule=rules.RESOURCE_NAME,
    )
    node_account_id: str = setting(
        "service account of the nodes", default="tpu-gke-nodes", rule=rules.ACCOUNT_ID, per_environment=True
    )
    node_roles: tuple[str, ...] = setting(
        "its roles on the project, to write logs and metrics; `queue` grants access to image repositories",
        default=("roles/container.defaultNodeServiceAccount",),
        rule=_NODE_ROLE,
        not_empty="without a role nodes can't write logs and metrics",
    )
    node_account_users: tuple[str, ...] = setting(
        "members who may create nodes with it, besides the project's owners", default=(), rule=rules.MEMBER
    )
    namespaces: tuple[str, ...] = setting(
        "Kubernetes namespaces whose pods may use the buckets",
        default=("tpu-training",),
        rule=NAMESPACE,
        not_empty="pods of these namespaces alone may use the buckets",
    )
    kubernetes_account: str = setting(
        "Kubernetes service account of pods in each of these namespaces",
        default="trainer",
        rule=_KUBERNETES_ACCOUNT,
        per_environment=True,
    )
    workload_account_id: str | None = setting(
        "Google service account that pods impersonate, the same in all namespaces; without it roles are "
        "granted to the Kubernetes accounts",
        default=None,
        rule=rules.ACCOUNT_ID,
    )
    workload_roles: tuple[str, ...] = setting(
        "pods' roles on the project, in addition to those on the buckets",
        default=("roles/logging.logWriter",),
        rule=_NODE_ROLE,
    )
    security_group: str | None = setting(
        "group that contains all groups with access to the cluster; without it only users can get access. "
        "Removing the setting doesn't remove the group: Pulumi's provider can't",
        default=None,
        rule=rules.pattern(
            r"gke-security-groups@[a-z0-9-]+(\.[a-z0-9-]+)+",
            "gke-security-groups@ and your domain: Google takes no other name",
            "write e.g. gke-security-groups@example.com",
        ),
    )
    artifact_bucket: str | None = setting(
        "bucket for jobs' other outputs, which the layer creates; default: none",
        default=None,
        rule=rules.BUCKET_NAME,
    )
    force_destroy: bool = setting(
        "delete the artifact bucket with its contents when the stack is destroyed; refused in `prod`",
        default=False,
    )
