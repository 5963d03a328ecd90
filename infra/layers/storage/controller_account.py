"""The fleet controller's account and its grants."""

import pulumi
import pulumi_gcp as gcp

from infra.core.account import Account
from infra.google.role import ON_NODES
from infra.layers.storage.names import (
    LISTED,
    READ,
    controller_account_id,
    controller_role_id,
    reports,
    service_account_id,
)
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

# Needed to attach the account to a machine, and to impersonate it.
USER_ROLES = ("roles/iam.serviceAccountUser", "roles/iam.serviceAccountTokenCreator")


class ControllerAccount(Account):
    """A service account with a custom role, its grants, and grants to run as it.

    None of it is protected, so that it can be switched off: while members live, `destroy` is refused anyway
    (infra/core/guard.py).
    """

    def __init__(
        self,
        settings: Settings,
        checkpoints: gcp.storage.Bucket,
        controllers: gcp.storage.Bucket,
        hosts: gcp.serviceaccount.Account,
        opts: pulumi.ResourceOptions | None = None,
    ):
        """Declare the account; `controllers` holds its state, and its nodes run as `hosts`."""
        account_id = str(settings[StorageSettings].controller_account_id)
        super().__init__(
            "tpu:storage:ControllerAccount", settings, account_id, "Fleet controller",
            "Creates and deletes the members of TPU fleets", (), opts,
        )  # fmt: skip
        project, role_id = settings.project, controller_role_id(settings)
        role = gcp.projects.IAMCustomRole(
            f"{account_id}-role",
            role_id=role_id,
            title="TPU fleet controller",
            description="Creates, reads, updates and deletes TPU nodes",
            permissions=ON_NODES,
            opts=pulumi.ResourceOptions(parent=self),
        )
        after, member = self.with_(role, hosts), self.member
        gcp.projects.IAMMember(
            f"{account_id}-nodes",
            project=project,
            role=f"projects/{project}/roles/{role_id}",
            member=member,
            opts=after,
        )
        gcp.serviceaccount.IAMMember(
            f"{account_id}-hosts",
            service_account_id=service_account_id(settings),
            role="roles/iam.serviceAccountUser",
            member=member,
            opts=after,
        )
        gcp.storage.BucketIAMMember(
            f"{account_id}-reports",
            bucket=checkpoints.name,
            role="roles/storage.objectViewer",
            member=member,
            condition={
                "title": "reports and manifests",
                "description": f"Lists {' and '.join(LISTED)}, reads {' and '.join(READ)}",
                "expression": reports(settings),
            },
            opts=after,
        )
        gcp.storage.BucketIAMMember(
            f"{account_id}-state",
            bucket=controllers.name,
            role="roles/storage.objectUser",
            member=member,
            opts=after,
        )
        for user in settings[StorageSettings].controller_account_users:
            for user_role in USER_ROLES:
                gcp.serviceaccount.IAMMember(
                    f"{account_id}-{user_role.rpartition('.')[2]}-{user}",
                    service_account_id=controller_account_id(settings),
                    role=user_role,
                    member=user,
                    opts=after,
                )
