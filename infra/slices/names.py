"""Names of slices, nodes, their URNs, and paths on hosts and in the bucket."""

from __future__ import annotations

from hashlib import sha256

from infra.catalog import region_of
from infra.core.names import labels

# What bundles hold, by content, and what each is made of.
BLOBS, MANIFESTS = "bundles/blobs/", "bundles/manifests/"


# On a host (docs/internals/architecture.md).
BOOT_LOG = "/var/log/tpu/boot.log"


JOB_UNIT = "tpu-job.service"


# In Cloud Logging: what hosts print, and what each tells of itself every minute.
LOG, VITALS_LOG = "tpu-host", "tpu-vitals"


STACK_ID_VARIABLE = "TPU_STACK_ID"
"""Environment variable with the stack's id, for programs that run without Pulumi."""


# Pulumi's types of a slice and of the node that it is: a URN holds them, so they never change.
SLICE_TYPE = "tpu:tpu:TpuSlice"


NODE_TYPE = "gcp:tpu/v2Vm:V2Vm"


def fleet_member(zone: str, worker_id: int) -> str:
    """Node id of a fleet's member, e.g. tpu-us-east5-b-0."""
    return f"tpu-{region_of(zone)}-{zone.rpartition('-')[2]}-{worker_id}"


def member_labels(environment: str, fleet: str, member: int, stack: str) -> dict[str, str]:
    """Return the additional labels of a fleet's member; `stack` separates two users' fleets of one name."""
    return {**labels(environment, "tpu"), "stack": stack, "fleet": fleet, "member": str(member)}


def slice_urn(environment: str, node: str) -> str:
    """Return a slice's URN in the slices' stack."""
    return f"urn:pulumi:{environment}::tpu::{SLICE_TYPE}::{node}"


def node_urn(environment: str, node: str) -> str:
    """Return a node's URN in the slices' stack."""
    return f"urn:pulumi:{environment}::tpu::{SLICE_TYPE}${NODE_TYPE}::{node}"


def node_id(project: str, zone: str, node: str) -> str:
    """Full id of a node."""
    return f"projects/{project}/locations/{zone}/nodes/{node}"


def zone_of(node_id: str) -> str:
    """Return the zone in a node's full id."""
    return node_id.split("/")[3]


def command_id(run: str) -> str:
    """Return the id by which workers report a slice's command (docs/internals/architecture.md)."""
    return sha256(run.strip().encode()).hexdigest()[:12]


def bundle_manifest(bundle: str) -> str:
    """Return the object whose presence marks a bundle as complete."""
    return f"{MANIFESTS}{bundle}"


def bundle_blob(sha256_hex: str) -> str:
    """Return the object that holds a bundle's file of this content."""
    return f"{BLOBS}{sha256_hex}"
