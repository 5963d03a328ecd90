"""Roles as data: the role, the resource it is granted on, and why it is needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

On = str
"""Kind of a resource; a layer's own accounts are called as its hook `acting` does (infra/core/layer.py)."""


BASIC = ("roles/owner", "roles/editor", "roles/viewer")
"""Basic roles of Google, each with permissions of nearly every service."""


FOR_PROGRAMS = frozenset(
    f"roles/{name}"
    for name in (
        "aiplatform.user", "artifactregistry.reader", "autoscaling.metricsWriter", "bigquery.jobUser",
        "cloudprofiler.agent", "cloudtrace.agent", "container.defaultNodeServiceAccount",
        "dataproc.serverlessNode", "dataproc.serverlessViewer", "errorreporting.writer",
        "eventarc.eventReceiver", "logging.logWriter", "logging.viewer", "monitoring.metricWriter",
        "monitoring.viewer", "pubsub.publisher", "pubsub.subscriber", "run.invoker",
        "serviceusage.serviceUsageConsumer", "stackdriver.resourceMetadata.writer",
    )
)  # fmt: skip
"""Predefined roles that a program may have on a project: none of them reads buckets or secrets, or grants.

Roles with harmless names do: dataproc.worker, dataflow.worker and composer.worker read every bucket.
https://cloud.google.com/iam/docs/roles-permissions
"""


# What a controller does with nodes. Guest attributes are read by tpu.nodes.get.
ON_NODES = (
    "tpu.nodes.create", "tpu.nodes.delete", "tpu.nodes.get", "tpu.nodes.list", "tpu.nodes.update",
    "tpu.operations.get",
)  # fmt: skip


# What finds out whether something lives on a layer (infra/core/guard.py), by what that is (`Layer.holds`).
OF_GUARDS = {
    "members": ("tpu.nodes.list",),
    "jobs": ("container.clusters.connect", "container.clusters.get", "container.clusters.list",
             "container.thirdPartyObjects.list"),
}  # fmt: skip


def holders(policy: Mapping[str, Any], roles: Collection[str]) -> set[str]:
    """Return the members to whom an IAM policy binds one of some roles."""
    return {
        str(member)
        for binding in policy.get("bindings") or ()
        if binding.get("role") in roles
        for member in binding.get("members") or ()
    }


@dataclass(frozen=True)
class Role:
    """A role to ask for.

    Attributes:
        name: at Google.
        why: what for, in words.
        permissions: those of it that are used.
        on: on what it is granted.
        setting: field of the layer's settings without which it isn't needed, LIST[].FIELD of all items; or
            FIELD=VALUE, which it needs. LAYER:FIELD is of another layer.
    """

    name: str
    why: str
    permissions: tuple[str, ...]
    on: On = "project"
    setting: str = ""

    def needed(self, section: Any) -> bool:
        """Return whether a section of the settings needs it."""
        name, _, value = self.setting.rpartition(":")[2].partition("=")
        name, _, inner = name.partition("[].")
        given: Any = getattr(section, name) if name else True
        if inner:
            given = any(getattr(item, inner) for item in given)
        return given == value if value else bool(given)


TPU_ADMIN = Role(
    "roles/tpu.admin", "create, update and delete slices; see what is offered",
    (*ON_NODES, "tpu.acceleratortypes.list", "tpu.runtimeversions.list"),
)  # fmt: skip


ACT_AS = Role(
    "roles/iam.serviceAccountUser", "start hosts that run as it", ("iam.serviceAccounts.actAs",),
    "hosts' account",
)  # fmt: skip


def act_as(on: On, why: str) -> Role:
    """Return the role of those who create what runs as a layer's own accounts."""
    return Role("roles/iam.serviceAccountUser", why, ("iam.serviceAccounts.actAs",), on)


OBJECTS = (
    "storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list",
)  # fmt: skip


def only(prefix: str, bucket: str) -> str:
    """Return a condition that holds for a bucket's objects whose names begin with `prefix`.

    https://cloud.google.com/iam/docs/conditions-attribute-reference
    """
    return f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{prefix}")'


def merge_roles(first: Role, second: Role) -> Role:
    """Merge two layers' declarations of a role."""
    permissions = tuple(dict.fromkeys((*first.permissions, *second.permissions)))
    return replace(first, why="; ".join(dict.fromkeys((first.why, second.why))), permissions=permissions)
