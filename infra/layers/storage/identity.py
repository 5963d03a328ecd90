"""The hosts' account and its grants."""

from collections.abc import Mapping, Sequence
from itertools import product

import pulumi
import pulumi_gcp as gcp

from infra.layers.storage.names import service_account_email, service_account_id
from infra.layers.storage.settings import BOARD_ROLE, StorageSettings
from infra.settings.schema import Settings

# On the bucket. objectUser reads and writes objects and folders. It can't see the bucket itself,
# which gcsfs asks for before it writes a first file (`storage.buckets.get`, "is it there?");
# legacyBucketReader adds that and listing, and can only be granted on a bucket.
BUCKET_ROLES = ("roles/storage.objectUser", "roles/storage.legacyBucketReader")

# On the project, because logs and metrics have no smaller resource to grant on.
PROJECT_ROLES = ("roles/logging.logWriter", "roles/monitoring.metricWriter")


class TrainingIdentity(pulumi.ComponentResource):
    """A service account, its grants, and grants to use it."""

    account: gcp.serviceaccount.Account

    def __init__(
        self,
        settings: Settings,
        buckets: Mapping[str, gcp.storage.Bucket],
        opts: pulumi.ResourceOptions | None = None,
    ):
        """Declare the account; hosts read and write `buckets`, by the suffix of their grants' names."""
        account_id = settings[StorageSettings].service_account_id
        super().__init__("tpu:storage:TrainingIdentity", account_id, None, opts)
        # Every slice runs as this account: a destroy that stops at the bucket must not delete it first.
        stored = pulumi.ResourceOptions(parent=self, protect=True)
        self.account = gcp.serviceaccount.Account(
            account_id,
            account_id=account_id,
            display_name="TPU hosts",
            description="Runs the training jobs on TPU slices",
            opts=stored,
        )
        # Written out instead of taken from the account, so that a preview and a policy see who gets what.
        member = f"serviceAccount:{service_account_email(settings)}"
        after = pulumi.ResourceOptions(parent=self, depends_on=[self.account])
        granted = pulumi.ResourceOptions.merge(after, pulumi.ResourceOptions(protect=True))
        for (which, bucket), role in product(buckets.items(), BUCKET_ROLES):
            gcp.storage.BucketIAMMember(
                f"{account_id}{which}-{_short(role)}",
                bucket=bucket.name,
                role=role,
                member=member,
                opts=granted,
            )
        for role in (*PROJECT_ROLES, *([BOARD_ROLE] if settings[StorageSettings].tensorboard else [])):
            gcp.projects.IAMMember(
                f"{account_id}-{_short(role)}",
                project=settings.project,
                role=role,
                member=member,
                opts=granted,
            )
        self._users(settings, settings[StorageSettings].service_account_users, after)
        self.register_outputs({})

    def _users(self, settings: Settings, users: Sequence[str], opts: pulumi.ResourceOptions) -> None:
        for user in users:
            gcp.serviceaccount.IAMMember(
                f"{settings[StorageSettings].service_account_id}-user-{user}",
                service_account_id=service_account_id(settings),
                role="roles/iam.serviceAccountUser",
                member=user,
                opts=opts,
            )


def _short(role: str) -> str:
    """ "roles/storage.objectUser" → "objectUser"."""
    return role.rpartition(".")[2]
