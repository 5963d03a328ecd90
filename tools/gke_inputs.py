"""Inputs of Google's "Running TPU training workloads on GKE", beside our settings: a table of docs/gke.md."""

from __future__ import annotations

from collections.abc import Mapping

from infra.engine.registry import section_classes
from infra.layers.gke.settings import PoolSettings
from infra.settings.schema import keys_of
from tools.settings_tables import default_of
from views.table import markdown

# Input → its default there, our settings, and what is otherwise.
INPUTS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "region": ("none", ("gke:region",), "the bucket's region, unless given"),
    "artifact_repository_bucket_name": ("none", ("gke:artifactBucket",), "optional"),
    "zone": ("none", ("gke:tpuPools[].zone", "gke:cpuPoolZones"), "one for each pool"),
    "network_name": ("none", ("network:name",), "the network layer's, MTU 8896"),
    "subnet_name": ("none", ("gke:existingSubnet",), "ours is called after network and cluster"),
    "subnet_ip_range": ("10.129.0.0/20", ("gke:subnetRange",), ""),
    "pods_ip_range": (
        "192.168.64.0/20", ("gke:podsRange", "gke:podsPerTpuNode"),
        "at 110 pods a node it holds 16 nodes, and v6e-256 has 64: TPU nodes hold 15 pods, and what"
        " doesn't fit is refused",
    ),
    "services_ip_range": ("192.168.80.0/20", ("gke:servicesRange",), ""),
    "cluster_name": ("none", ("gke:clusterName",), ""),
    "gke_version": (
        "1.27.3-gke.100", ("gke:version", "gke:channel"), "no channel offers 1.27 any more",
    ),
    "cluster_description": (
        "GKE cluster for running TPU training workloads", ("gke:description",), "",
    ),
    "cpu_pool_node_count": ("3", ("gke:cpuPoolNodes",), "in each zone"),
    "cpu_pool_machine_type": ("n1-standard-4", ("gke:cpuPoolMachineType",), ""),
    "cpu_pool_disk_type": ("pd-standard", ("gke:cpuPoolDiskType",), ""),
    "cpu_pool_disk_size": ("200GB", ("gke:cpuPoolDiskGib",), ""),
    "tpu_sa_name": (
        "cloud-tpu-sa", ("gke:workloadAccountId",),
        "without it, roles are granted to Kubernetes accounts directly",
    ),
    "tpu_sa_roles": (
        "roles/storage.objectAdmin, roles/logging.logWriter", ("gke:workloadRoles",),
        "Cloud Storage on the buckets alone, not the project",
    ),
    "gke_sa_name": ("gke-sa", ("gke:nodeAccountId",), ""),
    "gke_sa_roles": (
        "roles/storage.objectAdmin, roles/logging.logWriter", ("gke:nodeRoles",),
        "nodes read no bucket; a role of Cloud Storage is refused",
    ),
    "tpu_namespace": ("tpu-training", ("gke:namespaces",), "one for each team"),
    "tpu_machine_type": (
        "ct4p-hightpu-4t", ("gke:tpuPools[].machineType",), "by the size; a machine of v4 is refused",
    ),
    "tpu_topology": (
        "2x2x2", ("gke:tpuPools[].topology", "gke:tpuPools[].acceleratorType"), "v6e is a grid of two sides",
    ),
    "tpu_num_nodes": ("2", ("gke:tpuPools[].numNodes",), "by the size; a given number is checked"),
    "num_tpu_pools": ("1", ("gke:tpuPools[].count",), "0 removes the pools and keeps the cluster"),
    "enable_tpu_autoscaling": ("false", ("gke:tpuPools[].autoscaling",), ""),
    "tpu_node_pool_name_prefix": ("tpu-node-pool", ("gke:tpuPools[].name",), "a number is added, from 0"),
    "multislice_group_name": ("multi-slice-group", ("gke:multisliceGroup",), ""),
    "force_destroy": ("false", ("gke:forceDestroy",), "refused in `prod`"),
}  # fmt: skip


def table() -> str:
    """Return a row for each input. Raises KeyError for a setting that isn't there."""
    rows = []
    for name, (default, own, otherwise) in INPUTS.items():
        paths = "<br>".join(f"`{path}`" for path in own)
        defaults = "<br>".join(_default(path) for path in own)
        rows.append((f"`{name}`", default, paths, defaults, otherwise))
    head = "input there", "default there", "here", "default here", "what is otherwise"
    return "\n".join(markdown(head, rows))


def _default(path: str) -> str:
    if path.startswith("gke:tpuPools[]."):
        return default_of(keys_of(PoolSettings)[path.rpartition(".")[2]])
    layer, _, key = path.partition(":")
    return default_of(keys_of(section_classes()[layer])[key])
