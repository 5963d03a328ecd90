"""Storage layer: the checkpoint bucket, the hosts' account, and the enabled services."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from infra.core.layer import Acting, Hooks, Layer, Named, Place, deferred
from infra.core.providers import GOOGLE
from infra.core.secrets import GRANTING
from infra.google.role import ACT_AS, Role
from infra.layers.storage.names import (
    HOSTS,
    controller_account_id,
    controller_bucket,
    service_account_id,
    state_key_id,
    steps_bucket,
)
from infra.layers.storage.outputs import StorageOutputs
from infra.layers.storage.rules import RULES
from infra.layers.storage.settings import StorageSettings
from infra.prices.row import PriceRow, Rate, rate, row
from infra.settings.schema import Settings


def _services(settings: Settings) -> Iterator[str]:
    desired = settings[StorageSettings]
    for service in ("cloudresourcemanager", "iam", "logging", "monitoring", "storage"):
        yield f"{service}.googleapis.com"
    if desired.kms_key or desired.state_key_ring:
        yield "cloudkms.googleapis.com"
    if desired.tensorboard:
        yield "aiplatform.googleapis.com"
    if desired.secrets:
        yield "secretmanager.googleapis.com"
    if desired.repositories:
        yield "artifactregistry.googleapis.com"
    if desired.controller_account_id:
        yield "iamcredentials.googleapis.com"


def _accounts(settings: Settings) -> Iterator[Named]:
    storage = settings[StorageSettings]
    yield Named("storage:serviceAccountId", storage.service_account_id, HOSTS)
    if storage.controller_account_id:
        yield Named("storage:controllerAccountId", storage.controller_account_id, "the fleet controller's")


def _buckets(settings: Settings) -> Iterator[Named]:
    storage, path = settings[StorageSettings], "storage:bucketName"
    yield Named(path, storage.bucket_name, "the checkpoints'")
    yield Named(path, steps_bucket(settings), "that of running jobs' saves")
    yield Named(path, controller_bucket(settings), "the fleet controller's")
    if storage.state_bucket_name:
        yield Named("storage:stateBucketName", storage.state_bucket_name, "that of Pulumi's state")


def _claims(settings: Settings) -> Iterator[Named]:
    """Yield the key ring: Google deletes none, so it isn't looked for there."""
    if ring := settings[StorageSettings].state_key_ring:
        yield Named("storage:stateKeyRing", ring, state_key_id(settings))


def _places(settings: Settings) -> Iterator[Place]:
    desired, path = settings[StorageSettings], "storage:location"
    if desired.tensorboard:
        yield Place(path, "aiplatform", desired.location)
    if desired.state_key_ring:
        yield Place(path, "cloudkms", desired.location)


def _at_google(settings: Settings) -> dict[str, str]:
    accounts = [service_account_id(settings)]
    if settings[StorageSettings].controller_account_id:
        accounts.append(controller_account_id(settings))
    return {
        **{bucket: f"https://storage.googleapis.com/storage/v1/b/{bucket}" for bucket in _imported(settings)},
        **{account: f"https://iam.googleapis.com/v1/{account}" for account in accounts},
    }


def _imported(settings: Settings) -> dict[str, str]:
    return {
        settings[StorageSettings].bucket_name: "storage:importBucket: true",
        steps_bucket(settings): "storage:importStepsBucket: true",
    }


def _prices(settings: Settings) -> Iterable[PriceRow]:
    desired = settings[StorageSettings]
    if desired.state_key_ring:
        # Each rotation leaves the earlier version active, and billed.
        yield row("key of Pulumi's secrets, first version", desired.location, ("kms.key", 1))


def _rates(settings: Settings) -> Iterable[Rate]:
    desired = settings[StorageSettings]
    used = ["storage.standard", "storage.class-a", "storage.class-b", "logging"]
    if desired.storage_class != "STANDARD":
        kind = desired.storage_class.lower()
        used += [f"storage.{kind}", f"storage.retrieval.{kind}"]
    if desired.tensorboard:
        used.append("tensorboard")
    if desired.allow_cross_region:
        used.append("traffic.regions")
    if desired.kms_key or desired.state_key_ring:
        used.append("kms.operations")
    return [rate(id_, desired.location) for id_ in used]


_ROLES = (
    Role(
        "roles/serviceusage.serviceUsageAdmin", "enable the APIs",
        ("serviceusage.services.enable", "serviceusage.services.get", "serviceusage.services.list"),
    ),
    Role(
        "roles/storage.admin", "create the buckets and their policies",
        ("storage.buckets.create", "storage.buckets.get", "storage.buckets.getIamPolicy",
         "storage.buckets.setIamPolicy", "storage.buckets.update", "storage.buckets.delete",
         "storage.buckets.list"),
    ),
    Role(
        "roles/iam.serviceAccountAdmin", "create the hosts' account and its policy",
        ("iam.serviceAccounts.create", "iam.serviceAccounts.get", "iam.serviceAccounts.getIamPolicy",
         "iam.serviceAccounts.setIamPolicy", "iam.serviceAccounts.delete", "iam.serviceAccounts.list"),
    ),
    Role(
        "roles/resourcemanager.projectIamAdmin", "let the hosts' account write logs and metrics",
        ("resourcemanager.projects.getIamPolicy", "resourcemanager.projects.setIamPolicy"),
    ),
    Role(
        "roles/iam.roleAdmin", "create the fleet controller's custom role",
        ("iam.roles.create", "iam.roles.get", "iam.roles.update", "iam.roles.delete", "iam.roles.undelete"),
        setting="controller_account_id",
    ),
    GRANTING,
    Role(
        "roles/artifactregistry.admin", "let the hosts' account pull images",
        ("artifactregistry.repositories.getIamPolicy", "artifactregistry.repositories.setIamPolicy"),
        setting="repositories",
    ),
    Role(
        "roles/cloudkms.admin", "create the key of Pulumi's state",
        ("cloudkms.keyRings.create", "cloudkms.keyRings.get", "cloudkms.cryptoKeys.create",
         "cloudkms.cryptoKeys.get", "cloudkms.cryptoKeys.update"),
        setting="state_key_ring",
    ),
    Role(
        "roles/cloudkms.admin", "grant use of that key",
        ("cloudkms.cryptoKeys.getIamPolicy", "cloudkms.cryptoKeys.setIamPolicy"),
        setting="state_users",
    ),
)  # fmt: skip

LAYER = Layer(
    name="storage",
    always_on=True,
    settings=StorageSettings,
    rules=RULES,
    roles=_ROLES,
    services=_services,
    providers=GOOGLE,
    outputs=StorageOutputs,
    accounts=_accounts,
    buckets=_buckets,
    places=_places,
    prices=_prices,
    rates=_rates,
    at_google=_at_google,
    ids={
        "gcp:secretmanager/secretIamMember:SecretIamMember": (
            "projects/{project}/secrets/{secretId} {role} {member}"
        ),
        "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": (
            "projects/{project}/locations/{location}/repositories/{repository} {role} {member}"
        ),
    },
    hooks=Hooks(
        imported=_imported,
        acting=Acting(
            ACT_AS.on,
            "storage:serviceAccountUsers",
            lambda given: [given[StorageSettings].service_account_id],
        ),
        claims=_claims,
    ),
    program=deferred(f"{__package__}.program"),
)
