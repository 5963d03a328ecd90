"""The accounts that builds run as, with what each may do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.core.account import Account, short
from infra.google.role import only
from infra.layers.builds import access, commands
from infra.layers.builds.settings import BuildsSettings
from infra.layers.storage.names import service_account_id, state_key_id, steps_bucket
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings


@dataclass(frozen=True)
class _Who:
    id: str
    title: str
    about: str
    users: tuple[str, ...]


class BuildAccount(Account):
    """A service account for builds, who may start builds as it, and its grants.

    Its builds write to Cloud Logging alone, by `roles/logging.logWriter`: a build with an account of its own
    can't use the default bucket for logs.
    https://cloud.google.com/build/docs/securing-builds/configure-user-specified-service-accounts
    """

    def __init__(self, settings: Settings, who: _Who, opts: pulumi.ResourceOptions):
        super().__init__("tpu:builds:BuildAccount", settings, who.id, who.title, who.about, who.users, opts)
        self.project_role("roles/logging.logWriter")

    def key_role(self, role: str) -> None:
        """Grant a role on the key of Pulumi's state."""
        gcp.kms.CryptoKeyIAMMember(
            f"{self.id_}-{short(role)}",
            crypto_key_id=state_key_id(self.settings),
            role=role,
            member=self.member,
            opts=self.after,
        )


def preview_account(settings: Settings, opts: pulumi.ResourceOptions) -> BuildAccount:
    """Create the account that reads resources and Pulumi's state, and writes plans alone."""
    builds, bucket = settings[BuildsSettings], str(settings[StorageSettings].state_bucket_name)
    who = _Who(
        builds.preview_account_id, "Previews", "Previews what builds would change; can't change it",
        builds.preview_users,
    )  # fmt: skip
    account = BuildAccount(settings, who, opts)
    account.project_role(account.own_role("reads", "TPU previews", access.previewing(settings)))
    account.bucket_role(bucket, "roles/storage.objectViewer")
    plans = only(commands.PLANS, bucket)
    account.bucket_role(bucket, "roles/storage.objectCreator", plans, "plans")
    account.key_role("roles/cloudkms.cryptoKeyDecrypter")
    return account


def apply_account(settings: Settings, opts: pulumi.ResourceOptions) -> BuildAccount:
    """Create the account that has the layers' roles, and may grant only the roles that they grant.

    It can't write the state of the layers below, nor objects of any other bucket.
    """
    builds, bucket = settings[BuildsSettings], str(settings[StorageSettings].state_bucket_name)
    who = _Who(
        builds.apply_account_id, "Applies", "Brings the layers up and down in Cloud Build", builds.apply_users
    )
    account = BuildAccount(settings, who, opts)
    for role in access.applying(settings):
        if role.name == access.PROJECT_IAM_ADMIN:
            for number, roles in enumerate(_batched(access.grantable(settings), access.MOST_GRANTED)):
                which = f"-{number + 1}" if number else ""
                limit = f"only what layers grant{which}"
                account.project_role(role.name, access.granting(roles), limit, which)
        elif role.on == "hosts' account":
            gcp.serviceaccount.IAMMember(
                f"{who.id}-hosts",
                service_account_id=service_account_id(settings),
                role=role.name,
                member=account.member,
                opts=account.after,
            )
        elif role.on == "project" and role.name != access.STORAGE_ADMIN:
            account.project_role(role.name, name=_of_service(role.name))
    if permissions := access.guarding(settings):
        account.project_role(account.own_role("guards", "TPU builds: what lives on layers", permissions))
    if on_buckets := access.on_buckets(settings):
        own = account.own_role("buckets", "TPU builds: policies of buckets", on_buckets)
        if "storage.buckets.create" in on_buckets:  # a bucket that isn't there has no policy
            account.project_role(own)
        else:
            for name in (settings[StorageSettings].bucket_name, steps_bucket(settings)):
                account.bucket_role(name, own)
    account.bucket_role(bucket, "roles/storage.objectViewer")
    foundations = (only(f".pulumi/stacks/{layer}/", bucket) for layer in access.BOOTSTRAP)
    condition = " && ".join(f"!{foundation}" for foundation in foundations)
    account.bucket_role(bucket, "roles/storage.objectUser", condition, "no state of its own foundations")
    account.key_role("roles/cloudkms.cryptoKeyEncrypterDecrypter")
    return account


def image_account(settings: Settings, opts: pulumi.ResourceOptions) -> BuildAccount:
    """Create the account that builds the builder image and pushes it into its repository."""
    builds, bucket = settings[BuildsSettings], str(settings[StorageSettings].state_bucket_name)
    who = _Who(
        builds.image_account_id, "Builder images", "Builds the image that builds run in", builds.apply_users
    )
    account = BuildAccount(settings, who, opts)
    sources = only(commands.SOURCES, bucket)
    account.bucket_role(bucket, "roles/storage.objectViewer", sources, "sources")
    return account


def _of_service(role: str) -> str:
    """Return the suffix that distinguishes `roles/SERVICE.admin` of several services in grants' names."""
    # tpu's grant has no suffix: under a new name, the old grant would be revoked after the new one is made.
    if short(role) != "admin" or role == "roles/tpu.admin":
        return ""
    return f"-{role.removeprefix('roles/').partition('.')[0]}"


def _batched(roles: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """Yield the roles in groups of `size`."""
    for start in range(0, len(roles), size):
        yield tuple(roles[start : start + size])
