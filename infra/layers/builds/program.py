"""Declaration of the builds layer."""

from collections.abc import Mapping

import pulumi
import pulumi_gcp as gcp

from infra.google.role import only
from infra.layers.builds import commands
from infra.layers.builds.accounts import apply_account, image_account, preview_account
from infra.layers.builds.outputs import BuildsOutputs
from infra.layers.builds.settings import BuildsSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings


class Builder(pulumi.ComponentResource):
    """Repository of the builder image."""

    repository: gcp.artifactregistry.Repository

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions):
        name = settings[BuildsSettings].repository
        super().__init__("tpu:builds:Builder", name, None, opts)
        self.repository = gcp.artifactregistry.Repository(
            name,
            repository_id=name,
            location=settings[StorageSettings].location,
            format="DOCKER",
            description="The image that builds run in",
            docker_config={"immutable_tags": True},
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})


class Starters(pulumi.ComponentResource):
    """Grants to start builds and read their logs; policies of the accounts decide as which account."""

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions):
        super().__init__("tpu:builds:Starters", "starters", None, opts)
        child = pulumi.ResourceOptions(parent=self)
        builds, bucket = settings[BuildsSettings], str(settings[StorageSettings].state_bucket_name)
        for user in dict.fromkeys([*builds.preview_users, *builds.apply_users]):
            for role in ("roles/cloudbuild.builds.editor", "roles/logging.viewer"):
                gcp.projects.IAMMember(
                    f"{role.rpartition('.')[2]}-{user}",
                    project=settings.project,
                    role=role,
                    member=user,
                    opts=child,
                )
            gcp.storage.BucketIAMMember(
                f"uploads-{user}",
                bucket=bucket,
                role="roles/storage.objectUser",
                member=user,
                condition={"title": "sources", "expression": only(commands.SOURCES, bucket)},
                opts=child,
            )
        self.register_outputs({})


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> BuildsOutputs:
    """Declare the accounts, their grants, and the repository."""
    opts = pulumi.ResourceOptions(provider=providers["gcp"])
    repository = Builder(settings, opts).repository
    previews, applies, images = (
        preview_account(settings, opts),
        apply_account(settings, opts),
        image_account(settings, opts),
    )
    for account, role in ((previews, "reader"), (applies, "reader"), (images, "writer")):
        account.repository_role(
            repository, settings[StorageSettings].location, f"roles/artifactregistry.{role}"
        )
    Starters(settings, opts)
    return BuildsOutputs(
        preview_account_email=previews.account.email,
        apply_account_email=applies.account.email,
        image_account_email=images.account.email,
        repository=repository.repository_id.apply(lambda _: commands.repository(settings)),
        submit=pulumi.Output.from_input(commands.submit(settings)),
    )
