"""Declaration of the storage layer."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pulumi
import pulumi_gcp as gcp

from infra.core import present
from infra.core.environment import required_services
from infra.google.enabled import wait_until_it_answers
from infra.layers.storage import existing
from infra.layers.storage.bucket import ControllerBucket, ProtectedBucket
from infra.layers.storage.controller_account import ControllerAccount
from infra.layers.storage.identity import TrainingIdentity
from infra.layers.storage.names import controller_bucket, steps_bucket
from infra.layers.storage.outputs import StorageOutputs
from infra.layers.storage.settings import StorageSettings
from infra.layers.storage.state import StateKey, StateUsers
from infra.settings.schema import Settings

# Pulumi writes a stack's state anew on each change; old ones are of use for days, not permanently.
STATE_VERSION_DAYS = 90


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> StorageOutputs:
    """Declare the buckets, the accounts and the services."""
    provider = providers["gcp"]
    desired = settings[StorageSettings]
    present.require(settings, desired.secrets, "storage:secrets")
    services = ProjectServices(settings, pulumi.ResourceOptions(provider=provider))
    opts = pulumi.ResourceOptions(provider=provider, depends_on=services.services)
    plain = replace(desired, storage_class="STANDARD", versioning=False, hierarchical_namespace=False)
    bucket = _protected(
        settings, desired.bucket_name, desired, opts, desired.import_bucket, "storage:importBucket"
    )
    # Where running jobs save, every few minutes, and remove what is too old: kept for three weeks, that
    # would be hundreds of terabytes. STANDARD, because other classes bill an object for a month at least.
    gone = replace(plain, noncurrent_version_days=1, unfinished_upload_days=1, soft_delete_days=0)
    steps = _protected(
        settings, steps_bucket(settings), gone, opts, desired.import_steps_bucket, "storage:importStepsBucket"
    )
    written = {desired.bucket_name: bucket, steps_bucket(settings): steps}
    identity = TrainingIdentity(settings, written, opts)
    controllers = ControllerBucket(controller_bucket(settings), plain, opts).bucket
    account = state = key = None
    if desired.controller_account_id:
        account = ControllerAccount(settings, bucket, controllers, identity.account, opts).account
    if desired.state_bucket_name:
        versioned = replace(plain, versioning=True, noncurrent_version_days=STATE_VERSION_DAYS)
        state = ProtectedBucket(desired.state_bucket_name, versioned, opts).bucket
    if desired.state_key_ring:
        key = StateKey(settings, desired.state_key_ring, opts).key
    if desired.state_users:
        StateUsers(settings, state, key, opts)
    return StorageOutputs(
        bucket_name=bucket.name,
        steps_bucket_name=steps.name,
        service_account_email=identity.account.email,
        controller_bucket_name=controllers.name,
        project_number=controllers.project_number.apply(str),
        controller_account_email=account.email if account else None,
        state_backend=state.name.apply(lambda name: f"gs://{name}") if state else None,
        secrets_provider=key.id.apply(lambda key_id: f"gcpkms://{key_id}") if key else None,
        services=pulumi.Output.all(*(service.service for service in services.services)),
    )


def _protected(
    settings: Settings,
    name: str,
    kept: StorageSettings,
    opts: pulumi.ResourceOptions,
    imported: bool,
    switch: str,
) -> gcp.storage.Bucket:
    """Declare a bucket, or take over the one of that name, which was compared with the settings first."""
    provider = opts.provider
    assert provider is not None, "a layer's resources name theirs"
    now = imported and existing.require_fit(settings, switch, name, kept, provider)
    # By the name alone the provider would look its project up at Compute Engine, which may be off still.
    return ProtectedBucket(name, kept, opts, import_id=f"{settings.project}/{name}" if now else None).bucket


class ProjectServices(pulumi.ComponentResource):
    """Enabled services; never disabled, since others may use them."""

    services: list[gcp.projects.Service]

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions | None = None):
        super().__init__("tpu:storage:ProjectServices", "services", None, opts)

        async def wait(created: pulumi.ResourceHookArgs) -> None:
            await asyncio.to_thread(wait_until_it_answers, created.name, settings.project)

        hooks = pulumi.ResourceHookBinding(after_create=[pulumi.ResourceHook("services-answer", wait)])
        self.services = [
            gcp.projects.Service(
                service,
                service=service,
                disable_on_destroy=False,
                disable_dependent_services=False,
                opts=pulumi.ResourceOptions(parent=self, hooks=hooks),
            )
            for service in required_services(settings)
        ]
        self.register_outputs({})
