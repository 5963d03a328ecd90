"""Who of the pipeline may do what: one table, of which the grants are declared, documented, and named where
one is missing.

Workflows, batches, custom jobs and the events of Eventarc have no policies of their own, so these roles stand
on the project; what stands on a bucket is for a folder where one will do.
https://cloud.google.com/iam/docs/roles-permissions
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from infra import names
from infra.gcp.roles import ON_NODES, only
from infra.pipeline import places
from infra.pipeline.settings import NO_TRAINING, PipelineSettings
from infra.settings.schema import Settings
from infra.storage.settings import StorageSettings

EVENTARC_AGENT_ROLE, STORAGE_AGENT_ROLE = "roles/eventarc.serviceAgent", "roles/pubsub.publisher"
"""Of Google's own accounts, which carry the raw bucket's events."""
VIEWER_ROLES = ("roles/dataproc.serverlessViewer", "roles/workflows.viewer", "roles/logging.viewer")
RUNNER_ROLES = ("roles/dataproc.serverlessEditor", "roles/workflows.invoker", "roles/logging.viewer")
On = Literal["project", "bucket", "account", "repository", "function"]


@dataclass(frozen=True)
class Grant:
    """A role of an account.

    Attributes:
        who: id of the account.
        role: at Google; empty for a role of our own, which has just these permissions.
        on: kind of what it is granted on.
        what: its name: of the bucket or the account; empty where there is one.
        permissions: those that are used.
        only: condition of the grant, as IAM writes it.
        why: what it is for, and the title of the condition.
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
        """For a sentence: "roles/storage.objectViewer on the bucket my-raw for tpu-pipeline-spark"."""
        role = self.role or f"the role {self.role_id}"
        what = f" {self.what}" if self.what else ""
        return f"{role} on the {self.on}{what} for {self.who}"

    @property
    def role_id(self) -> str:
        """Id of the role of our own."""
        return f"{self.who}_{self.title}".replace("-", "_")

    @property
    def title(self) -> str:
        """Of the role of our own: what it is for, in one word."""
        return self.why.partition(" ")[0]


_OBJECT_READS = ("storage.objects.get", "storage.objects.list")
_OBJECT_WRITES = (*_OBJECT_READS, "storage.objects.create", "storage.objects.delete")


def grants(settings: Settings) -> Iterator[Grant]:
    """Every grant of an environment's pipeline."""
    desired = settings[PipelineSettings]
    raw, scratch = desired.raw_bucket_name, places.scratch_bucket(settings)
    bucket = settings[StorageSettings].bucket_name
    spark, run, trigger, check, build = (places.account_id(settings, which) for which in places.ACCOUNTS)
    tokens, records = (folder(one, bucket) for one in (places.TOKENS, places.RECORDS))
    yield from (
        Grant(spark, desired.spark_role, "project", "", ("dataproc.agents.create",),
              "run as a batch's nodes, with logs and metrics"),
        Grant(spark, "roles/storage.objectViewer", "bucket", raw, _OBJECT_READS, "raw text"),
        Grant(spark, "roles/storage.objectUser", "bucket", scratch, _OBJECT_WRITES,
              "code, and Spark's own files"),
        Grant(spark, "roles/storage.objectUser", "bucket", bucket, _OBJECT_WRITES, "shards", tokens),
        Grant(run, "", "project", "",
              ("dataproc.batches.create", "dataproc.batches.get", "dataproc.operations.get"),
              "batches are created and looked at"),
        Grant(run, "roles/logging.logWriter", "project", "", ("logging.logEntries.create",),
              "a line for each end of a run"),
        Grant(run, "roles/iam.serviceAccountUser", "account", spark,
              ("iam.serviceAccounts.actAs",), "batches run as it"),
        Grant(run, "roles/storage.objectViewer", "bucket", raw, _OBJECT_READS, "what was submitted"),
        Grant(run, "roles/storage.objectUser", "bucket", bucket, _OBJECT_WRITES,
              "records of runs", records),
        Grant(run, "roles/storage.objectViewer", "bucket", bucket, _OBJECT_READS,
              "whether shards are complete", tokens),
        Grant(run, "roles/run.invoker", "function", "", ("run.routes.invoke",),
              "ask whether shards are complete"),
        Grant(check, "roles/storage.objectViewer", "bucket", bucket, _OBJECT_READS, "shards", tokens),
        Grant(build, "roles/logging.logWriter", "project", "", ("logging.logEntries.create",),
              "the log of the function's build"),
        Grant(build, "roles/storage.objectViewer", "bucket", scratch, _OBJECT_READS,
              "the function's source"),
        Grant(build, "roles/artifactregistry.writer", "repository", places.name(settings),
              ("artifactregistry.repositories.uploadArtifacts",), "the function's image"),
    )  # fmt: skip
    if desired.on_submit or desired.schedule:
        yield Grant(trigger, "roles/workflows.invoker", "project", "",
                    ("workflows.executions.create",), "start runs")  # fmt: skip
    if desired.on_submit:
        yield Grant(trigger, "roles/eventarc.eventReceiver", "project", "",
                    ("eventarc.events.receiveEvent",), "events of the raw bucket")  # fmt: skip
    if desired.schedule:
        yield Grant(run, "roles/workflows.invoker", "project", "",
                    ("workflows.executions.create",), "start a run for each submission")  # fmt: skip
    if desired.train != NO_TRAINING:
        yield from _training(settings)


def _training(settings: Settings) -> Iterator[Grant]:
    desired = settings[PipelineSettings]
    who = places.account_id(settings, places.ORCHESTRATOR)
    storage = settings[StorageSettings]
    if desired.train == "jobset":
        yield Grant(who, "", "project", "", ("container.clusters.connect",), "jobs on the cluster")
        return
    yield Grant(who, "roles/iam.serviceAccountUser", "account", storage.service_account_id,
                ("iam.serviceAccounts.actAs",), "training runs as the hosts' account")  # fmt: skip
    if desired.train == "vertex":
        yield Grant(who, "", "project", "", ("aiplatform.customJobs.create", "aiplatform.customJobs.list"),
                    "training as a custom job")  # fmt: skip
        return
    heartbeats = folder("heartbeats", storage.bucket_name)
    yield Grant(who, "", "project", "", ON_NODES, "slices are created, looked at and deleted")
    yield Grant(who, "roles/storage.objectViewer", "bucket", storage.bucket_name, _OBJECT_READS,
                "how far training is", heartbeats)  # fmt: skip
    yield Grant(who, "roles/storage.objectUser", "bucket", names.controller_bucket(settings), _OBJECT_WRITES,
                "tell fleet commands of the slice")  # fmt: skip


def by_message(settings: Settings) -> list[dict[str, Any]]:
    """What a refusal's text matches, and the grant that it lacks: for the workflow, the narrowest first.

    Google's refusals name the permission, and those of Cloud Storage the account and the bucket, too.
    """
    found = []
    for one in grants(settings):
        for permission in one.permissions:
            parts = [re.escape(permission)]
            if one.on == "bucket":
                parts.append(re.escape(one.what))
            who = f"(?s)(?=.*{one.who})" if one.on in ("bucket", "account") else "(?s)"
            found.append({"matches": who + "".join(f"(?=.*{part})" for part in parts), "role": one.named})
    return found


def folder(name: str, bucket: str) -> str:
    """A folder's objects, and the listing of the bucket, which has no folders."""
    return f'resource.type == "storage.googleapis.com/Bucket" || {only(f"{name}/", bucket)}'


def on_project(settings: Settings) -> set[str]:
    """The roles that the layer grants on the project."""
    desired = settings[PipelineSettings]
    found = {
        one.role or f"projects/{settings.project}/roles/{one.role_id}"
        for one in grants(settings)
        if one.on == "project"
    }
    if desired.on_submit:
        found |= {EVENTARC_AGENT_ROLE, STORAGE_AGENT_ROLE}
    viewers = set(desired.viewers) - set(desired.runners)
    return found | {*(RUNNER_ROLES if desired.runners else ()), *(VIEWER_ROLES if viewers else ())}
