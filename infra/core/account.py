"""Service account with its grants, each a resource of its own for previews and policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pulumi
import pulumi_gcp as gcp

from infra.core import names
from infra.settings.schema import Settings


def short(role: str) -> str:
    """ "roles/storage.objectUser" → "objectUser"; of a role of our own its id."""
    return role.rpartition("/")[2].rpartition(".")[2]


class Account(pulumi.ComponentResource):
    """Service account with its users and roles.

    Args:
        token: type token of the component; it never changes.
        id_: of the account; a prefix of its grants' names.
        users: members who may act as it.
        protect: no destroy takes the account or its later grants.
    """

    account: gcp.serviceaccount.Account

    def __init__(
        self,
        token: str,
        settings: Settings,
        id_: str,
        title: str,
        about: str,
        users: Iterable[str],
        opts: pulumi.ResourceOptions | None,
        protect: bool | None = None,
    ):
        super().__init__(token, id_, None, opts)
        self.id_, self.settings = id_, settings
        self.email = names.account_email(settings, id_)
        self.member = f"serviceAccount:{self.email}"
        self.account = gcp.serviceaccount.Account(
            id_,
            account_id=id_,
            display_name=title,
            description=about,
            opts=pulumi.ResourceOptions(parent=self, protect=protect),
        )
        self.after = pulumi.ResourceOptions(parent=self, depends_on=[self.account])
        for user in users:
            self.user(user)
        self.after = pulumi.ResourceOptions.merge(self.after, pulumi.ResourceOptions(protect=protect))
        self.register_outputs({})

    def user(self, member: str) -> None:
        """Let a member act as the account."""
        gcp.serviceaccount.IAMMember(
            f"{self.id_}-user-{member}",
            service_account_id=f"projects/{self.settings.project}/serviceAccounts/{self.email}",
            role="roles/iam.serviceAccountUser",
            member=member,
            opts=self.after,
        )

    def project_role(self, role: str, only: pulumi.Input[str] = "", why: str = "", name: str = "") -> None:
        """Grant a role on the project; `only`: under this condition, called `why`; `name`: of several."""
        gcp.projects.IAMMember(
            f"{self.id_}-{short(role)}{name}",
            project=self.settings.project,
            role=role,
            member=self.member,
            condition={"title": why, "expression": only} if why else None,
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

    def bucket_role(
        self, bucket: str, role: str, only: pulumi.Input[str] = "", why: str = "",
        after: Sequence[pulumi.Resource] = (), name: str | None = None,
    ) -> None:  # fmt: skip
        """Grant a role on a bucket; `only`: under this condition, called `why`; `after`: what makes it.

        `name`: part of the grant's name; the bucket's, unless given.
        """
        called = f"-{bucket}" if name is None else name
        gcp.storage.BucketIAMMember(
            f"{self.id_}{called}-{short(role)}{f'-{why}' if why else ''}".replace(" ", "-"),
            bucket=bucket,
            role=role,
            member=self.member,
            condition={"title": why, "expression": only} if why else None,
            opts=self.with_(*after),
        )

    def secret_role(self, secret: str, role: str) -> None:
        """Grant a role on a secret."""
        gcp.secretmanager.SecretIamMember(
            f"{self.id_}-{secret}-{short(role)}",
            project=self.settings.project,
            secret_id=secret,
            role=role,
            member=self.member,
            opts=self.after,
        )

    def repository_role(
        self, repository: pulumi.Input[str], location: str, role: str, after: Sequence[pulumi.Resource] = (),
        name: str = "",
    ) -> None:  # fmt: skip
        """Grant a role on a repository of images; `after`: what makes it; `name`: within the grant's."""
        gcp.artifactregistry.RepositoryIamMember(
            f"{self.id_}{name}-{short(role)}",
            project=self.settings.project,
            location=location,
            repository=repository,
            role=role,
            member=self.member,
            opts=self.with_(*after),
        )

    def with_(self, *resources: pulumi.Resource) -> pulumi.ResourceOptions:
        """Options of a grant that also waits for these."""
        return pulumi.ResourceOptions.merge(self.after, pulumi.ResourceOptions(depends_on=list(resources)))
