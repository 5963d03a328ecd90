"""The buckets. Each is described by the checkpoint bucket's settings, with its own changes."""

from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra.layers.storage.existing import SETTLED_LATER
from infra.layers.storage.names import TOKENS
from infra.layers.storage.settings import SECONDS_PER_DAY, StorageSettings


def _declared(
    name: str, kept: StorageSettings, opts: pulumi.ResourceOptions, **more: Any
) -> gcp.storage.Bucket:
    """Return a private bucket that `destroy` refuses to remove."""
    return gcp.storage.Bucket(
        name,
        name=name,
        location=kept.location.upper(),  # as the API gives it back
        storage_class=kept.storage_class,
        uniform_bucket_level_access=True,
        public_access_prevention="enforced",
        force_destroy=False,
        versioning=None if kept.hierarchical_namespace else {"enabled": kept.versioning},
        soft_delete_policy={"retention_duration_seconds": kept.soft_delete_days * SECONDS_PER_DAY},
        encryption={"default_kms_key_name": kept.kms_key} if kept.kms_key else None,
        labels=kept.labels,
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(protect=True)),
        **more,
    )


class ProtectedBucket(pulumi.ComponentResource):
    """A private bucket that `pulumi destroy` keeps, with soft delete."""

    bucket: gcp.storage.Bucket

    def __init__(
        self,
        name: str,
        kept: StorageSettings,
        opts: pulumi.ResourceOptions | None = None,
        *,
        import_id: str | None = None,
    ):
        """Declare the bucket; `kept` has its retention and storage class.

        `import_id`: of a bucket that this update imports; what an import can't change is left as it is.
        """
        super().__init__("tpu:storage:ProtectedBucket", name, None, opts)
        # retain_on_delete: even unprotected, or removed from the program, the bucket stays and only leaves
        # Pulumi's state. import_ is the way back.
        child = pulumi.ResourceOptions(
            parent=self,
            retain_on_delete=True,
            import_=import_id,
            ignore_changes=list(SETTLED_LATER) if import_id else None,
        )
        self.bucket = _declared(
            name,
            kept,
            child,
            hierarchical_namespace={"enabled": True} if kept.hierarchical_namespace else None,
            lifecycle_rules=_lifecycle(kept),
        )
        self.register_outputs({})


class ControllerBucket(pulumi.ComponentResource):
    """The fleet controller's bucket: hosts can't write the state that decides over slices.

    It has no grants here. Versioning is off, since the state is rewritten all the time. Once unprotected it
    is deleted if it is empty, and a later stack creates it again.
    """

    bucket: gcp.storage.Bucket

    def __init__(self, name: str, kept: StorageSettings, opts: pulumi.ResourceOptions | None = None):
        super().__init__("tpu:storage:ControllerBucket", name, None, opts)
        self.bucket = _declared(name, kept, pulumi.ResourceOptions(parent=self))
        self.register_outputs({})


def _lifecycle(kept: StorageSettings) -> list[gcp.storage.BucketLifecycleRuleArgsDict]:
    unfinished: gcp.storage.BucketLifecycleRuleArgsDict = {
        "action": {"type": "AbortIncompleteMultipartUpload"},
        "condition": {"age": kept.unfinished_upload_days},
    }
    shards: gcp.storage.BucketLifecycleRuleArgsDict = {
        "action": {"type": "Delete"},
        "condition": {"age": kept.tokens_days, "matches_prefixes": [f"{TOKENS}/"]},
    }
    always = [unfinished, *([shards] if kept.tokens_days else [])]
    if kept.hierarchical_namespace:
        return always
    # Without versioning, too: versions from before it was switched off would stay, and be billed.
    # By time and not by number of newer versions: a checkpoint that the trainer deletes is never
    # written again, so it never gets a newer version and would be kept, and billed.
    noncurrent: gcp.storage.BucketLifecycleRuleArgsDict = {
        "action": {"type": "Delete"},
        "condition": {"days_since_noncurrent_time": kept.noncurrent_version_days, "with_state": "ARCHIVED"},
    }
    return [noncurrent, *always]
