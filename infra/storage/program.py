"""Declares the storage layer."""

from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra import names
from infra.settings import Settings
from infra.storage.bucket import BucketPolicy, ProtectedBucket
from infra.storage.controller import ControllerBucket
from infra.storage.controller_account import ControllerAccount
from infra.storage.identity import TrainingIdentity
from infra.storage.services import ProjectServices
from infra.storage.state import StateKey
from infra.storage.steps import steps_policy

# Pulumi writes a stack's state anew on each change; old ones are of use for days, not for ever.
STATE_VERSION_DAYS = 90


def program(settings: Settings, provider: gcp.Provider) -> dict[str, Any]:
    """The buckets, the account and the services. Returns the outputs of the stack."""
    wanted = settings.storage
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
    outputs: dict[str, Any] = {
        "bucketName": bucket.name,
        "stepsBucketName": steps.name,
        "serviceAccountEmail": identity.account.email,
        "controllerBucketName": controllers.name,
    }
    if wanted.controller_account_id:
        account = ControllerAccount(settings, bucket, controllers, identity.account, opts).account
        outputs["controllerAccountEmail"] = account.email
    if wanted.state_bucket_name:
        state = ProtectedBucket(wanted.state_bucket_name, _state_policy(settings), wanted.labels, opts).bucket
        outputs["stateBackend"] = state.name.apply(lambda name: f"gs://{name}")
    if wanted.state_key_ring:
        key = StateKey(settings, wanted.state_key_ring, opts).key
        outputs["secretsProvider"] = key.id.apply(lambda key_id: f"gcpkms://{key_id}")
    return outputs


def _state_policy(settings: Settings) -> BucketPolicy:
    return BucketPolicy(
        location=settings.storage.location,
        storage_class="STANDARD",
        versioning=True,
        hierarchical_namespace=False,
        noncurrent_version_days=STATE_VERSION_DAYS,
        unfinished_upload_days=settings.storage.unfinished_upload_days,
        soft_delete_days=settings.storage.soft_delete_days,
        kms_key=settings.storage.kms_key,
    )
