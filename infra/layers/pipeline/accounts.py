"""The accounts of the pipeline, each with the grants of `access`, and who may start runs and look at them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pulumi
import pulumi_gcp as gcp

from infra.core.account import Account, short
from infra.google.acting import wait_until_it_may_act
from infra.layers.builds.names import applying_member
from infra.layers.pipeline import access, places
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.storage.names import service_account_id
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

_ABOUT = {
    places.SPARK: ("Spark", "Runs the batches of the pipeline"),
    places.ORCHESTRATOR: ("Pipeline runs", "Runs the workflow: batches, checks, hand-offs"),
    places.TRIGGER: ("Pipeline triggers", "Starts the workflow when text was submitted, or on a schedule"),
    places.CHECK: ("Pipeline check", "Reads shards and says whether they are complete"),
    places.BUILD: ("Pipeline builds", "Builds the function that checks"),
    places.VIEW: ("Pipeline viewer", "Looks at runs, for programs that report them"),
}
# What the names of people's grants on buckets begin with.
_VERBS = {"records of runs": "records", "publish code": "publishes", "submit text": "submits",
          "take a run back from its slice": "takes-back"}  # fmt: skip
_ACTED_AS = (places.ORCHESTRATOR, places.TRIGGER, places.CHECK, places.BUILD)


class PipelineAccounts(pulumi.ComponentResource):
    """All of them; `all`: what has to be there before anything runs as one of them, `acting`: what such a
    resource waits for.
    """

    all: list[pulumi.Resource]
    acting: pulumi.ResourceHookBinding
    repository: gcp.artifactregistry.Repository

    def __init__(self, settings: Settings, buckets: Sequence[pulumi.Resource], opts: pulumi.ResourceOptions):
        name = places.name(settings)
        super().__init__("tpu:pipeline:Accounts", name, None, opts)
        self.settings = settings
        ours = pulumi.ResourceOptions(parent=self)
        self.repository = gcp.artifactregistry.Repository(
            name,
            repository_id=name,
            location=places.region(settings),
            format="DOCKER",
            description="Images of the function that checks",
            opts=ours,
        )
        found = {
            (id_ := places.account_id(settings, which)): Account(
                "tpu:pipeline:Account", settings, id_, title, about, (), ours
            )
            for which, (title, about) in _ABOUT.items()
        }
        self._grants(found, buckets)
        self._deployers(found)
        self._people(ours, buckets)
        self.all = [self.repository, *buckets, *found.values()]
        self.acting = pulumi.ResourceHookBinding(before_create=[pulumi.ResourceHook("may-act", self._wait)])
        self.register_outputs({})

    def id_of(self, account: str) -> str:
        """The full id of one of them."""
        return f"projects/{self.settings.project}/serviceAccounts/{places.account(self.settings, account)}"

    async def _wait(self, _: pulumi.ResourceHookArgs) -> None:
        emails = [places.account(self.settings, which) for which in _ACTED_AS]
        if self._users():
            await asyncio.to_thread(wait_until_it_may_act, self.settings.project, emails)

    def _users(self) -> list[str]:
        """Who makes the workflow, the trigger and the function acts as what these run as."""
        named = [*self.settings[PipelineSettings].account_users, applying_member(self.settings)]
        return list(dict.fromkeys(filter(None, named)))

    def _grants(self, accounts: dict[str, Account], buckets: Sequence[pulumi.Resource]) -> None:
        every = list(access.grants(self.settings))
        alike = Counter((one.who, short(one.role)) for one in every if one.on == "project")
        for one in every:
            account = accounts[one.who]
            if not one.role:
                title = f"TPU pipeline: {one.why}"
                account.project_role(account.own_role(one.title, title, one.permissions))
            elif one.on == "project":
                service = one.role.removeprefix("roles/").partition(".")[0]
                account.project_role(
                    one.role, name=f"-{service}" if alike[one.who, short(one.role)] > 1 else ""
                )
            elif one.on == "bucket":
                account.bucket_role(one.what, one.role, one.only, one.why if one.only else "", buckets)
            elif one.on == "repository":
                account.repository_role(self.repository, places.region(self.settings), one.role)
            elif one.on == "account":
                whose = accounts.get(one.what)
                if whose:
                    whose.user(account.member)
                else:  # the hosts'
                    gcp.serviceaccount.IAMMember(
                        f"{one.who}-hosts",
                        service_account_id=service_account_id(self.settings),
                        role=one.role,
                        member=account.member,
                        opts=account.after,
                    )

    def _deployers(self, accounts: dict[str, Account]) -> None:
        for user in self._users():
            for which in _ACTED_AS:
                accounts[places.account_id(self.settings, which)].user(user)
        for user in self.settings[PipelineSettings].account_users:  # whose programs run as it
            accounts[places.account_id(self.settings, places.VIEW)].user(user)

    def _people(self, opts: pulumi.ResourceOptions, buckets: Sequence[pulumi.Resource]) -> None:
        desired, bucket = self.settings[PipelineSettings], self.settings[StorageSettings].bucket_name
        after = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=list(buckets)))
        runners, viewers = dict.fromkeys(desired.runners), dict.fromkeys(desired.viewers)
        people = {access.RUNNER: [*runners], access.VIEWER: [one for one in viewers if one not in runners]}
        for one in access.of_people(self.settings):
            for user in people[one.who]:
                if one.on == "project":
                    gcp.projects.IAMMember(
                        f"{one.role.rpartition('/')[2]}-{user}", project=self.settings.project,
                        role=one.role, member=user, opts=opts,
                    )  # fmt: skip
                    continue
                title = None
                if one.only:
                    title = gcp.storage.BucketIAMMemberConditionArgs(title=one.why, expression=one.only)
                gcp.storage.BucketIAMMember(
                    f"{_VERBS[one.why]}-{user}", bucket=one.what, role=one.role, member=user, condition=title,
                    opts=opts if one.what == bucket else after,
                )  # fmt: skip
