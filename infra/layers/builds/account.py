"""The account that builds run as, with its grants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pulumi
import pulumi_gcp as gcp

from infra.core.account import Account, short
from infra.google.role import only
from infra.layers.builds import access
from infra.layers.builds.settings import BuildsSettings
from infra.layers.storage.names import service_account_id, state_key_id, steps_bucket
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings


class BuildsAccount(Account):
    """The account that has the layers' roles, and may grant only the roles that they grant.

    It can't write the state of the layers below, nor objects of any other bucket. Builds write to Cloud
    Logging alone: a build with an account of its own can't use the default bucket for logs.
    https://cloud.google.com/build/docs/securing-builds/configure-user-specified-service-accounts
    """

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions):
        builds = settings[BuildsSettings]
        about = "Brings the layers up and down in Cloud Build"
        super().__init__(
            "tpu:builds:BuildsAccount", settings, builds.account_id, "Builds", about, builds.users, opts
        )
        self.project_role("roles/logging.logWriter")
        self._roles_of_layers()
        self._state()

    def _roles_of_layers(self) -> None:
        settings = self.settings
        for role in access.applying(settings):
            if role.name == access.PROJECT_IAM_ADMIN:
                # A condition takes a limited number of roles, so there is one grant for each group of them.
                for number, roles in enumerate(_batched(access.grantable(settings), access.MOST_GRANTED)):
                    which = f"-{number + 1}" if number else ""
                    limit = f"only what layers grant{which}"
                    self.project_role(role.name, access.granting(roles), limit, which)
            elif role.on == "hosts' account":
                gcp.serviceaccount.IAMMember(
                    f"{self.id_}-hosts",
                    service_account_id=service_account_id(settings),
                    role=role.name,
                    member=self.member,
                    opts=self.after,
                )
            elif role.on == "project" and role.name != access.STORAGE_ADMIN:
                self.project_role(role.name, name=_of_service(role.name))
        # What a destroy lists before it deletes anything.
        if permissions := access.guarding(settings):
            self.project_role(self.own_role("guards", "TPU builds: what lives on layers", permissions))
        if on_buckets := access.on_buckets(settings):
            own = self.own_role("buckets", "TPU builds: policies of buckets", on_buckets)
            if "storage.buckets.create" in on_buckets:  # a bucket that isn't there has no policy
                self.project_role(own)
            else:
                for name in (settings[StorageSettings].bucket_name, steps_bucket(settings)):
                    self.bucket_role(name, own)

    def _state(self) -> None:
        """Grant the use of Pulumi's state and of the key of its secrets."""
        bucket = str(self.settings[StorageSettings].state_bucket_name)
        self.bucket_role(bucket, "roles/storage.objectViewer")
        foundations = (only(f".pulumi/stacks/{layer}/", bucket) for layer in access.BOOTSTRAP)
        condition = " && ".join(f"!{foundation}" for foundation in foundations)
        self.bucket_role(bucket, "roles/storage.objectUser", condition, "no state of its own foundations")
        gcp.kms.CryptoKeyIAMMember(
            f"{self.id_}-cryptoKeyEncrypterDecrypter",
            crypto_key_id=state_key_id(self.settings),
            role="roles/cloudkms.cryptoKeyEncrypterDecrypter",
            member=self.member,
            opts=self.after,
        )


def _of_service(role: str) -> str:
    """Return the suffix that distinguishes roles of several services in grants' names.

    Compute Engine's viewer was the only one once, and keeps its name: a grant that is renamed is taken away.
    """
    service = role.removeprefix("roles/").partition(".")[0]
    alike = short(role) == "admin" or (short(role) == "viewer" and service != "compute")
    return f"-{service}" if alike else ""


def _batched(roles: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """Yield the roles in groups of `size`."""
    for start in range(0, len(roles), size):
        yield tuple(roles[start : start + size])
