"""Inputs of cluster-toolkit's `schedmd-slurm-gcp-v6-nodeset-tpu` with another name here, or with no place.

The parser refuses each with its sentence; the table of docs/reference/slurm.md is made of the same.
"""

from collections.abc import Mapping

from settings_schema.schema import Former

_NO_ADDRESS = Former(
    "a host has no external address: it boots from the bucket",
    "remove it; network:cloudNat is the hosts' way to the internet",
)
_ACCOUNT = Former(
    "hosts run as the account of storage:serviceAccountId; IAM and no scope limits it",
    "remove it, or write storage:serviceAccountId",
)
FORMER: Mapping[str, Former] = {
    "accelerator_config": Former(
        "the size is acceleratorType, or topology; the version is v6e",
        "write acceleratorType: v6e-16, or topology: 4x4",
    ),
    "data_disks": Former(
        "each host has the disk of its zone that the data layer makes of a snapshot, for reading",
        "write data:snapshot",
    ),
    "disable_public_ips": _NO_ADDRESS,
    "docker_image": Former(
        "slurmd runs on the host itself: v6e's image has systemd, and no container around it",
        "remove it; a job brings a container of its own (docs/reference/slurm.md)",
    ),
    "enable_public_ips": _NO_ADDRESS,
    "node_type": Former("it is called acceleratorType", "write acceleratorType: v6e-16"),
    "preemptible": Former("v6e has Spot capacity, preemptible in all but name", "write spot: true"),
    "project_id": Former("one project holds everything", "write gcp:project"),
    "service_account": _ACCOUNT,
    "service_account_email": _ACCOUNT,
    "service_account_scopes": _ACCOUNT,
    "subnetwork_self_link": Former(
        "hosts are in the subnet of their region, which the network layer makes or is given",
        "write network:existingSubnets, or nothing",
    ),
    "tf_version": Former(
        "it chose a container of TensorFlow for v2 to v4; hosts of v6e run JAX from the bundle",
        "remove it; tpu:tensorflow publishes TensorFlow with the bundle",
    ),
}
"""By their names there; `acceleratorConfig` is the same key."""
