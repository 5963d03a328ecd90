"""Inputs of cluster-toolkit's `schedmd-slurm-gcp-v6-nodeset-tpu` with another name here, or with no place.

The parser refuses each with its sentence; the table of docs/reference/slurm.md is made of the same.
"""

from collections.abc import Mapping

from settings_schema.schema import Former

_NO_ADDRESS = Former(
    "hosts have no external address",
    "remove it; network:cloudNat is the hosts' way to the internet",
)
_ACCOUNT = Former(
    "hosts run as the account of storage:serviceAccountId, limited by IAM, not by scopes",
    "remove it, or write storage:serviceAccountId",
)
FORMER: Mapping[str, Former] = {
    "accelerator_config": Former(
        "the size is acceleratorType, or topology; the version is v6e",
        "write acceleratorType: v6e-16, or topology: 4x4",
    ),
    "data_disks": Former(
        "each host mounts its zone's data disk, read-only",
        "write data:snapshot",
    ),
    "disable_public_ips": _NO_ADDRESS,
    "docker_image": Former(
        "slurmd runs on the host itself, not in a container",
        "remove it; jobs may use containers (docs/guides/slurm.md)",
    ),
    "enable_public_ips": _NO_ADDRESS,
    "node_type": Former("it is called acceleratorType", "write acceleratorType: v6e-16"),
    "preemptible": Former("v6e has Spot, not preemptible, capacity", "write spot: true"),
    "project_id": Former("all layers of an environment are in one project", "write gcp:project"),
    "service_account": _ACCOUNT,
    "service_account_email": _ACCOUNT,
    "service_account_scopes": _ACCOUNT,
    "subnetwork_self_link": Former(
        "hosts are in their region's subnet of the layer network",
        "write network:existingSubnets, or nothing",
    ),
    "tf_version": Former(
        "it selected a TensorFlow container for v2 to v4; v6e hosts run JAX from the bundle",
        "remove it; tpu:tensorflow publishes TensorFlow with the bundle",
    ),
}
"""By their names there; `acceleratorConfig` is the same key."""
