"""Declares the storage layer."""

from collections.abc import Mapping

import pulumi

from infra import names
from infra.settings import Settings
from infra.storage import StorageOutputs
from infra.storage.bucket import BucketPolicy, ProtectedBucket
from infra.storage.controller import ControllerBucket
from infra.storage.controller_account import ControllerAccount
from infra.storage.identity import TrainingIdentity
from infra.storage.services import ProjectServices
from infra.storage.settings import StorageSettings
from infra.storage.state import StateKey
from infra.storage.steps import steps_policy

# Pulumi writes a stack's state anew on each change; old ones are of use for days, not for ever.
STATE_VERSION_DAYS = 90


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> StorageOutputs:
    """The buckets, the account and the services."""
    provider = providers["gcp"]
    wanted = settings[StorageSettings]
    services = ProjectServices(settings, pulumi.ResourceOptions(provider=provider))
    opts = pulumi.ResourceOptions(provider=provider, depends_on=services.services)
    bucket = ProtectedBucket(
        wanted.bucket_name,
        BucketPolicy(
            location=wanted.location,
            storage_class=wanted.storage_class,
            versioning=wanted.versioning,
            hierarchical_namespace=wanted.hierarchical_namespace,
            noncurrent_version_days=wanted.noncurrent_version_days,
            unfinished_upload_days=wanted.unfinished_upload_days,
            soft_delete_days=wanted.soft_delete_days,
            kms_key=wanted.kms_key,
        ),
        wanted.labels,
        opts,
        adopt=wanted.adopt_bucket,
    ).bucket
    steps = ProtectedBucket(
        names.steps_bucket(settings),
        steps_policy(settings),
        wanted.labels,
        opts,
        adopt=wanted.adopt_steps_bucket,
    ).bucket
    identity = TrainingIdentity(settings, {"": bucket, "-steps": steps}, opts)
    controllers = ControllerBucket(settings, opts).bucket
    account = state = key = None
    if wanted.controller_account_id:
        account = ControllerAccount(settings, bucket, controllers, identity.account, opts).account
    if wanted.state_bucket_name:
        state = ProtectedBucket(wanted.state_bucket_name, _state_policy(settings), wanted.labels, opts).bucket
    if wanted.state_key_ring:
        key = StateKey(settings, wanted.state_key_ring, opts).key
    return StorageOutputs(
        bucket_name=bucket.name,
        steps_bucket_name=steps.name,
        service_account_email=identity.account.email,
        controller_bucket_name=controllers.name,
        controller_account_email=account.email if account else None,
        state_backend=state.name.apply(lambda name: f"gs://{name}") if state else None,
        secrets_provider=key.id.apply(lambda key_id: f"gcpkms://{key_id}") if key else None,
    )


def _state_policy(settings: Settings) -> BucketPolicy:
    return BucketPolicy(
        location=settings[StorageSettings].location,
        storage_class="STANDARD",
        versioning=True,
        hierarchical_namespace=False,
        noncurrent_version_days=STATE_VERSION_DAYS,
        unfinished_upload_days=settings[StorageSettings].unfinished_upload_days,
        soft_delete_days=settings[StorageSettings].soft_delete_days,
        kms_key=settings[StorageSettings].kms_key,
    )
