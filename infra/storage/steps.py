"""The bucket where running jobs save: what is removed there is gone, and isn't billed for weeks more."""

from infra.settings import Settings
from infra.storage.bucket import BucketPolicy
from infra.storage.settings import StorageSettings


def steps_policy(settings: Settings) -> BucketPolicy:
    """A run saves every few minutes and removes what is too old: kept for three weeks, that would be hundreds
    of terabytes. STANDARD, because the other classes bill an object for a month at least.
    """
    return BucketPolicy(
        location=settings[StorageSettings].location,
        storage_class="STANDARD",
        versioning=False,
        hierarchical_namespace=False,
        noncurrent_version_days=1,
        unfinished_upload_days=1,
        soft_delete_days=0,
        kms_key=settings[StorageSettings].kms_key,
    )
