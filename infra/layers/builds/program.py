"""Declaration of the builds layer."""

from collections.abc import Mapping

import pulumi
import pulumi_gcp as gcp

from infra.google.role import only
from infra.layers.builds import names
from infra.layers.builds.access import by_hand
from infra.layers.builds.account import BuildsAccount
from infra.layers.builds.outputs import BuildsOutputs
from infra.layers.builds.settings import BuildsSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

# `gcloud builds submit` gets the bucket itself before it uploads, and counts its requests for the project.
_ROLES = ("roles/cloudbuild.builds.editor", "roles/logging.viewer", "roles/serviceusage.serviceUsageConsumer")
_BUCKET_ROLE = "roles/storage.legacyBucketReader"


class Starters(pulumi.ComponentResource):
    """Grants to start builds and read their logs; the account's policy decides who may run them as it."""

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions):
        super().__init__("tpu:builds:Starters", "starters", None, opts)
        child, bucket = pulumi.ResourceOptions(parent=self), settings[StorageSettings].state_bucket_name
        for user in settings[BuildsSettings].users:
            for role in _ROLES:
                name = f"{role.rpartition('.')[2]}-{user}"
                gcp.projects.IAMMember(name, project=settings.project, role=role, member=user, opts=child)
            gcp.storage.BucketIAMMember(
                f"bucket-{user}", bucket=str(bucket), role=_BUCKET_ROLE, member=user, opts=child
            )
            gcp.storage.BucketIAMMember(
                f"uploads-{user}",
                bucket=str(bucket),
                role="roles/storage.objectUser",
                member=user,
                condition={"title": "sources", "expression": only(names.SOURCES, str(bucket))},
                opts=child,
            )
        self.register_outputs({})


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> BuildsOutputs:
    """Declare the account, its grants, and those of its users."""
    opts = pulumi.ResourceOptions(provider=providers["gcp"])
    account = BuildsAccount(settings, opts)
    Starters(settings, opts)
    return BuildsOutputs(
        account_email=account.account.email,
        submit=pulumi.Output.from_input(names.submit(settings)),
        by_hand=pulumi.Output.from_input([*by_hand(settings)]),
    )
