"""The accounts that builds run as, with what each may do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra import names
from infra.builds import access, commands
from infra.builds.settings import BuildsSettings
from infra.settings import Settings
from infra.storage.settings import StorageSettings


@dataclass(frozen=True)
class _Who:
    id: str
    title: str
    about: str
    users: tuple[str, ...]


class BuildAccount(pulumi.ComponentResource):
    """A service account for builds, who may start builds as it, and its grants.

    Its builds write to Cloud Logging alone, by `roles/logging.logWriter`: a build with an account of its own
    can't use the default bucket for logs.
    https://cloud.google.com/build/docs/securing-builds/configure-user-specified-service-accounts
    """

    account: gcp.serviceaccount.Account

    def __init__(self, settings: Settings, who: _Who, opts: pulumi.ResourceOptions):
        super().__init__("tpu:builds:BuildAccount", who.id, None, opts)
        self.id_, self.settings = who.id, settings
        email = f"{who.id}@{settings.project}.iam.gserviceaccount.com"
        # Written out instead of taken from the account, so that a preview and a policy see who gets what.
        self.member = f"serviceAccount:{email}"
        self.account = gcp.serviceaccount.Account(
            who.id,
            account_id=who.id,
            display_name=who.title,
            description=who.about,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.after = pulumi.ResourceOptions(parent=self, depends_on=[self.account])
        self.project_role("roles/logging.logWriter")
        for user in who.users:
            gcp.serviceaccount.IAMMember(
                f"{who.id}-user-{user}",
                service_account_id=f"projects/{settings.project}/serviceAccounts/{email}",
                role="roles/iam.serviceAccountUser",
                member=user,
                opts=self.after,
            )
        self.register_outputs({})

    def project_role(self, role: str, only: str = "", why: str = "") -> None:
        """Grant a role on the project; `only`: under this condition, called `why`."""
        gcp.projects.IAMMember(
            f"{self.id_}-{_short(role)}",
            project=self.settings.project,
            role=role,
            member=self.member,
            condition={"title": why, "expression": only} if only else None,
            opts=self.after,
        )

    def own_role(self, name: str, title: str, permissions: Sequence[str]) -> str:
        """Define a role with these permissions; what policies call it."""
        role_id = f"{self.id_}_{name}".replace("-", "_")
        role = gcp.projects.IAMCustomRole(
            f"{self.id_}-{name}", role_id=role_id, title=title, permissions=list(permissions), opts=self.after
        )
        self.after = pulumi.ResourceOptions.merge(self.after, pulumi.ResourceOptions(depends_on=[role]))
        return f"projects/{self.settings.project}/roles/{role_id}"

    def bucket_role(self, bucket: str, role: str, only: str = "", why: str = "") -> None:
        """Grant a role on a bucket; `only`: under this condition, called `why`."""
        gcp.storage.BucketIAMMember(
            f"{self.id_}-{bucket}-{_short(role)}{f'-{why}' if why else ''}".replace(" ", "-"),
            bucket=bucket,
            role=role,
            member=self.member,
            condition={"title": why, "expression": only} if only else None,
            opts=self.after,
        )

    def key_role(self, role: str) -> None:
        """Grant a role on the key of Pulumi's state."""
        gcp.kms.CryptoKeyIAMMember(
            f"{self.id_}-{_short(role)}",
            crypto_key_id=names.state_key_id(self.settings),
            role=role,
            member=self.member,
            opts=self.after,
        )

    def repository_role(self, repository: gcp.artifactregistry.Repository, role: str) -> None:
        """Grant a role on the repository of the builder image."""
        gcp.artifactregistry.RepositoryIamMember(
            f"{self.id_}-{_short(role)}",
            project=self.settings.project,
            location=self.settings[StorageSettings].location,
            repository=repository.repository_id,
            role=role,
            member=self.member,
            opts=pulumi.ResourceOptions.merge(self.after, pulumi.ResourceOptions(depends_on=[repository])),
        )


def preview_account(settings: Settings, opts: pulumi.ResourceOptions) -> BuildAccount:
    """Reads what builds make, reads Pulumi's state, and writes nothing but plans."""
    builds, bucket = settings[BuildsSettings], str(settings[StorageSettings].state_bucket_name)
    who = _Who(
        builds.preview_account_id, "Previews", "Previews what builds would change; can't change it",
        builds.preview_users,
    )  # fmt: skip
    account = BuildAccount(settings, who, opts)
    account.project_role(account.own_role("reads", "TPU previews", access.previewing(settings)))
    account.bucket_role(bucket, "roles/storage.objectViewer")
    plans = access.only(commands.PLANS, bucket)
    account.bucket_role(bucket, "roles/storage.objectCreator", plans, "plans")
    account.key_role("roles/cloudkms.cryptoKeyDecrypter")
    return account


def apply_account(settings: Settings, opts: pulumi.ResourceOptions) -> BuildAccount:
    """Has the roles that the layers ask for, and may grant those alone that they grant.

    It can't write the state of the layers that it stands on, nor objects of any other bucket.
    """
    builds, bucket = settings[BuildsSettings], str(settings[StorageSettings].state_bucket_name)
    who = _Who(
        builds.apply_account_id, "Applies", "Brings the layers up and down in Cloud Build", builds.apply_users
    )
    account = BuildAccount(settings, who, opts)
    for role in access.applying(settings):
        if role.name == access.PROJECT_IAM_ADMIN:
            only = access.granting(access.grantable(settings))
            account.project_role(role.name, only, "only what layers grant")
        elif role.on == "hosts' account":
            gcp.serviceaccount.IAMMember(
                f"{who.id}-hosts",
                service_account_id=names.service_account_id(settings),
                role=role.name,
                member=account.member,
                opts=account.after,
            )
        elif role.on == "project" and role.name != access.STORAGE_ADMIN:
            account.project_role(role.name)
    if asked := access.asked(settings):
        account.project_role(account.own_role("guards", "TPU builds: what lives on layers", asked))
    if on_buckets := access.on_buckets(settings):
        own = account.own_role("buckets", "TPU builds: policies of buckets", on_buckets)
        if "storage.buckets.create" in on_buckets:  # a bucket that isn't there has no policy
            account.project_role(own)
        else:
            for one in (settings[StorageSettings].bucket_name, names.steps_bucket(settings)):
                account.bucket_role(one, own)
    account.bucket_role(bucket, "roles/storage.objectViewer")
    theirs = (access.only(f".pulumi/stacks/{layer}/", bucket) for layer in access.BOOTSTRAP)
    ours = " && ".join(f"!{one}" for one in theirs)
    account.bucket_role(bucket, "roles/storage.objectUser", ours, "no state of its own foundations")
    account.key_role("roles/cloudkms.cryptoKeyEncrypterDecrypter")
    return account


def image_account(settings: Settings, opts: pulumi.ResourceOptions) -> BuildAccount:
    """Builds the builder image and puts it into its repository: nothing else."""
    builds, bucket = settings[BuildsSettings], str(settings[StorageSettings].state_bucket_name)
    who = _Who(
        builds.image_account_id, "Builder images", "Builds the image that builds run in", builds.apply_users
    )
    account = BuildAccount(settings, who, opts)
    sources = access.only(commands.SOURCES, bucket)
    account.bucket_role(bucket, "roles/storage.objectViewer", sources, "sources")
    return account


def _short(role: str) -> str:
    """ "roles/storage.objectUser" → "objectUser"; of a role of our own its id."""
    return role.rpartition("/")[2].rpartition(".")[2]
