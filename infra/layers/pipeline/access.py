"""Grants of the pipeline: a table from which they are declared, documented, and named in refusals.

Batches, custom jobs and the events of Eventarc have no policies of their own, so these roles are granted on
the project; roles on a bucket are restricted to a folder where possible.
https://cloud.google.com/iam/docs/roles-permissions
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from infra.google.role import ON_NODES, only
from infra.layers.pipeline import paths
from infra.layers.pipeline.names import scratch_bucket
from infra.layers.pipeline.settings import NO_TRAINING, WORKER, PipelineSettings
from infra.layers.storage.names import controller_bucket
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

EVENTARC_AGENT_ROLE, STORAGE_AGENT_ROLE = "roles/eventarc.serviceAgent", "roles/pubsub.publisher"
"""Roles of Google's service agents, which deliver the raw bucket's events."""
RUNNER, VIEWER = "a runner", "a viewer"
"""Members of `pipeline:runners` and `pipeline:viewers`, in the table."""
STACK, NUMBER = "STACK", "NUMBER"
"""Placeholders in conditions: the id of the slices' stack and the project's number, which Pulumi looks up."""
On = Literal["project", "bucket", "account", "repository", "function"]


@dataclass(frozen=True)
class Grant:
    """A role of an account.

    Attributes:
        who: id of the account; RUNNER or VIEWER for people; a service agent of Google in words.
        role: predefined role; empty for a custom role, which has just these permissions.
        on: kind of the resource that it is granted on.
        what: name of the bucket or the account; empty if there is just one.
        permissions: permissions that are used.
        only: condition of the grant, as IAM writes it.
        why: purpose, and title of the condition.
    """

    who: str
    role: str
    on: On
    what: str
    permissions: tuple[str, ...]
    why: str
    only: str = ""

    @property
    def named(self) -> str:
        """Return a phrase: "roles/storage.objectViewer on the bucket my-raw for tpu-pipeline-spark"."""
        role = self.role or f"the role {self.role_id}"
        what = f" {self.what}" if self.what else ""
        what += f", below {self.folder}/," if self.folder else ""
        what += f", of buckets {_SOURCES}*," if self.sources else ""
        return f"{role} on the {self.on}{what} for {self.who}"

    @property
    def of_commands(self) -> bool:
        """Return whether people have the grant: refusals name the setting that grants it."""
        return self.who in (RUNNER, VIEWER) or self.who.endswith(f"-{paths.VIEW}")

    @property
    def role_id(self) -> str:
        """Return the id of the custom role."""
        return f"{self.who}_{self.title}".replace("-", "_")

    @property
    def title(self) -> str:
        """Return the purpose of the custom role, in one word."""
        return self.why.partition(" ")[0]

    def full_role(self, project: str) -> str:
        """Return the role as policies name it."""
        return self.role or f"projects/{project}/roles/{self.role_id}"

    @property
    def folder(self) -> str:
        """Return the folder of the bucket that the grant is for; empty for all of it, or all but a folder."""
        if self.only.startswith("!"):
            return ""
        return "".join(re.findall(r"/objects/([^/]+)/", self.only))

    @property
    def sources(self) -> bool:
        """Return whether the grant is for the bucket from which functions are built."""
        return NUMBER in self.only


_SOURCES = "gcf-v2-sources-"  # and the project's number, and a region
# How services put a permission that they don't name: https://cloud.google.com/iam/docs/attach-service-accounts,
# https://github.com/hashicorp/terraform-provider-google/issues/20571
_ALSO = {
    "iam.serviceAccounts.actAs": ("act as (?:the specified )?service account",),
    "storage.objects.get": ("Storage Object Viewer permission",),
}
_OBJECT_READS = ("storage.objects.get", "storage.objects.list")
_OBJECT_CREATES = (*_OBJECT_READS, "storage.objects.create")
_OBJECT_WRITES = (*_OBJECT_CREATES, "storage.objects.delete")  # which overwriting needs


def grants(settings: Settings) -> Iterator[Grant]:
    """Yield every grant of the accounts of an environment's pipeline."""
    desired = settings[PipelineSettings]
    raw, scratch = desired.raw_bucket_name, scratch_bucket(settings)
    bucket = settings[StorageSettings].bucket_name
    spark, run, trigger, build, view = (paths.account_id(settings, which) for which in paths.ACCOUNTS)
    controllers, tokens = controller_bucket(settings), folder(paths.TOKENS, bucket)
    sources = f'resource.name.startsWith("projects/_/buckets/{paths.sources_bucket(settings, NUMBER)}")'
    node: tuple[str, ...] = ("dataproc.batches.sparkApplicationWrite",)
    if desired.spark_role == WORKER:  # which holds what the grants below hold elsewhere
        node = (*node, *_OBJECT_CREATES, "logging.logEntries.create")
    yield Grant(spark, desired.spark_role, "project", "", node, "run as a batch's nodes")
    # The worker's role reads and writes every bucket of its project: a grant beside it would do nothing.
    if desired.spark_role != WORKER or desired.existing_raw_bucket:
        yield Grant(spark, "roles/storage.objectViewer", "bucket", raw, _OBJECT_READS, "raw text")
    if desired.spark_role != WORKER:
        yield Grant(spark, "roles/storage.objectUser", "bucket", scratch, ("storage.objects.get",),
                    "code, and Spark's own files", f"!{only(f'{paths.FUNCTION}/', scratch)}")  # fmt: skip
        yield Grant(spark, "roles/storage.objectUser", "bucket", bucket, _OBJECT_CREATES, "shards", tokens)
        yield Grant(spark, "roles/logging.logWriter", "project", "", ("logging.logEntries.create",),
                    "what a batch prints")  # fmt: skip
    yield from (
        Grant(run, "", "project", "",
              ("dataproc.batches.create", "dataproc.batches.get", "dataproc.operations.cancel"),
              "batches are created, looked at and cancelled"),
        Grant(run, "roles/iam.serviceAccountUser", "account", spark,
              ("iam.serviceAccounts.actAs",), "batches run as it"),
        Grant(run, "roles/storage.objectViewer", "bucket", raw, ("storage.objects.list",),
              "what was submitted"),
        # Whoever lists a folder lists the bucket: names of heartbeats and boots, by which slices are kept.
        Grant(run, "roles/storage.objectViewer", "bucket", bucket, _OBJECT_READS, "shards", tokens),
        Grant(run, "roles/storage.objectUser", "bucket", controllers, _OBJECT_WRITES,
              "records of runs", folder(paths.RECORDS, controllers)),
        Grant(run, "roles/storage.objectUser", "bucket", controllers,
              (*_OBJECT_READS, "storage.objects.delete"), "requests of people",
              folder(paths.REQUESTS, controllers)),
        Grant(build, "roles/logging.logWriter", "project", "", ("logging.logEntries.create",),
              "the log of the function's build"),
        Grant(build, "roles/storage.objectViewer", "project", "", ("storage.objects.get",),
              "the function's source", sources),
        Grant(build, "roles/artifactregistry.writer", "repository", paths.name(settings),
              ("artifactregistry.repositories.uploadArtifacts",), "the function's image"),
    )  # fmt: skip
    yield from _viewing(view, controllers)
    yield Grant(trigger, "roles/run.invoker", "function", "", ("run.routes.invoke",), "call the function")
    if desired.on_submit:
        yield Grant(trigger, "roles/eventarc.eventReceiver", "project", "",
                    ("eventarc.events.receiveEvent",), "events of the raw bucket")  # fmt: skip
    if desired.train != NO_TRAINING:
        yield from _training(settings)


def _training(settings: Settings) -> Iterator[Grant]:
    desired = settings[PipelineSettings]
    who = paths.account_id(settings, paths.ORCHESTRATOR)
    storage = settings[StorageSettings]
    if desired.train == "jobset":  # as a member of the team, to whom the queue grants all that it needs
        return
    yield Grant(who, "roles/iam.serviceAccountUser", "account", storage.service_account_id,
                ("iam.serviceAccounts.actAs",), "training runs as the hosts' account")  # fmt: skip
    if desired.train == "vertex":
        jobs = (f"aiplatform.customJobs.{verb}" for verb in ("cancel", "create", "list"))
        yield Grant(who, "", "project", "", tuple(jobs), "training as a custom job")
        return
    yield Grant(who, "", "project", "", ON_NODES, "slices are created, watched and deleted")
    controllers = controller_bucket(settings)
    yield Grant(who, "roles/storage.objectUser", "bucket", controllers, _OBJECT_WRITES,
                "records and state of the fleet", folder(STACK, controllers))  # fmt: skip


def of_people(settings: Settings, *, everybody: bool = False) -> Iterator[Grant]:
    """Yield the grants of each runner and each viewer; who is both has a runner's.

    Args:
        settings: of the environment.
        everybody: include runners and viewers although the settings name none.
    """
    desired, controllers = settings[PipelineSettings], controller_bucket(settings)
    raw, scratch = desired.raw_bucket_name, scratch_bucket(settings)
    if desired.runners or everybody:
        yield from _viewing(RUNNER, controllers)
        yield from (
            Grant(RUNNER, "roles/storage.objectUser", "bucket", controllers, ("storage.objects.create",),
                  "ask for a retry or a cancel", folder(paths.REQUESTS, controllers)),
            Grant(RUNNER, "roles/storage.objectUser", "bucket", scratch,
                  ("storage.objects.create",), "publish code", folder(paths.CODE, scratch)),
            Grant(RUNNER, "roles/storage.objectUser", "bucket", raw,
                  ("storage.objects.create", "storage.objects.list"), "submit text"),
        )  # fmt: skip
    if {*desired.viewers} - {*desired.runners} or everybody:
        yield from _viewing(VIEWER, controllers)


def _viewing(who: str, controllers: str) -> Iterator[Grant]:
    yield from (
        Grant(who, "roles/dataproc.serverlessViewer", "project", "", ("dataproc.batches.get",),
              "the state of a batch"),
        Grant(who, "roles/logging.viewer", "project", "", ("logging.logEntries.list",),
              "what Spark printed"),
        Grant(who, "roles/storage.objectViewer", "bucket", controllers, _OBJECT_READS,
              "records of runs", folder(paths.RECORDS, controllers)),
    )  # fmt: skip


def of_agents(settings: Settings) -> Iterator[Grant]:
    """Yield the grants of Google's service agents, which deliver the events.

    https://cloud.google.com/eventarc/docs/all-roles-permissions
    """
    if settings[PipelineSettings].on_submit:
        yield Grant("Eventarc's service agent", EVENTARC_AGENT_ROLE, "project", "",
                    ("pubsub.subscriptions.create", "iam.serviceAccounts.getAccessToken"),
                    "deliver events as the trigger's account")  # fmt: skip
        yield Grant("Cloud Storage's service agent", STORAGE_AGENT_ROLE, "project", "",
                    ("pubsub.topics.publish",), "publish events of the raw bucket")  # fmt: skip


def of_starts(settings: Settings) -> Iterator[Grant]:
    """Yield the grants without which a submission gets no record."""
    run, trigger = (paths.account_id(settings, which) for which in (paths.ORCHESTRATOR, paths.TRIGGER))
    for grant in grants(settings):
        if grant.who == trigger or (grant.who == run and grant.folder == paths.RECORDS):
            yield grant
    yield from of_agents(settings)


def of_requests(settings: Settings) -> Iterator[Grant]:
    """Yield the grants without which people's requests aren't applied."""
    run, trigger = (paths.account_id(settings, which) for which in (paths.ORCHESTRATOR, paths.TRIGGER))
    for grant in grants(settings):
        if (grant.who == run and grant.folder == paths.REQUESTS) or (
            grant.who == trigger and grant.on == "function"
        ):
            yield grant


def by_message(settings: Settings, asker: str = "") -> list[dict[str, str]]:
    """Return patterns of refusals with the grant that each lacks, the narrowest first.

    Google's refusals name the permission, those of Cloud Storage also the account, and none the bucket, which
    is in the request's URL. An empty pattern matches everything.

    Args:
        settings: of the environment.
        asker: id of the account whose refusals don't name it; the function's, unless given.
    """
    asker = asker or paths.account_id(settings, paths.ORCHESTRATOR)
    patterns: list[tuple[int, dict[str, str]]] = []
    every = list(grants(settings))
    for grant in every:
        permission = "|".join(map(_permission, grant.permissions))
        alone = (
            sum(
                grant.who == other_grant.who and bool({*grant.permissions} & {*other_grant.permissions})
                for other_grant in every
            )
            == 1
        )
        for place in dict.fromkeys((_folder(grant), _place(grant), "" if alone else _place(grant))):
            for who in (f"{re.escape(grant.who)}@", *([""] if grant.who == asker else [])):
                weight = 4 * bool(place and place == _folder(grant)) + 2 * bool(place) + bool(who)
                patterns.append(
                    (weight, {"permission": permission, "who": who, "on": place, "role": grant.named})
                )
    return [pattern for _, pattern in sorted(patterns, key=lambda item: -item[0])]


def lacking(settings: Settings, message: str, asker: str = "") -> str:
    """Return the grant that a refusal lacks, as `named`; empty if it names none, or is no refusal."""
    if not re.search(r"(?i)permission|does not have|denied|lacks|act as|403", message):
        return ""
    parts = ("permission", "who", "on")
    return next(
        (
            pattern["role"]
            for pattern in by_message(settings, asker)
            if all(re.search(pattern[part], message) for part in parts)
        ),
        "",
    )


def of_the_build(settings: Settings, message: str) -> str:
    """Return the grant that the function's build lacks, which an update fails with."""
    return lacking(settings, message, paths.account_id(settings, paths.BUILD))


def _permission(permission: str) -> str:
    """Return a permission as IAM names it, and as services do that name no permission."""
    return "|".join((re.escape(permission), *_ALSO.get(permission, ())))


def _place(grant: Grant) -> str:
    """Return the part of a URL or name that identifies the grant's resource; empty if it needs none."""
    if grant.on == "bucket":
        return rf"{_bucket(grant)}(?:[^\w.-]|$)"
    if grant.sources:
        return _SOURCES
    return f"{re.escape(grant.what)}@" if grant.on == "account" else ""


def _folder(grant: Grant) -> str:
    if not grant.folder:
        return _place(grant)
    name = "[0-9a-f]{7}" if grant.folder == STACK else grant.folder
    return rf"{_bucket(grant)}/(?:o/|objects/)?(?:o\?\S*(?:name|prefix)=)?{name}(?:/|%2F)"


def _bucket(grant: Grant) -> str:
    return rf"(?:/b/|gs://|buckets/){re.escape(grant.what)}"


def folder(name: str, bucket: str) -> str:
    """Return a folder's objects, and the listing of the bucket, which has no folders."""
    return f'resource.type == "storage.googleapis.com/Bucket" || {only(f"{name}/", bucket)}'


def on_project(settings: Settings) -> set[str]:
    """Return the roles that the layer grants on the project."""
    return {
        grant.full_role(settings.project)
        for grant in (*grants(settings), *of_people(settings), *of_agents(settings))
        if grant.on == "project"
    }
