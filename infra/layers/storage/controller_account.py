"""The fleet controller's account and its grants."""

import pulumi
import pulumi_gcp as gcp

from infra.google.role import ON_NODES
from infra.layers.storage.names import (
    controller_account_email,
    controller_account_id,
    controller_role_id,
    service_account_id,
)
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.slices.names import BLOBS, MANIFESTS

# Prefixes of the checkpoint bucket that it lists: reports of boots and jobs. Prefixes that it reads: bundle
# and start-up script must be published (infra/layers/tpu/published.py) before it creates nodes.
LISTED, READ = ("boot/", "heartbeats/"), (MANIFESTS, BLOBS)

# Needed to attach the account to a machine, and to impersonate it.
USER_ROLES = ("roles/iam.serviceAccountUser", "roles/iam.serviceAccountTokenCreator")


class ControllerAccount(pulumi.ComponentResource):
    """A service account with a custom role, its grants, and grants to run as it.

    None of it is protected, so that it can be switched off: while members live, `destroy` is refused anyway
    (infra/core/guard.py).
    """

    account: gcp.serviceaccount.Account

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
        super().__init__("tpu:storage:ControllerAccount", account_id, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.account = gcp.serviceaccount.Account(
            account_id,
            account_id=account_id,
            display_name="Fleet controller",
            description="Creates and deletes the members of TPU fleets",
            opts=child,
        )
        project, role_id = settings.project, controller_role_id(settings)
        role = gcp.projects.IAMCustomRole(
            f"{account_id}-role",
            role_id=role_id,
            title="TPU fleet controller",
            description="Creates, reads, updates and deletes TPU nodes",
            permissions=ON_NODES,
            opts=child,
        )
        # Written out instead of taken from the resources, so that a preview and a policy see who gets what.
        member = f"serviceAccount:{controller_account_email(settings)}"
        after = pulumi.ResourceOptions(parent=self, depends_on=[self.account, role, hosts])
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
                "expression": _reports(settings[StorageSettings].bucket_name),
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
        self.register_outputs({})


def _reports(bucket: str) -> str:
    """Return the condition of reports: a listing's prefix is an attribute of the request.

    https://cloud.google.com/iam/docs/conditions-attribute-reference
    """
    listing = 'api.getAttribute("storage.googleapis.com/objectListPrefix", "")'
    objects = f"projects/_/buckets/{bucket}/objects"
    read = [f'resource.name.startsWith("{objects}/{prefix}")' for prefix in READ]
    return " || ".join([*read, *(f'{listing}.startsWith("{prefix}")' for prefix in LISTED)])
