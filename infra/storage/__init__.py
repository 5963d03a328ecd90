"""Storage layer: the checkpoint bucket, the hosts' account, and what the project must have enabled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from infra import names
from infra.gcp.roles import Role
from infra.layers import Layer, deferred
from infra.outputs import Outputs, output
from infra.providers import GOOGLE
from infra.settings.schema import Settings
from infra.storage.rules import RULES
from infra.storage.settings import StorageSettings

if TYPE_CHECKING:
    from pulumi import Output

    from infra.prices import Rate, Row


class StorageOutputs(Outputs):
    """Where everything is kept, and the accounts."""

    bucket_name: Output[str] = output("`my-project-checkpoints`")
    steps_bucket_name: Output[str] = output("`my-project-checkpoints-steps`")
    service_account_email: Output[str] = output("`tpu-training@PROJECT.iam.gserviceaccount.com`")
    controller_bucket_name: Output[str] = output("`my-project-checkpoints-fleet`")
    controller_account_email: Output[str] | None = output(
        "`tpu-fleet@PROJECT.iam.gserviceaccount.com`; absent: no `storage:controllerAccountId`", default=None
    )
    state_backend: Output[str] | None = output(
        "`gs://NAME`, for `pulumi login`; absent: no `storage:stateBucketName`", default=None
    )
    secrets_provider: Output[str] | None = output(
        "`gcpkms://…`, for `pulumi stack init`; absent: no `storage:stateKeyRing`", default=None
    )
    services: Output[list[str]] | None = output("Google's services that it has enabled", default=None)


def _planned(settings: Settings) -> dict[str, Any]:
    return {
        "bucket_name": settings[StorageSettings].bucket_name,
        "steps_bucket_name": names.steps_bucket(settings),
        "service_account_email": names.service_account_email(settings),
        "controller_bucket_name": names.controller_bucket(settings),
    }


def _services(settings: Settings) -> Iterator[str]:
    desired = settings[StorageSettings]
    for one in ("cloudresourcemanager", "iam", "logging", "monitoring", "storage"):
        yield f"{one}.googleapis.com"
    if desired.kms_key or desired.state_key_ring:
        yield "cloudkms.googleapis.com"
    if desired.tensorboard:
        yield "aiplatform.googleapis.com"
    if desired.controller_account_id:
        yield "iamcredentials.googleapis.com"


def _at_google(settings: Settings) -> dict[str, str]:
    bucket = settings[StorageSettings].bucket_name
    accounts = [names.service_account_id(settings)]
    if settings[StorageSettings].controller_account_id:
        accounts.append(names.controller_account_id(settings))
    return {
        bucket: f"https://storage.googleapis.com/storage/v1/b/{bucket}",
        **{account: f"https://iam.googleapis.com/v1/{account}" for account in accounts},
    }


def _prices(settings: Settings) -> Iterable[Row]:
    from infra import prices  # here, because it imports the layers

    desired = settings[StorageSettings]
    if desired.state_key_ring:
        # Each rotation leaves the earlier version active, and billed.
        yield prices.row("key of Pulumi's secrets, first version", desired.location, ("kms.key", 1))


def _rates(settings: Settings) -> Iterable[Rate]:
    from infra import prices

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
    return [prices.rate(id_, desired.location) for id_ in used]


_ROLES = (
    Role(
        "roles/serviceusage.serviceUsageAdmin", "enable the APIs",
        ("serviceusage.services.enable", "serviceusage.services.get", "serviceusage.services.list"),
    ),
    Role(
        "roles/storage.admin", "create the buckets and say who uses them",
        ("storage.buckets.create", "storage.buckets.get", "storage.buckets.getIamPolicy",
         "storage.buckets.setIamPolicy", "storage.buckets.update", "storage.buckets.delete"),
    ),
    Role(
        "roles/iam.serviceAccountAdmin", "create the hosts' account and say who uses it",
        ("iam.serviceAccounts.create", "iam.serviceAccounts.get", "iam.serviceAccounts.getIamPolicy",
         "iam.serviceAccounts.setIamPolicy", "iam.serviceAccounts.delete", "iam.serviceAccounts.list"),
    ),
    Role(
        "roles/resourcemanager.projectIamAdmin", "let the hosts' account write logs and metrics",
        ("resourcemanager.projects.getIamPolicy", "resourcemanager.projects.setIamPolicy"),
    ),
    Role(
        "roles/iam.roleAdmin", "define the controller's role",
        ("iam.roles.create", "iam.roles.get", "iam.roles.update", "iam.roles.delete", "iam.roles.undelete"),
        setting="controller_account_id",
    ),
    Role(
        "roles/cloudkms.admin", "create the key of Pulumi's state",
        ("cloudkms.keyRings.create", "cloudkms.keyRings.get", "cloudkms.cryptoKeys.create",
         "cloudkms.cryptoKeys.get", "cloudkms.cryptoKeys.update"),
        setting="state_key_ring",
    ),
    Role(
        "roles/cloudkms.admin", "say who uses it",
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
    planned=_planned,
    prices=_prices,
    rates=_rates,
    at_google=_at_google,
    program=deferred(f"{__name__}.program"),
)
