"""The fleet controller's own bucket: what decides over slices lies where no host can write."""

import pulumi
import pulumi_gcp as gcp

from infra import names
from infra.settings import Settings
from infra.storage.bucket import SECONDS_PER_DAY
from infra.storage.settings import StorageSettings


class ControllerBucket(pulumi.ComponentResource):
    """A small private bucket; nobody is granted it here, least of all the hosts' account.

    Versioning is off: the state is written anew all the time. `destroy` refuses to remove it; once
    unprotected it goes, if it is empty, and a stack that comes back makes it anew.
    """

    bucket: gcp.storage.Bucket

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions | None = None):
        name, wanted = names.controller_bucket(settings), settings[StorageSettings]
        super().__init__("tpu:storage:ControllerBucket", name, None, opts)
        self.bucket = gcp.storage.Bucket(
            name,
            name=name,
            location=wanted.location.upper(),  # as the API gives it back
            storage_class="STANDARD",
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            force_destroy=False,
            versioning={"enabled": False},
            soft_delete_policy={"retention_duration_seconds": wanted.soft_delete_days * SECONDS_PER_DAY},
            encryption={"default_kms_key_name": wanted.kms_key} if wanted.kms_key else None,
            labels=wanted.labels,
            opts=pulumi.ResourceOptions(parent=self, protect=True),
        )
        self.register_outputs({"name": self.bucket.name})
