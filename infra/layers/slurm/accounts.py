"""The accounts of the machines with their grants, and the secret of munge's key."""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from infra.core.account import Account, short
from infra.core.secrets import ACCESSOR
from infra.google.acting import once_it_may_act
from infra.layers.slurm import access, names
from infra.layers.slurm.settings import SlurmSettings
from infra.layers.storage.names import reports, service_account_email, service_account_id
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

_ABOUT = {
    names.CONTROLLER: ("Slurm controller", "Runs slurmctld; creates and deletes the slices of the nodesets"),
    names.LOGIN: ("Slurm login", "Runs the nodes that people submit from"),
}


class SlurmAccounts(pulumi.ComponentResource):
    """The accounts, by role; `acting`: what a machine waits for before it is made."""

    acting: pulumi.ResourceHookBinding | None
    by_role: dict[str, Account]

    def __init__(
        self,
        settings: Settings,
        applying: str | None,
        stack: pulumi.Output[str],
        opts: pulumi.ResourceOptions,
    ):
        """Declare them.

        Args:
            settings: of the environment.
            applying: account of builds, which makes machines that run as them, too.
            stack: id of the slices' stack.
            opts: of the component.
        """
        super().__init__("tpu:slurm:Accounts", names.name(settings), None, opts)
        child, desired = pulumi.ResourceOptions(parent=self), settings[SlurmSettings]
        users = list(dict.fromkeys(filter(None, [*desired.account_users, applying])))
        self.by_role = {}
        for role, (title, about) in _ABOUT.items():
            people = desired.users if role == names.LOGIN else ()
            account = Account(
                "tpu:slurm:Account", settings, names.account_id(settings, role), title, about,
                dict.fromkeys([*users, *people]), child,
            )  # fmt: skip
            account.project_role(access.LOG_WRITER)
            for grant in access.on_buckets(settings, role):
                account.bucket_role(grant.bucket, grant.role, _known(grant.only, stack), grant.why)
            self.by_role[role] = account
        self._controller(settings, self.by_role[names.CONTROLLER])
        emails = [names.account(settings, role) for role in names.ROLES]
        self.acting = once_it_may_act(settings.project, emails, users)
        self.register_outputs({})

    @staticmethod
    def _controller(settings: Settings, account: Account) -> None:
        """Let the controller keep slices, as the fleet's controller does."""
        bucket = settings[StorageSettings].bucket_name
        account.bucket_role(bucket, access.OBJECT_VIEWER, reports(settings), "reports of hosts")
        title = "Slurm: slices are created, watched and deleted"
        account.project_role(account.own_role(access.ROLE, title, access.PERMISSIONS))
        gcp.serviceaccount.IAMMember(
            f"{account.id_}-hosts",
            service_account_id=service_account_id(settings),
            role="roles/iam.serviceAccountUser",
            member=account.member,
            opts=account.after,
        )


def _known(condition: str, stack: pulumi.Output[str]) -> pulumi.Input[str]:
    if access.STACK not in condition:
        return condition
    return stack.apply(lambda id_: condition.replace(access.STACK, id_))


class MungeSecret(pulumi.ComponentResource):
    """The secret of munge's key: no version is here, since a state would hold it; the controller adds one."""

    secret: gcp.secretmanager.Secret

    def __init__(self, settings: Settings, accounts: SlurmAccounts, opts: pulumi.ResourceOptions):
        name = names.munge_secret(settings)
        super().__init__("tpu:slurm:MungeSecret", name, None, opts)
        self.secret = gcp.secretmanager.Secret(
            name,
            secret_id=name,
            # In the cluster's region alone, where all readers are.
            replication={"user_managed": {"replicas": [{"location": names.region(settings)}]}},
            opts=pulumi.ResourceOptions(parent=self),
        )
        members = {role: account.member for role, account in accounts.by_role.items()}
        members[access.HOSTS] = f"serviceAccount:{service_account_email(settings)}"
        grants = [(who, ACCESSOR) for who in members]
        grants.append((names.CONTROLLER, access.ADDER))
        after = pulumi.ResourceOptions(parent=self, depends_on=[*accounts.by_role.values()])
        for who, role in grants:
            gcp.secretmanager.SecretIamMember(
                f"{name}-{who}-{short(role)}",
                project=settings.project,
                secret_id=self.secret.secret_id,
                role=role,
                member=members[who],
                opts=after,
            )
        self.register_outputs({})
