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
    """Item of `tpu:slices`: a slice, or with `count` a fleet of equal ones."""

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
        "zones; a fleet's members are spread over them in turn",
        rule=rules.ZONE,
        example="[us-east5-b]",
        not_empty="a slice is in a zone",
    )
    fallback_zones: tuple[str, ...] = setting(
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
        "image of the hosts, instead of tpu:runtimeVersion", default=None, rule=RUNTIME
    )
    run: str | None = setting(
        "what every host starts after boot, in /opt/training; without it nothing is started",
        default=None,
        rule=rules.COMMAND,
    )
    image: str | None = setting(
        "container image in which `run` starts, with Python and packages of its own; hosts pull it, by the "
        "digest, from a repository of storage:repositories",
        default=None,
        rule=rules.DIGEST,
        example="us-east5-docker.pkg.dev/my-project/images/mine@sha256:…",
    )
    bundle: str | None = setting(
        "sha256 of the bundle that its hosts install, instead of tpu:bundle", default=None, rule=rules.SHA256
    )
    checkpoint_folder: str | None = setting(
        "folder of the bucket that its programs find as CHECKPOINT_DIR; the whole bucket, unless given",
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
        "the slices; network and data make subnets and disks in their zones", default=()
    )
    zones: tuple[str, ...] = setting(
        "zones beside those of the slices, where `tpu run` may create some; network and data cover them too",
        default=(),
        rule=rules.ZONE,
    )
    bundle: str | None = setting(
        "sha256 of the bundle that hosts install; `tpu publish` writes it", default=None, rule=rules.SHA256
    )
    code: str | None = setting(
        "folder of your own code, which `tpu publish` takes along; it is at /opt/training at every boot",
        default=None,
        rule=rules.FOLDER,
    )
    requirements: str | None = setting(
        "file with the packages that it needs besides; `requirements.txt` of that folder, unless given",
        default=None,
        rule=rules.FOLDER,
    )
    runtime_version: str = setting(
        "image of the hosts; another replaces them, and `tpu doctor` says whether their zones offer it",
        default=CATALOG.default_runtime,
        rule=RUNTIME,
    )
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
