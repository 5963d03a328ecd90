"""Every name and id that two layers must agree on, as functions of the settings.

Ids have Google's own form `projects/…`, the one that the TPU API gives back: a link or a
bare name there would replace the pod on every `pulumi up`.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from types import MappingProxyType

from infra.builds.settings import BuildsSettings
from infra.catalog import region_of
from infra.data.settings import DataSettings
from infra.network.settings import NetworkSettings
from infra.settings.schema import Settings
from infra.storage.settings import StorageSettings

# The TPU API documents network tags, and only these, as what firewall rules match on a node.
SLICE_TAG = "tpu-slice"

# Where Identity-Aware Proxy's connections come from: https://cloud.google.com/iap/docs/using-tcp-forwarding
IAP_RANGE = "35.235.240.0/20"

# What bundles hold, by content, and what each is made of.
BLOBS, MANIFESTS = "bundles/blobs/", "bundles/manifests/"

# Folder of the checkpoint bucket for shards of text.
TOKENS = "tokens"

STATE_KEY = "pulumi-secrets"
# On a host (docs/architecture.md).
BOOT_LOG = "/var/log/tpu/boot.log"
JOB_UNIT = "tpu-job.service"
# In Cloud Logging: what hosts print, and what each tells of itself every minute.
LOG, VITALS_LOG = "tpu-host", "tpu-vitals"

# Pulumi's types of a slice and of the node that it is: a URN holds them, so they never change.
SLICE_TYPE = "tpu:tpu:TpuSlice"
NODE_TYPE = "gcp:tpu/v2Vm:V2Vm"
STACK_TYPE = "pulumi:pulumi:Stack"

NAME_LENGTH = 63

# One range for each region that is known to have v6e, so that a new region never moves another's.
# Each /20 holds 4,092 hosts.
DEFAULT_RANGES: Mapping[str, str] = MappingProxyType(
    {
        "us-central1": "10.64.0.0/20",
        "us-east1": "10.64.16.0/20",
        "us-east5": "10.64.32.0/20",
        "europe-west4": "10.64.48.0/20",
        "asia-northeast1": "10.64.64.0/20",
        "us-south1": "10.64.80.0/20",
    }
)


def account_email(settings: Settings, id_: str | None) -> str:
    """Address of the project's account of this id."""
    return f"{id_}@{settings.project}.iam.gserviceaccount.com"


def service_account_email(settings: Settings) -> str:
    """Address of the account that the hosts run as."""
    return account_email(settings, settings[StorageSettings].service_account_id)


def service_account_id(settings: Settings) -> str:
    """Full id of that account, as its own IAM policy takes it."""
    return f"projects/{settings.project}/serviceAccounts/{service_account_email(settings)}"


def controller_account_email(settings: Settings) -> str:
    """Address of the account that the fleet controller runs as, where there is one."""
    return account_email(settings, settings[StorageSettings].controller_account_id)


def controller_account_id(settings: Settings) -> str:
    """Full id of that account, as its own IAM policy takes it."""
    return f"projects/{settings.project}/serviceAccounts/{controller_account_email(settings)}"


def controller_role_id(settings: Settings) -> str:
    """What the project calls the role of that account: an id of a role has no hyphens."""
    return str(settings[StorageSettings].controller_account_id).replace("-", "_")


def state_key_id(settings: Settings) -> str:
    """Full id of the key of Pulumi's state, where there is one."""
    storage = settings[StorageSettings]
    ring = f"projects/{settings.project}/locations/{storage.location}/keyRings/{storage.state_key_ring}"
    return f"{ring}/cryptoKeys/{STATE_KEY}"


def applying_member(settings: Settings) -> str | None:
    """The account that Cloud Build applies as, as policies name it; None where no builds do."""
    builds = settings.get(BuildsSettings)
    return f"serviceAccount:{account_email(settings, builds.apply_account_id)}" if builds else None


def queue_role_id(environment: str) -> str:
    """What the project calls the role of the teams' members: an id of a role has no hyphens."""
    return f"tpuQueue_{environment.replace('-', '_')}"


def controller_bucket(settings: Settings) -> str:
    """Where the fleet controller keeps its state: a bucket that the hosts' account can't write."""
    return fitted(f"{settings[StorageSettings].bucket_name}-fleet")


def steps_bucket(settings: Settings) -> str:
    """Where the checkpoints of running jobs are: without versions and soft delete."""
    return fitted(f"{settings[StorageSettings].bucket_name}-steps")


def scratch_bucket(settings: Settings) -> str:
    """Where the pipeline keeps its code, and what Spark leaves behind."""
    from infra.pipeline.settings import PipelineSettings  # its package imports this module

    desired = settings[PipelineSettings]
    return desired.scratch_bucket_name or f"{desired.raw_bucket_name}-scratch"[:NAME_LENGTH].rstrip("-_")


def buckets(settings: Settings) -> list[str]:
    """Every bucket that the environment works with."""
    from infra.gke.settings import GkeSettings
    from infra.pipeline.settings import PipelineSettings

    storage, gke = settings[StorageSettings], settings.get(GkeSettings)
    pipeline = settings.get(PipelineSettings)
    found = [storage.bucket_name, steps_bucket(settings), controller_bucket(settings)]
    found += [storage.state_bucket_name] if storage.state_bucket_name else []
    found += [pipeline.raw_bucket_name, scratch_bucket(settings)] if pipeline else []
    found += [gke.artifact_bucket] if gke and gke.artifact_bucket else []
    return found


def network_id(settings: Settings) -> str:
    """The network: ours, or the existing one."""
    ours = f"projects/{settings.project}/global/networks/{settings[NetworkSettings].name}"
    return settings[NetworkSettings].existing_network or ours


def subnet_name(settings: Settings, region: str) -> str:
    """Name of our subnet in a region."""
    return f"{settings[NetworkSettings].name}-{region}"


def subnet_id(settings: Settings, region: str) -> str:
    """The subnet in a region: ours, or the existing one."""
    if settings[NetworkSettings].existing_network:
        return settings[NetworkSettings].existing_subnets[region]
    return f"projects/{settings.project}/regions/{region}/subnetworks/{subnet_name(settings, region)}"


def subnet_ranges(settings: Settings, regions: Iterable[str]) -> dict[str, str]:
    """Region → address range of our subnets; regions without one are left out."""
    ranges = {**DEFAULT_RANGES, **settings[NetworkSettings].subnet_ranges}
    return {region: ranges[region] for region in regions if region in ranges}


def snapshot_id(settings: Settings) -> str | None:
    """Full id of the data snapshot, which the settings may name shortly; None without one."""
    data = settings.get(DataSettings)
    snapshot = data.snapshot if data else None
    if snapshot is None or "/" in snapshot:
        return snapshot
    return f"projects/{settings.project}/global/snapshots/{snapshot}"


def disk_name(settings: Settings, zone: str) -> str | None:
    """Data disk of a zone. It carries the snapshot's name, so that new data is a new disk."""
    snapshot = snapshot_id(settings)
    if not snapshot:
        return None
    parts = (settings[DataSettings].disk_prefix, snapshot.rpartition("/")[2], zone)
    return fitted("-".join(filter(None, parts)))


def disk_id(settings: Settings, zone: str) -> str | None:
    """Full id of a zone's data disk; None where there is no data."""
    disk = disk_name(settings, zone)
    return disk and f"projects/{settings.project}/zones/{zone}/disks/{disk}"


def fleet_member(zone: str, worker_id: int) -> str:
    """Node id of a fleet's member, e.g. tpu-us-east5-b-0."""
    return f"tpu-{region_of(zone)}-{zone.rpartition('-')[2]}-{worker_id}"


def labels(environment: str, layer: str) -> dict[str, str]:
    """What all that a stack makes carries, and what it is found by at Google."""
    return {"environment": environment, "layer": layer}


def member_labels(environment: str, fleet: str, member: int, stack: str) -> dict[str, str]:
    """What a fleet's member carries besides; `stack` tells two people's fleets of one name apart."""
    return {**labels(environment, "tpu"), "stack": stack, "fleet": fleet, "member": str(member)}


def slice_urn(environment: str, node: str) -> str:
    """What Pulumi calls a slice in the slices' stack."""
    return f"urn:pulumi:{environment}::tpu::{SLICE_TYPE}::{node}"


def node_urn(environment: str, node: str) -> str:
    """What Pulumi calls a node in the slices' stack."""
    return f"urn:pulumi:{environment}::tpu::{SLICE_TYPE}${NODE_TYPE}::{node}"


def node_id(project: str, zone: str, node: str) -> str:
    """Full id of a node."""
    return f"projects/{project}/locations/{zone}/nodes/{node}"


def zone_of(node_id: str) -> str:
    """The zone in a node's full id."""
    return node_id.split("/")[3]


def command_id(run: str) -> str:
    """What tells a slice's command from another one in its workers' words (docs/architecture.md)."""
    return sha256(run.strip().encode()).hexdigest()[:12]


def bundle_manifest(bundle: str) -> str:
    """The object whose presence says that a bundle is published whole."""
    return f"{MANIFESTS}{bundle}"


def bundle_blob(sha256_hex: str) -> str:
    """The object that holds a bundle's file of this content."""
    return f"{BLOBS}{sha256_hex}"


def fitted(name: str) -> str:
    """`name` within Google's 63 characters; a longer one ends in a hash of the whole."""
    if len(name) <= NAME_LENGTH:
        return name
    return f"{name[: NAME_LENGTH - 9].rstrip('-')}-{sha256(name.encode()).hexdigest()[:8]}"
