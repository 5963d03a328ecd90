"""The checkpoint bucket."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

SECONDS_PER_DAY = 86400


@dataclass(frozen=True, kw_only=True)
class BucketPolicy:
    """How a protected bucket keeps its objects."""

    location: str
    storage_class: str
    versioning: bool
    hierarchical_namespace: bool
    noncurrent_version_days: int
    unfinished_upload_days: int
    soft_delete_days: int
    kms_key: str | None


class ProtectedBucket(pulumi.ComponentResource):
    """A private bucket that no `pulumi destroy` removes, and none of whose objects goes at once."""

    bucket: gcp.storage.Bucket

    def __init__(
        self,
        name: str,
        policy: BucketPolicy,
        labels: Mapping[str, str],
        opts: pulumi.ResourceOptions | None = None,
        *,
        adopt: bool = False,
    ):
        super().__init__("tpu:storage:ProtectedBucket", name, None, opts)
        self.bucket = gcp.storage.Bucket(
            name,
            name=name,
            location=policy.location.upper(),  # as the API gives it back
            storage_class=policy.storage_class,
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            force_destroy=False,
            versioning=None if policy.hierarchical_namespace else {"enabled": policy.versioning},
            hierarchical_namespace={"enabled": True} if policy.hierarchical_namespace else None,
            soft_delete_policy={"retention_duration_seconds": policy.soft_delete_days * SECONDS_PER_DAY},
            lifecycle_rules=_lifecycle(policy),
            encryption={"default_kms_key_name": policy.kms_key} if policy.kms_key else None,
            labels=labels,
            # protect: destroy refuses. retain_on_delete: even unprotected, or removed from the
            # program, the bucket stays and only leaves Pulumi's state. import_ is the way back into it;
            # where the bucket is in the state already, it changes nothing.
            opts=pulumi.ResourceOptions(
                parent=self, protect=True, retain_on_delete=True, import_=name if adopt else None
            ),
        )
        self.register_outputs({"name": self.bucket.name})


def _lifecycle(policy: BucketPolicy) -> list[gcp.storage.BucketLifecycleRuleArgsDict]:
    unfinished: gcp.storage.BucketLifecycleRuleArgsDict = {
        "action": {"type": "AbortIncompleteMultipartUpload"},
        "condition": {"age": policy.unfinished_upload_days},
    }
    if policy.hierarchical_namespace:
        return [unfinished]
    # Without versioning, too: versions from before it was switched off would stay, and be billed, for ever.
    # By time and not by number of newer versions: a checkpoint that the trainer deletes is never
    # written again, so it never gets a newer version and would be kept, and billed, for ever.
    noncurrent: gcp.storage.BucketLifecycleRuleArgsDict = {
        "action": {"type": "Delete"},
        "condition": {"days_since_noncurrent_time": policy.noncurrent_version_days, "with_state": "ARCHIVED"},
    }
    return [noncurrent, unfinished]
