"""The hosts' account and its grants."""

from collections.abc import Mapping
from itertools import product

import pulumi
import pulumi_gcp as gcp

from google_facts import registries
from infra.core.account import Account
from infra.core.secrets import ACCESSOR
from infra.layers.storage.names import steps_bucket
from infra.layers.storage.settings import BOARD_ROLE, StorageSettings
from infra.settings.schema import Settings

# On the bucket. objectUser reads and writes objects and folders. It can't see the bucket itself,
# which gcsfs asks for before it writes a first file (`storage.buckets.get`, "is it there?");
# legacyBucketReader adds that and listing, and can only be granted on a bucket.
BUCKET_ROLES = ("roles/storage.objectUser", "roles/storage.legacyBucketReader")

# On the project, because logs and metrics have no smaller resource to grant on.
PROJECT_ROLES = ("roles/logging.logWriter", "roles/monitoring.metricWriter")


class TrainingIdentity(Account):
    """A service account, its grants, and grants to use it."""

    def __init__(
        self,
        settings: Settings,
        buckets: Mapping[str, gcp.storage.Bucket],
        opts: pulumi.ResourceOptions | None = None,
    ):
        """Declare the account; hosts read and write `buckets`, by name."""
        storage = settings[StorageSettings]
        # Every slice runs as this account: a destroy that stops at the bucket must not delete it first.
        super().__init__(
            "tpu:storage:TrainingIdentity", settings, storage.service_account_id, "TPU hosts",
            "Runs the training jobs on TPU slices", storage.service_account_users, opts, protect=True,
        )  # fmt: skip
        for (name, bucket), role in product(buckets.items(), BUCKET_ROLES):
            which = "-steps" if name == steps_bucket(settings) else ""
            self.bucket_role(name, role, after=[bucket], name=which)
        for role in PROJECT_ROLES:
            self.project_role(role)
        # These go with their settings.
        self.after = pulumi.ResourceOptions.merge(self.after, pulumi.ResourceOptions(protect=False))
        for secret in storage.secrets:
            self.secret_role(secret, ACCESSOR)
        for place in filter(None, map(registries.named, storage.repositories)):
            name = f"-{place.location}-{place.name}"
            self.repository_role(place.name, place.location, registries.READER, name=name)
        if storage.tensorboard:
            self.project_role(BOARD_ROLE)
