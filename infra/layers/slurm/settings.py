"""Settings of the Slurm layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from google_facts.machines import CPU_FAMILIES, cpu_family
from infra.catalog import CATALOG
from infra.layers.slurm.former import FORMER
from infra.settings import rules
from infra.settings.schema import setting
from infra.slices.runtime import RUNTIME
from settings_schema.schema import Former

SLICE, HOST = UNITS = ("slice", "host")
NFS, FILESTORE = HOMES = ("nfs", "filestore")
DISKS = ("pd-balanced", "pd-ssd", "hyperdisk-balanced")
TIERS = ("BASIC_HDD", "BASIC_SSD", "ZONAL", "REGIONAL")
# Others add up to eleven characters to it, and an account's id has 30 at most.
_NAME = rules.pattern(
    "[a-z]([-a-z0-9]{2,17}[a-z0-9])",
    "4 to 19 lowercase letters, digits and hyphens (others add to it), first a letter, last no hyphen",
    "rename it",
)
_PART = rules.pattern(
    "[a-z]([-a-z0-9]{0,18}[a-z0-9])?",
    "1 to 20 lowercase letters, digits and hyphens (others add to it), first a letter, last no hyphen",
    "rename it",
)
_MACHINE = rules.Rule(
    lambda name: cpu_family(name) is not None,
    f"a machine type without accelerators, of {', '.join(CPU_FAMILIES)}",
    "write e.g. n2-standard-4",
)
_ACCOUNT = rules.pattern(
    "(?!root$)[a-z][-_a-z0-9]{0,30}",
    "1 to 31 lowercase letters, digits, - and _, first a letter; root is Slurm's own",
    "rename it",
)
# As OS Login makes names of addresses: https://cloud.google.com/compute/docs/oslogin/set-up-oslogin
_USER = rules.pattern(
    "[a-z_][-a-z0-9_]{0,31}",
    "a login's name on the hosts, such as ada_example_com",
    "write what this prints: gcloud compute os-login describe-profile",
)
_WORD = rules.pattern(r"[\w.:/@+-]{1,200}", "one word of letters, digits and . : / @ + - _", "write it so")
_OPTIONS = rules.pattern(r"[\w.=,-]{1,100}", "options of mount, such as ro,nconnect=4", "write it so")
_LOCAL = rules.pattern(
    r"(?!/home$)(?!.*\.\.)/[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*",
    "an absolute path; /home comes with the cluster (slurm:homeStorage)",
    "write e.g. /scratch",
)
_DISK = rules.pattern(
    rf"projects/{rules.PROJECT}/zones/[a-z0-9-]+/disks/{rules.NAME}",
    "projects/P/zones/Z/disks/D",
    "copy it from `gcloud compute disks list --uri`, from `projects/` on",
)
_OBJECT = rules.pattern(
    r"(?!.*\.\.)gs://[a-z0-9][\w.-]*/[\w./-]{1,150}",
    "gs://BUCKET/OBJECT that the hosts' account may read",
    "gcloud storage cp script.sh gs://BUCKET/scripts/",
)


@dataclass(frozen=True, kw_only=True)
class MountSettings:
    """Item of a nodeset's `networkStorage`: a file system that its hosts mount when they join."""

    server: str | None = setting("address of the NFS server; none for a bucket", default=None, rule=_WORD)
    remote: str = setting("exported path, or the bucket's name", rule=_WORD, example="/exports/data")
    local: str = setting("mount point", rule=_LOCAL, example="/data")
    type: str = setting("kind of file system", default="nfs", rule=rules.one_of("nfs", "gcsfuse"))
    options: str = setting("mount options", default="ro", rule=_OPTIONS)

    former: ClassVar[Mapping[str, Former]] = {
        "server_ip": Former("it is called server", "write server"),
        "remote_mount": Former("it is called remote", "write remote"),
        "local_mount": Former("it is called local", "write local"),
        "fs_type": Former("it is called type", "write type: nfs, or gcsfuse"),
        "mount_options": Former("it is called options", "write options"),
    }


@dataclass(frozen=True, kw_only=True)
class NodesetSettings:
    """Item of `slurm:nodesets`: equal slices, whose hosts are Slurm nodes called NAME-SLICE-wWORKER."""

    name: str = setting("first part of its slices' and hosts' names", rule=_PART, example="tpu")
    accelerator_type: str | None = setting(
        "size of a slice by name; this or topology",
        default=None,
        rule=rules.one_of(*(kind.name for kind in CATALOG.types)),
    )
    topology: str | None = setting(
        "size by grid of chips; this or acceleratorType", default=None, rule=rules.TOPOLOGY
    )
    zone: str = setting("zone of the slices", rule=rules.ZONE, example="us-east5-b")
    fallback_zones: tuple[str, ...] = setting(
        "zones for a slice whose own zone has no chips, in this order",
        default=(),
        rule=rules.ZONE,
    )
    node_count_static: int = setting(
        "hosts that are always up, in whole slices", default=0, rule=rules.between(0, 65536)
    )
    node_count_dynamic_max: int = setting(
        "maximum hosts, static ones included: further slices are created for jobs and deleted when idle; 0: "
        "only static ones",
        default=0,
        rule=rules.between(0, 65536),
    )
    spot: bool = setting("Spot: about half the price, preempted with 30 seconds' notice", default=False)
    reserved: bool = setting("from a reservation of the project", default=False)
    preserve_tpu: bool = setting(
        "keep idle slices instead of deleting them (multi-host slices can't be stopped)",
        default=False,
    )
    runtime_version: str | None = setting(
        "image of the hosts, instead of tpu:runtimeVersion", default=None, rule=RUNTIME
    )
    network_storage: tuple[MountSettings, ...] = setting("file systems that hosts mount", default=())
    startup_script: str | None = setting(
        "script that each host runs as root before it joins; if it fails, the host doesn't join",
        default=None,
        rule=_OBJECT,
    )

    former: ClassVar[Mapping[str, Former]] = FORMER


@dataclass(frozen=True, kw_only=True)
class PartitionSettings:
    """Item of `slurm:partitions`: a partition, for `sbatch -p NAME`."""

    name: str = setting("name of the partition", rule=_PART, example="tpu")
    nodesets: tuple[str, ...] = setting(
        "its nodesets, with slices of one size; a job uses one of them", rule=_PART, example="[tpu]"
    )
    default: bool = setting("Slurm's default partition; otherwise the first is", default=False)
    max_hours: int | None = setting(
        "time limit of its jobs; default: none", default=None, rule=rules.between(1, 8760, "h")
    )


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """Item of `slurm:qos`: limits and priority of jobs, for `sbatch --qos=NAME`."""

    name: str = setting("its name; `normal` is the default QOS", rule=_ACCOUNT, example="debug")
    priority: int = setting("priority relative to other QOS", default=0, rule=rules.between(0, 10000))
    max_hosts: int | None = setting(
        "maximum hosts of its running jobs", default=None, rule=rules.between(1, 65536)
    )
    max_hosts_per_user: int | None = setting(
        "maximum hosts of its running jobs per user", default=None, rule=rules.between(1, 65536)
    )
    max_jobs_per_user: int | None = setting(
        "maximum running jobs per user", default=None, rule=rules.between(1, 10000)
    )


@dataclass(frozen=True, kw_only=True)
class TeamSettings:
    """Item of `slurm:accounts`: a Slurm account, whose users have shares and limits together."""

    name: str = setting("name of the account", rule=_ACCOUNT, example="vision")
    users: tuple[str, ...] = setting(
        "its users, by their login names on the hosts", rule=_USER, example="[ada_example_com]"
    )
    fairshare: int = setting("share relative to other accounts", default=1, rule=rules.between(1, 10000))
    max_hosts: int | None = setting(
        "maximum hosts of its running jobs", default=None, rule=rules.between(1, 65536)
    )
    max_jobs: int | None = setting("maximum running jobs", default=None, rule=rules.between(1, 10000))
    qos: tuple[str, ...] = setting(
        "items of slurm:qos that its jobs may use, besides `normal`", default=(), rule=_ACCOUNT
    )


# By OS Login, through Identity-Aware Proxy: a login node has no external address.
SSH = (
    "gcloud compute ssh {node} --project={project} --zone={zone} --tunnel-through-iap --quiet"
    " --command={command}"
)


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """A Slurm cluster whose nodes are the hosts of v6e slices."""

    name: str | None = setting(
        "name of the cluster, and prefix of its machines, disk, secret and accounts; default: slurm-ENV",
        default=None,
        rule=_NAME,
    )
    nodesets: tuple[NodesetSettings, ...] = setting(
        "sets of equal slices",
        example="[{name: tpu, acceleratorType: v6e-16, zone: us-east5-b}]",
    )
    partitions: tuple[PartitionSettings, ...] = setting(
        "partitions; default: one for each nodeset, with its name", default=()
    )
    n_unit: str = setting(
        "unit of `-N`: slices, like cluster-toolkit's TPU nodes, or hosts",
        default=SLICE,
        rule=rules.one_of(*UNITS),
    )
    zone: str | None = setting(
        "zone of the controller and the login nodes; default: that of the first nodeset",
        default=None,
        rule=rules.ZONE,
    )
    controller_machine_type: str = setting(
        "machine of the controller", default="n2-standard-4", rule=_MACHINE
    )
    login_machine_type: str = setting("machine of a login node", default="n2-standard-4", rule=_MACHINE)
    login_count: int = setting("login nodes, NAME-login-0 and so on", default=1, rule=rules.between(1, 16))
    state_disk_type: str = setting(
        "disk of the controller's state", default="pd-balanced", rule=rules.one_of(*DISKS)
    )
    state_disk_gib: int = setting(
        "its size, for queue, accounting, and /home with homeStorage nfs", default=100,
        rule=rules.between(10, 65536, "GiB"),
    )  # fmt: skip
    existing_state_disk: str | None = setting(
        "id of the state disk of a destroyed stack, in the controller's zone, to continue with",
        default=None,
        rule=_DISK,
    )
    home_storage: str = setting(
        "place of /home: the controller's disk, exported by NFS, or a Filestore instance",
        default=NFS,
        rule=rules.one_of(*HOMES),
    )
    filestore_tier: str = setting(
        "tier of the Filestore instance", default="BASIC_HDD", rule=rules.one_of(*TIERS)
    )
    filestore_gib: int = setting(
        "capacity of the Filestore instance", default=1024, rule=rules.between(1024, 102400, "GiB")
    )
    suspend_time_s: int = setting(
        "idle time after which a slice is deleted", default=300, rule=rules.between(30, 86400, "s")
    )
    resume_timeout_s: int = setting(
        "time limit for a slice's hosts to join; then its job is requeued",
        default=1500,
        rule=rules.between(300, 86400, "s"),
    )
    accounting: bool = setting("record jobs' usage, in slurmdbd and MariaDB on the controller", default=False)
    accounts: tuple[TeamSettings, ...] = setting(
        "Slurm accounts with limits; jobs of other users are then refused", default=()
    )
    qos: tuple[LimitSettings, ...] = setting("QOS: limits and priorities of jobs", default=())
    users: tuple[str, ...] = setting(
        "members who may log in to the login nodes and submit", default=(), rule=rules.MEMBER
    )
    account_users: tuple[str, ...] = setting(
        "members who bring the layer up: they may act as its service accounts", default=(), rule=rules.MEMBER
    )
    bundle: str | None = setting(
        "sha256 of Slurm's packages; `tpu publish` writes it", default=None, rule=rules.SHA256
    )
    ssh: str = setting(
        "command by which `tpu slurm` reaches a login node; run without a shell, {command} is one argument",
        default=SSH,
        rule=rules.SSH_LOGIN,
    )
