"""Settings of the storage layer."""

from collections.abc import Mapping
from dataclasses import dataclass

from infra.settings import rules, variables
from infra.settings.rules import Rule
from infra.settings.schema import labels_setting, setting

SECONDS_PER_DAY = 86400
BOARD_ROLE = "roles/aiplatform.user"
"""Role for uploads of curves to Vertex AI TensorBoard, granted on the project."""


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """The bucket that outlives everything, and who may use it."""

    bucket_name: str = setting(
        "checkpoint bucket; kept when its stack is destroyed",
        rule=rules.BUCKET_NAME,
        example="my-project-checkpoints",
    )
    import_bucket: bool = setting(
        "take over a bucket of that name that exists already, such as one that a destroyed stack left; a "
        "plan names what differs",
        default=False,
    )
    import_steps_bucket: bool = setting(
        "likewise of the bucket beside it, bucketName-steps, where running jobs save", default=False
    )
    location: str = setting("the bucket's region", rule=rules.REGION, example="us-east5")
    allow_cross_region: bool = setting(
        "let hosts in other regions use the bucket, and pay for the traffic", default=False
    )
    storage_class: str = setting(
        "storage class of new objects",
        default="STANDARD",
        rule=rules.one_of("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"),
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
            lambda value: value == 0 or 7 <= value <= 90,
            "0 (off) or 7 to 90 days",
            "write 7 or more, or 0",
        ),
    )
    unfinished_upload_days: int = setting(
        "days after which an upload that never ended is removed", default=7, rule=rules.between(1, 365)
    )
    tokens_days: int = setting(
        "days after which a token shard that a run of the pipeline made is removed, read or not; 0: never",
        default=0,
        rule=rules.between(0, 3650),
    )
    kms_key: str | None = setting(
        "key that encrypts the bucket; the storage service agent must be allowed to use it first: "
        "`gcloud storage service-agent --authorize-cmek=KEY`",
        default=None,
        rule=rules.KMS_KEY,
    )
    labels: Mapping[str, str] = labels_setting("labels of the bucket")
    service_account_id: str = setting(
        "account that the hosts run as", default="tpu-training", rule=rules.ACCOUNT_ID, per_environment=True
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
    secrets: tuple[str, ...] = setting(
        "secrets of Secret Manager that programs on slices, of Slurm and in pods may read; `--secret` and "
        "`secrets` of a slice choose among them",
        default=(),
        rule=variables.SECRET_NAME,
        example="[hf-token]",
    )
    repositories: tuple[str, ...] = setting(
        "repositories of Artifact Registry with images that slices run; their hosts may pull from them",
        default=(),
        rule=rules.pattern(
            rf"[a-z0-9-]+-docker\.pkg\.dev/{rules.PROJECT}/{rules.NAME}",
            "LOCATION-docker.pkg.dev/PROJECT/REPOSITORY",
            "copy it from the beginning of an image's name",
        ),
        example="[us-east5-docker.pkg.dev/my-project/images]",
    )
    tensorboard: str | None = setting(
        "Vertex AI TensorBoard that jobs on a cluster and the pipeline's training upload their curves to; "
        "the hosts' account may write there",
        default=None,
        rule=rules.pattern(
            rf"projects/({rules.PROJECT}|\d+)/locations/[a-z0-9-]+/tensorboards/[\w-]+",
            "projects/P/locations/L/tensorboards/T",
            "copy it from `gcloud ai tensorboards list --region=L`",
        ),
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
    state_users: tuple[str, ...] = setting(
        "who runs Pulumi on that state: objects in its bucket, encryption by its key",
        default=(),
        rule=rules.MEMBER,
    )
