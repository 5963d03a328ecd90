"""Every setting: its type, default, meaning and rule.

A field `bucket_name` of `StorageSettings` is `storage:bucketName` in `Pulumi.<env>.yaml`.
The parser, the error messages and the tables in docs/settings.md are made from these
classes alone. Rules between fields are in `relations.py`.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from infra.catalog import CATALOG
from infra.settings import rules
from infra.settings.rules import Rule


def setting(
    about: str,
    *,
    default: Any = MISSING,
    rule: Rule | None = None,
    example: str = "",
    key_rule: Rule | None = None,
) -> Any:
    """A field with its meaning. Without a default it is required; `example` then helps who forgot it."""
    metadata = {"about": about, "rule": rule, "example": example, "key_rule": key_rule}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def labels_setting(about: str) -> Any:
    """A field with labels."""
    return setting(about, default={}, rule=rules.LABEL_VALUE, key_rule=rules.LABEL_KEY)


def key_of(item: "Field[Any]") -> str:
    """The name of a field in the YAML file: `bucket_name` is written `bucketName`."""
    first, *rest = item.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


# Hosts have no external address, so SSH goes through Identity-Aware Proxy, which only the alpha command
# knows for TPUs. Without --plain it writes the caller's key into the node's metadata first, also where OS
# Login makes that useless: that needs tpu.nodes.update, with which one may change what the hosts run at
# their next boot, and it drifts from what Pulumi wrote. So it stays plain, and ssh gets its options here.
# Addresses are used again by new hosts with new keys; which machine this is, the tunnel says.
SSH = (
    "gcloud alpha compute tpus tpu-vm ssh {login}@{node} --project={project} --zone={zone}"
    " --tunnel-through-iap --plain --ssh-flag=-i~/.ssh/google_compute_engine"
    " --ssh-flag=-oStrictHostKeyChecking=no --ssh-flag=-oUserKnownHostsFile=/dev/null"
)
# What a person is called on hosts.
LOGIN = "gcloud compute os-login describe-profile --format='value(posixAccounts[0].username)'"
_disk = CATALOG.data_disk


@dataclass(frozen=True, kw_only=True)
class GcpSettings:
    """What all layers share."""

    project: str = setting("project that holds everything", rule=rules.PROJECT_ID, example="my-project")
    default_labels: Mapping[str, str] = labels_setting(
        "labels on everything that takes labels; `environment` and `layer` are added"
    )


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """The bucket that outlives everything, and who may use it."""

    bucket_name: str = setting(
        "checkpoint bucket; kept when its stack is destroyed",
        rule=rules.BUCKET_NAME,
        example="my-project-checkpoints",
    )
    adopt_bucket: bool = setting(
        "take over a bucket of that name that exists already, such as one that a destroyed stack left",
        default=False,
    )
    adopt_steps_bucket: bool = setting(
        "likewise of the bucket beside it, bucketName-steps, where running jobs save", default=False
    )
    location: str = setting("the bucket's region", rule=rules.REGION, example="us-east5")
    allow_cross_region: bool = setting(
        "let hosts in other regions use the bucket, and pay for the traffic", default=False
    )
    storage_class: str = setting(
        "storage class of new objects",
        default="STANDARD",
        rule=rules.one_of(("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE")),
    )
    versioning: bool = setting("keep overwritten and deleted objects for a while", default=True)
    hierarchical_namespace: bool = setting(
        "real folders with atomic rename, instead of versioning; only at the bucket's creation", default=False
    )
    noncurrent_version_days: int = setting(
        "days after which an overwritten or deleted object is removed",
        default=14,
        rule=rules.between(1, 3650),
    )
    soft_delete_days: int = setting(
        "days in which a removed object can be restored",
        default=7,
        rule=Rule(
            lambda value: int(value) == 0 or 7 <= int(value) <= 90,
            "0 (off) or 7 to 90 days",
            "write 7 or more, or 0",
        ),
    )
    unfinished_upload_days: int = setting(
        "days after which an upload that never ended is removed", default=7, rule=rules.between(1, 365)
    )
    kms_key: str | None = setting(
        "key that encrypts the bucket; the storage service agent must be allowed to use it first: "
        "`gcloud storage service-agent --authorize-cmek=KEY`",
        default=None,
        rule=rules.KMS_KEY,
    )
    labels: Mapping[str, str] = labels_setting("labels of the bucket")
    service_account_id: str = setting(
        "account that the hosts run as", default="tpu-training", rule=rules.ACCOUNT_ID
    )
    service_account_users: tuple[str, ...] = setting(
        "who may start slices that run as that account, and log in to them", default=(), rule=rules.MEMBER
    )
    controller_account_id: str | None = setting(
        "account that the fleet controller runs as, with a role of its own; without it none is made",
        default=None,
        rule=rules.ACCOUNT_ID,
    )
    controller_account_users: tuple[str, ...] = setting(
        "who may run as that account: attach it to a machine, or impersonate it",
        default=(),
        rule=rules.MEMBER,
    )
    state_bucket_name: str | None = setting(
        "a second bucket for Pulumi's state: `pulumi login gs://NAME`", default=None, rule=rules.BUCKET_NAME
    )
    state_key_ring: str | None = setting(
        "key ring with a key `pulumi-secrets` for stack secrets: "
        "`pulumi stack init --secrets-provider gcpkms://…`",
        default=None,
        rule=rules.KEY_RING,
    )


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The network between hosts: one of our own, or one that exists."""

    name: str = setting(
        "name of the network, and prefix of its subnets and rules",
        default="tpu-training",
        rule=rules.NETWORK_NAME,
    )
    mtu: int = setting(
        "largest packet, bytes; Google's recipes for several slices set 8896",
        default=8896,
        rule=rules.between(1300, 8896, "bytes"),
    )
    subnet_ranges: Mapping[str, str] = setting(
        "region → address range, where the default range of a region doesn't suit",
        default={},
        rule=rules.SUBNET_RANGE,
        key_rule=rules.REGION,
    )
    cloud_nat: bool = setting(
        "Cloud NAT, hosts' way to the internet; they boot from the bucket and need none", default=False
    )
    flow_log_sampling: float = setting(
        "share of connections that the subnets log", default=0.5, rule=rules.between(0.01, 1)
    )
    ssh_source_ranges: tuple[str, ...] = setting(
        "where SSH may come from; the default is Identity-Aware Proxy; [] allows none",
        default=("35.235.240.0/20",),
        rule=rules.SOURCE_RANGE,
    )
    existing_network: str | None = setting(
        "id of a network that exists, instead of one of our own; its MTU must be `network:mtu`",
        default=None,
        rule=rules.NETWORK_ID,
    )
    existing_subnets: Mapping[str, str] = setting(
        "region → id of a subnet of that network",
        default={},
        rule=rules.SUBNET_ID,
        key_rule=rules.REGION,
    )
    manage_firewall: bool = setting(
        "write our firewall rules; false where the owner of an existing network keeps them", default=True
    )


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The training data: a snapshot, made into one read-only disk per zone."""

    snapshot: str | None = setting(
        "snapshot that holds a file system with the data; without it there are no data disks",
        default=None,
        rule=rules.SNAPSHOT,
    )
    size_gib: int = setting(
        "size of each disk",
        default=1000,
        rule=rules.between(_disk.min_size_gib, _disk.max_size_gib, "GiB"),
    )
    throughput_mibps: int = setting(
        "throughput of each disk, shared by its readers; with more than 20 hosts at least 100 for each",
        default=2400,
        rule=rules.between(_disk.min_throughput_mibps, _disk.max_throughput_mibps, "MiB/s"),
    )
    labels: Mapping[str, str] = labels_setting("labels of the disks")


@dataclass(frozen=True, kw_only=True)
class SliceSettings:
    """One item of `tpu:slices`: a slice, or with `count` a fleet of equal ones."""

    name: str = setting(
        "name of the slice; members of a fleet are called tpu-{region}-{zone letter}-{worker id}",
        rule=rules.RESOURCE_NAME,
        example="train",
    )
    accelerator_type: str | None = setting(
        "size by name; this or topology", default=None, rule=rules.one_of(k.name for k in CATALOG.types)
    )
    topology: str | None = setting(
        "size by grid of chips; this or acceleratorType",
        default=None,
        rule=rules.pattern(r"[1-9]\d?x[1-9]\d?", "a grid such as 4x4", "write rows x columns"),
    )
    zones: tuple[str, ...] = setting(
        "zones; a fleet's members are spread over them in turn", rule=rules.ZONE, example="[us-east5-b]"
    )
    other_zones: tuple[str, ...] = setting(
        "zones for a member whose own zone has no chips: the one with the fewest refusals, then in this "
        "order; network and data cover them too",
        default=(),
        rule=rules.ZONE,
    )
    count: int | None = setting("number of slices in a fleet", default=None, rule=rules.between(1, 1000))
    multislice: bool = setting(
        "a fleet's slices run one job together, over the datacenter network", default=False
    )
    first_worker_id: int = setting(
        "worker id of a fleet's first member in each zone", default=0, rule=rules.between(0, 9999)
    )
    spot: bool = setting("Spot: about half the price, preempted with 30 seconds' notice", default=False)
    reserved: bool = setting("from a reservation of the project", default=False)
    runtime_version: str | None = setting(
        "image of the hosts, instead of tpu:runtimeVersion", default=None, rule=rules.RUNTIME
    )
    run: str | None = setting(
        "what every host starts after boot, in /opt/training; without it nothing is started",
        default=None,
        rule=rules.COMMAND,
    )
    labels: Mapping[str, str] = labels_setting("labels of the nodes")


@dataclass(frozen=True, kw_only=True)
class TpuSettings:
    """The slices, and what their hosts do when they boot."""

    slices: tuple[SliceSettings, ...] = setting(
        "the slices; network and data make subnets and disks in their zones", default=()
    )
    bundle: str | None = setting(
        "sha256 of the bundle that hosts install; `make publish` writes it", default=None, rule=rules.SHA256
    )
    code: str | None = setting(
        "folder of your own code, which `make publish` takes along; it is at /opt/training at every boot",
        default=None,
        rule=rules.FOLDER,
    )
    requirements: str | None = setting(
        "file with the packages that it needs besides; `requirements.txt` of that folder, unless given",
        default=None,
        rule=rules.FOLDER,
    )
    runtime_version: str = setting("image of the hosts", default=CATALOG.default_runtime, rule=rules.RUNTIME)
    metadata_timeout_s: int = setting(
        "how long a host waits for its number and its slice's addresses, which Google gives late, seconds",
        default=3600,  # https://github.com/marin-community/marin/pull/6122: hosts boot up to an hour early
        rule=rules.between(60, 86400, "s"),
    )
    barrier_timeout_s: int = setting(
        "how long a worker waits for the others, in a boot beyond metadataTimeoutS, seconds",
        default=900,
        rule=rules.between(10, 86400, "s"),
    )
    tensorflow: bool = setting("publish TensorFlow with the bundle", default=False)
    os_login: bool = setting("logins by IAM instead of keys in metadata", default=True)
    secure_boot: bool = setting("boot only signed kernels", default=True)
    additional_zones: tuple[str, ...] = setting(
        "zones that offer v6e to you and aren't in the catalog yet", default=(), rule=rules.ZONE
    )


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """How far `python -m fleet` goes by itself when slices are lost."""

    dollars_per_hour: int | None = setting(
        "what all slices may cost together, by the catalog; more, or a price that it lacks, is refused by "
        "`make preview`, every `up` and every fleet command that creates; others only look, or delete",
        default=None,
        rule=rules.between(1, 1_000_000, "$/h"),
    )
    preemptions_per_day: int = setting(
        "how many preempted slices are recreated per day, over all of them; 0: no limit",
        default=0,
        rule=rules.between(0, 100_000),
    )
    failures_per_day: int = setting(
        "how often in a day a slice is replaced whose boot failed or whose workers fell silent",
        default=3,
        rule=rules.between(0, 100),
    )
    silence_s: int = setting(
        "how long a slice's workers may report nothing, while others report, until it counts as failed",
        default=1800,
        rule=rules.between(300, 86400, "s"),
    )
    ssh: str = setting(
        "how `fleet exec` reaches a worker; no shell reads it, and the command is one argument",
        default=f"{SSH} --worker={{worker}} --quiet --command={{command}}",
        rule=rules.SSH,
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that `Pulumi.<env>.yaml` says, typed and checked."""

    environment: str
    gcp: GcpSettings
    storage: StorageSettings
    network: NetworkSettings
    data: DataSettings
    tpu: TpuSettings
    fleet: FleetSettings


SECTIONS: dict[str, type] = {
    "gcp": GcpSettings,
    "storage": StorageSettings,
    "network": NetworkSettings,
    "data": DataSettings,
    "tpu": TpuSettings,
    "fleet": FleetSettings,
}


def keys_of(section: type) -> dict[str, "Field[Any]"]:
    """The YAML names of a section's fields."""
    return {key_of(item): item for item in fields(section)}
