"""The accounts of the pipeline, each with the grants of `access`, and who may start runs and look at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pulumi
import pulumi_gcp as gcp

from infra.core.account import Account, short
from infra.google.acting import once_it_may_act
from infra.layers.pipeline import access, paths
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.storage.names import controller_bucket, service_account_id
from infra.settings.schema import Settings

_ABOUT = {
    paths.SPARK: ("Spark", "Runs the batches of the pipeline"),
    paths.ORCHESTRATOR: ("Pipeline runs", "Runs the function: batches, shards, training"),
    paths.TRIGGER: ("Pipeline triggers", "Calls the function when text was submitted, and each sweep"),
    paths.BUILD: ("Pipeline builds", "Builds the function"),
    paths.VIEW: ("Pipeline viewer", "Looks at runs, for programs that report them"),
}
# What the names of people's grants on buckets begin with.
_VERBS = {"records of runs": "records", "publish code": "publishes", "submit text": "submits",
          "ask for a retry or a cancel": "asks"}  # fmt: skip


class PipelineAccounts(pulumi.ComponentResource):
    """All of them; `all`: what has to be there before anything runs as one of them, `acting`: what such a
    resource waits for.
    """

    all: list[pulumi.Resource]
    acting: pulumi.ResourceHookBinding | None
    repository: gcp.artifactregistry.Repository

    def __init__(
        self,
        settings: Settings,
        applying: str | None,
        buckets: Sequence[pulumi.Resource],
        stack: pulumi.Output[str] | None,
        number: pulumi.Output[str],
        opts: pulumi.ResourceOptions,
    ):
        """Declare them.

        Args:
            settings: of the environment.
            applying: account of builds, which makes what runs as them, too.
            buckets: what grants on buckets wait for.
            stack: id of the slices' stack, where slices train.
            number: of the project.
            opts: of the component.
        """
        name = paths.name(settings)
        super().__init__("tpu:pipeline:Accounts", name, None, opts)
        self.settings, self._applying, self._stack, self._number = settings, applying, stack, number
        child = pulumi.ResourceOptions(parent=self)
        self.repository = gcp.artifactregistry.Repository(
            name,
            repository_id=name,
            location=paths.region(settings),
            format="DOCKER",
            description="Images of the function",
            opts=child,
        )
        accounts = {
            (id_ := paths.account_id(settings, which)): Account(
                "tpu:pipeline:Account", settings, id_, title, about, (), child
            )
            for which, (title, about) in _ABOUT.items()
        }
        self._grants(accounts, buckets)
        self._deployers(accounts)
        self._people(child, buckets)
        self.all = [self.repository, *buckets, *accounts.values()]
        emails = [paths.account(settings, which) for which in paths.ACTED_AS]
        self.acting = once_it_may_act(settings.project, emails, self._users())
        self.register_outputs({})

    def id_of(self, account: str) -> str:
        """Return the full id of one of them."""
        return f"projects/{self.settings.project}/serviceAccounts/{paths.account(self.settings, account)}"

    def _users(self) -> list[str]:
        """Return the members that create function, trigger and sweep, and act as their accounts."""
        named = [*self.settings[PipelineSettings].account_users, self._applying]
        return list(dict.fromkeys(filter(None, named)))

    def _grants(self, accounts: dict[str, Account], buckets: Sequence[pulumi.Resource]) -> None:
        every = list(access.grants(self.settings))
        alike = Counter((grant.who, short(grant.role)) for grant in every if grant.on == "project")
        for grant in every:
            account = accounts[grant.who]
            if not grant.role:
                title = f"TPU pipeline: {grant.why}"
                account.project_role(account.own_role(grant.title, title, grant.permissions))
            elif grant.on == "project":
                service = grant.role.removeprefix("roles/").partition(".")[0]
                account.project_role(
                    grant.role, self._known(grant.only), grant.why if grant.only else "",
                    f"-{service}" if alike[grant.who, short(grant.role)] > 1 else "",
                )  # fmt: skip
            elif grant.on == "bucket":
                only = self._known(grant.only)
                account.bucket_role(grant.what, grant.role, only, grant.why if grant.only else "", buckets)
            elif grant.on == "repository":
                made, region = self.repository, paths.region(self.settings)
                account.repository_role(made.repository_id, region, grant.role, [made])
            elif grant.on == "account":
                whose = accounts.get(grant.what)
                if whose:
                    whose.user(account.member)
                else:  # the hosts'
                    gcp.serviceaccount.IAMMember(
                        f"{grant.who}-hosts",
                        service_account_id=service_account_id(self.settings),
                        role=grant.role,
                        member=account.member,
                        opts=account.after,
                    )

    def _known(self, condition: str) -> pulumi.Input[str]:
        """Return a condition with the id of the slices' stack, or the project's number."""
        if access.NUMBER in condition:
            return self._number.apply(lambda number: condition.replace(access.NUMBER, number))
        if self._stack is None:
            return condition
        return self._stack.apply(lambda stack: condition.replace(access.STACK, stack))

    def _deployers(self, accounts: dict[str, Account]) -> None:
        for user in self._users():
            for which in paths.ACTED_AS:
                accounts[paths.account_id(self.settings, which)].user(user)
        for user in self.settings[PipelineSettings].account_users:  # whose programs run as it
            accounts[paths.account_id(self.settings, paths.VIEW)].user(user)

    def _people(self, opts: pulumi.ResourceOptions, buckets: Sequence[pulumi.Resource]) -> None:
        desired, controllers = self.settings[PipelineSettings], controller_bucket(self.settings)
        after = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=list(buckets)))
        runners, viewers = dict.fromkeys(desired.runners), dict.fromkeys(desired.viewers)
        people = {
            access.RUNNER: [*runners],
            access.VIEWER: [viewer for viewer in viewers if viewer not in runners],
        }
        for grant in access.of_people(self.settings):
            for user in people[grant.who]:
                if grant.on == "project":
                    gcp.projects.IAMMember(
                        f"{grant.role.rpartition('/')[2]}-{user}", project=self.settings.project,
                        role=grant.role, member=user, opts=opts,
                    )  # fmt: skip
                    continue
                title = None
                if grant.only:
                    title = gcp.storage.BucketIAMMemberConditionArgs(title=grant.why, expression=grant.only)
                gcp.storage.BucketIAMMember(
                    f"{_VERBS[grant.why]}-{user}", bucket=grant.what, role=grant.role, member=user,
                    condition=title, opts=opts if grant.what == controllers else after,
                )  # fmt: skip
