"""Rules between the storage layer's settings."""

from collections.abc import Iterator

from google_facts import registries
from infra.errors import Problem
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Relation, Settings
from infra.settings.unread import ReadWith, unread


def _versioning(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings[StorageSettings].versioning and settings[StorageSettings].hierarchical_namespace:
        yield Problem(
            "storage:hierarchicalNamespace",
            "true beside versioning",
            "Cloud Storage keeps no versions in a bucket with real folders",
            "write storage:versioning: false beside it (soft delete still protects), or remove it",
        )


def _tensorboard_location(settings: Settings, given: set[str]) -> Iterator[Problem]:
    board, location = settings[StorageSettings].tensorboard, settings[StorageSettings].location
    if board and board.split("/")[3] != location:
        yield Problem(
            "storage:tensorboard",
            f'"{board}"',
            f"curves stay in the bucket's location, {location}",
            f"gcloud ai tensorboards create --region={location} --display-name=NAME, and that one's name",
        )


def _tensorboard_project(settings: Settings, given: set[str]) -> Iterator[Problem]:
    board = settings[StorageSettings].tensorboard
    project = board.split("/")[1] if board else ""
    if project and not project.isdecimal() and project != settings.project:
        yield Problem(
            "storage:tensorboard",
            f'"{board}"',
            f"roles are granted on {settings.project} alone, so that nothing may write into another project",
            f"gcloud ai tensorboards create --project={settings.project} --region=… --display-name=NAME, and "
            "that one's name",
        )


def _repositories(settings: Settings, given: set[str]) -> Iterator[Problem]:
    for name in settings[StorageSettings].repositories:
        if (place := registries.named(name)) and place.project != settings.project:
            yield Problem(
                "storage:repositories",
                f'"{name}"',
                f"roles are granted on {settings.project}'s own alone; of another its owner lets hosts pull",
                "remove it; the owner grants roles/artifactregistry.reader on it to the hosts' account",
            )


def _kms_location(settings: Settings, given: set[str]) -> Iterator[Problem]:
    key = settings[StorageSettings].kms_key
    if key and key.split("/")[3] != settings[StorageSettings].location:
        yield Problem(
            "storage:kmsKey",
            f'"{key}"',
            f"a bucket's key is in the bucket's location, {settings[StorageSettings].location}",
            "create a key ring there",
        )


def _state_users(settings: Settings, given: set[str]) -> Iterator[Problem]:
    storage = settings[StorageSettings]
    if storage.state_users and not (storage.state_bucket_name or storage.state_key_ring):
        yield Problem(
            "storage:stateUsers",
            f"{len(storage.state_users)} without a state",
            "who uses a state needs its bucket, its key, or both",
            "add storage:stateBucketName and storage:stateKeyRing, or remove it",
        )


def _controller_account(settings: Settings, given: set[str]) -> Iterator[Problem]:
    storage = settings[StorageSettings]
    if storage.controller_account_users and not storage.controller_account_id:
        yield Problem(
            "storage:controllerAccountUsers",
            f"{len(storage.controller_account_users)} without an account",
            "who may run as the controller's account needs one",
            "add storage:controllerAccountId: tpu-fleet, or remove it",
        )


RULES: tuple[Relation, ...] = (
    (("storage:versioning", "storage:hierarchicalNamespace"), _versioning),
    (("storage:location", "storage:kmsKey"), _kms_location),
    (("storage:location", "storage:tensorboard"), _tensorboard_location),
    (("gcp:project", "storage:tensorboard"), _tensorboard_project),
    (("gcp:project", "storage:repositories"), _repositories),
    (("storage:stateUsers", "storage:stateBucketName", "storage:stateKeyRing"), _state_users),
    (
        ("storage:controllerAccountId", "storage:controllerAccountUsers"),
        _controller_account,
    ),
    unread(
        "storage",
        StorageSettings,
        ReadWith(("noncurrentVersionDays",), "versioning: true", lambda item: item.versioning),
    ),
)
