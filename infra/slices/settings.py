"""Settings of the TPU layer."""

from collections.abc import Mapping
from dataclasses import dataclass

from infra.catalog import CATALOG
from infra.settings import rules
from infra.settings.schema import NODE_LABELS, labels_setting, setting
from infra.settings.variables import NAME, SECRET, VALUE, Variables
from infra.slices.runtime import RUNTIME


@dataclass(frozen=True, kw_only=True)
class SliceSettings:
    """Item of `tpu:slices`: a slice, or with `count` a fleet of equal slices."""

    name: str = setting(
        "name of the slice; members of a fleet are called tpu-{region}-{zone letter}-{worker id}",
        rule=rules.RESOURCE_NAME,
        example="train",
    )
    accelerator_type: str | None = setting(
        "size by name; this or topology", default=None, rule=rules.one_of(*(k.name for k in CATALOG.types))
    )
    topology: str | None = setting(
        "size by grid of chips; this or acceleratorType",
        default=None,
        rule=rules.TOPOLOGY,
    )
    zones: tuple[str, ...] = setting(
        "zones; a fleet's members are spread over them",
        rule=rules.ZONE,
        example="[us-east5-b]",
        not_empty="a slice is in a zone",
    )
    fallback_zones: tuple[str, ...] = setting(
        "zones for a member whose zone has no chips: that with the fewest refusals first, then in this "
        "order; they get subnets and data disks too",
        default=(),
        rule=rules.ZONE,
    )
    count: int | None = setting("number of slices in a fleet", default=None, rule=rules.between(1, 1000))
    multislice: bool = setting(
        "all slices of the fleet run one job, over the data center network", default=False
    )
    first_worker_id: int = setting(
        "worker id of a fleet's first member in each zone", default=0, rule=rules.between(0, 9999)
    )
    spot: bool = setting("Spot: about half the price, preempted with 30 seconds' notice", default=False)
    reserved: bool = setting("from a reservation of the project", default=False)
    runtime_version: str | None = setting(
        "image of the hosts, instead of tpu:runtimeVersion", default=None, rule=RUNTIME
    )
    run: str | None = setting(
        "command that every host starts after boot, in /opt/training; default: none",
        default=None,
        rule=rules.COMMAND,
    )
    image: str | None = setting(
        "container image in which `run` starts, with its own Python and packages, in a repository of "
        "storage:repositories",
        default=None,
        rule=rules.DIGEST,
        example="us-east5-docker.pkg.dev/my-project/images/mine@sha256:…",
    )
    bundle: str | None = setting(
        "sha256 of the bundle that its hosts install, instead of tpu:bundle", default=None, rule=rules.SHA256
    )
    checkpoint_folder: str | None = setting(
        "folder of the bucket that programs find as CHECKPOINT_DIR; default: the whole bucket",
        default=None,
        rule=rules.BUCKET_FOLDER,
        example="jobs/mine",
    )
    env: Mapping[str, str] = setting(
        "environment variables of its program", default={}, rule=VALUE, key_rule=NAME
    )
    secrets: tuple[str, ...] = setting(
        "environment variables from Secret Manager, which each host reads when its program starts",
        default=(),
        rule=SECRET,
        example="[hf-token]",
    )
    labels: Mapping[str, str] = labels_setting("labels of the nodes", NODE_LABELS)

    @property
    def variables(self) -> Variables:
        """Return the variables of its program."""
        return Variables(self.env, self.secrets)


@dataclass(frozen=True, kw_only=True)
class TpuSettings:
    """The slices, and what their hosts do when they boot."""

    slices: tuple[SliceSettings, ...] = setting(
        "slices; the layers network and data create subnets and disks in their zones", default=()
    )
    zones: tuple[str, ...] = setting(
        "further zones, for `tpu run`, ad hoc fleets and jobs; they get subnets and data disks too",
        default=(),
        rule=rules.ZONE,
    )
    bundle: str | None = setting(
        "sha256 of the bundle that hosts install; `tpu publish` writes it", default=None, rule=rules.SHA256
    )
    code: str | None = setting(
        "folder of your code, which `tpu publish` adds to the bundle; hosts have it in /opt/training",
        default=None,
        rule=rules.FOLDER,
    )
    requirements: str | None = setting(
        "file with further packages; default: `requirements.txt` of that folder",
        default=None,
        rule=rules.FOLDER,
    )
    runtime_version: str = setting(
        "image of the hosts; a change replaces them; `tpu doctor` checks that their zones offer it",
        default=CATALOG.default_runtime,
        rule=RUNTIME,
    )
    metadata_timeout_s: int = setting(
        "time limit for Google to give a host its number and its slice's addresses, seconds",
        default=3600,  # https://github.com/marin-community/marin/pull/6122: hosts boot up to an hour early
        rule=rules.between(60, 86400, "s"),
    )
    barrier_timeout_s: int = setting(
        "time limit of a worker's wait for the others; at boot in addition to metadataTimeoutS, seconds",
        default=900,
        rule=rules.between(10, 86400, "s"),
    )
    tensorflow: bool = setting("publish TensorFlow with the bundle", default=False)
    os_login: bool = setting("logins by IAM instead of keys in metadata", default=True)
    secure_boot: bool = setting("boot only signed kernels", default=True)
    additional_zones: tuple[str, ...] = setting(
        "zones with v6e that the catalog lacks", default=(), rule=rules.ZONE
    )
