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
    """Checkpoint bucket, accounts, secrets, and Pulumi's state."""

    bucket_name: str = setting(
        "checkpoint bucket; kept when its stack is destroyed",
        rule=rules.BUCKET_NAME,
        example="my-project-checkpoints",
    )
    import_bucket: bool = setting(
        "import an existing bucket of that name, such as one left by a destroyed stack; the plan lists "
        "differences",
        default=False,
    )
    import_steps_bucket: bool = setting(
        "the same for the steps bucket, bucketName-steps, where running jobs save", default=False
    )
    location: str = setting("the bucket's region", rule=rules.REGION, example="us-east5")
    allow_cross_region: bool = setting(
        "allow hosts in other regions, whose traffic to the bucket is billed", default=False
    )
    storage_class: str = setting(
        "storage class of new objects",
        default="STANDARD",
        rule=rules.one_of("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"),
    )
    versioning: bool = setting("keep overwritten and deleted objects for noncurrentVersionDays", default=True)
    hierarchical_namespace: bool = setting(
        "real folders with atomic rename, instead of versioning; only for a new bucket", default=False
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
        "days after which unfinished uploads are removed", default=7, rule=rules.between(1, 365)
    )
    tokens_days: int = setting(
        "days after which token shards of pipeline runs are removed, used or not; 0: never",
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
        "service account of the hosts", default="tpu-training", rule=rules.ACCOUNT_ID, per_environment=True
    )
    service_account_users: tuple[str, ...] = setting(
        "members who may start slices with that account, and log in to them", default=(), rule=rules.MEMBER
    )
    controller_account_id: str | None = setting(
        "service account for a fleet controller, created with its own role; default: none",
        default=None,
        rule=rules.ACCOUNT_ID,
    )
    controller_account_users: tuple[str, ...] = setting(
        "members who may attach that account to a machine, or impersonate it",
        default=(),
        rule=rules.MEMBER,
    )
    secrets: tuple[str, ...] = setting(
        "secrets of Secret Manager that all programs may read, on slices, in Slurm and in pods; `--secret` "
        "and a slice's `secrets` choose among them",
        default=(),
        rule=variables.SECRET_NAME,
        example="[hf-token]",
    )
    repositories: tuple[str, ...] = setting(
        "repositories of Artifact Registry from which hosts may pull images",
        default=(),
        rule=rules.pattern(
            rf"[a-z0-9-]+-docker\.pkg\.dev/{rules.PROJECT}/{rules.NAME}",
            "LOCATION-docker.pkg.dev/PROJECT/REPOSITORY",
            "copy it from the beginning of an image's name",
        ),
        example="[us-east5-docker.pkg.dev/my-project/images]",
    )
    tensorboard: str | None = setting(
        "Vertex AI TensorBoard to which jobs of a queue and the pipeline upload curves; the hosts' account "
        "may write to it",
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
        "members who run Pulumi with that state: access to its bucket and key",
        default=(),
        rule=rules.MEMBER,
    )
