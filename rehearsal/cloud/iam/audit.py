"""Audit entries of what this cloud does, for the methods that alerts are made on.

https://cloud.google.com/logging/docs/audit/understanding-audit-logs. An operation that fails has a second
entry, of severity ERROR. Data Access entries are off, as at Google.
"""

from __future__ import annotations

import uuid
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam

_TYPE = "type.googleapis.com/google.cloud.audit.AuditLog"
_CODES = {"PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8, "CANCELLED": 1}
_METHODS = {
    "tpu.projects.locations.nodes.create": ("tpu", "google.cloud.tpu.{version}.Tpu.CreateNode"),
    "storage.buckets.setIamPolicy": ("storage", "storage.setIamPermissions"),
    "dataproc.projects.locations.batches.create": (
        "dataproc",
        "google.cloud.dataproc.v1.BatchController.CreateBatch",
    ),
}
# Of the request that is being handled: an operation that it starts reports its failure here.
current: ContextVar[Audited | None] = ContextVar("audited", default=None)


@dataclass
class Audited:
    """A call that leaves entries."""

    world: World
    service: str
    method: str
    name: str
    principal: str
    resource: JsonObject
    before: set[tuple[str, str]]
    iam: Iam

    def done(self) -> None:
        """It was accepted; of a policy, with what changed."""
        more: JsonObject = {}
        if self.service == "storage":
            after = bindings(self.iam.existing(self.name))
            changed = (("ADD", after - self.before), ("REMOVE", self.before - after))
            deltas = [
                {"action": action, "role": role, "member": who}
                for action, some in changed
                for role, who in sorted(some)
            ]
            more = {"serviceData": {"policyDelta": {"bindingDeltas": deltas}}}
        self._write("NOTICE", more)

    def failed(self, error: ApiError) -> None:
        """It was refused, or its operation failed."""
        self._write("ERROR", {"status": {"code": _CODES.get(error.status, 2), "message": error.message}})
        if error.status == "RESOURCE_EXHAUSTED" and "quota" in error.message.lower() and self.world.telemetry:
            labels = {"service": f"{self.service}.googleapis.com", "project_id": self.world.project}
            self.world.telemetry.measure(
                "serviceruntime.googleapis.com/quota/exceeded", labels, {"limit_name": error.message}
            )

    def _write(self, severity: str, more: JsonObject) -> None:
        about = (self.service, self.method, self.name, self.principal, self.resource)
        write(self.world, *about, severity=severity, **more)


def begin(world: World, iam: Iam, call: Call) -> Audited | None:
    """What a call is going to leave; None for one without entries."""
    found = _METHODS.get(call.method_id)
    if found is None or world.record is None:
        return None
    service, method = found
    path, query = call.path, call.query
    before: set[tuple[str, str]] = set()
    project = {"project_id": world.project}
    if service == "storage":
        name = f"projects/_/buckets/{path['bucket']}"
        resource = {"type": "gcs_bucket", "labels": {**project, "bucket_name": path["bucket"]}}
        before = bindings(iam.existing(name))
    elif service == "dataproc":
        batch = query.get("batchId", "")
        name = f"{path['parent']}/batches/{batch}"
        labels = {**project, "batch_id": batch, "location": path["parent"].split("/")[3]}
        resource = {"type": "cloud_dataproc_batch", "labels": labels}
    else:
        name = f"{path['parent']}/nodes/{query.get('nodeId', '')}"
        method = method.format(version=call.version)
        resource = audited(world, service, method)
    return Audited(world, service, method, name, call.principal, resource, before, iam)


def audited(world: World, service: str, method: str) -> JsonObject:
    """The resource of entries of services that have none of their own."""
    labels = {"project_id": world.project, "service": f"{service}.googleapis.com", "method": method}
    return {"type": "audited_resource", "labels": labels}


def terminated(world: World, node: str) -> None:
    """Google took a TPU node back."""
    method = "tpu.nodes.terminate"
    about = ("tpu", method, node, "", audited(world, "tpu", method))
    write(world, *about, log="system_event", metadata={"terminateReason": "PREEMPTED"})


def write(
    world: World,
    service: str,
    method: str,
    name: str,
    principal: str,
    resource: JsonObject,
    *,
    severity: str = "NOTICE",
    log: str = "activity",
    **more: Any,
) -> None:
    """One entry."""
    if world.record is None:
        return
    now = world.clock.rfc3339()
    world.record({
        "logName": f"projects/{world.project}/logs/cloudaudit.googleapis.com%2F{log}",
        "resource": resource,
        "labels": {},
        "severity": severity,
        "timestamp": now,
        "receiveTimestamp": now,
        "insertId": uuid.uuid4().hex[:16],
        "protoPayload": {
            "@type": _TYPE,
            "serviceName": f"{service}.googleapis.com",
            "methodName": method,
            "resourceName": name,
            **({"authenticationInfo": {"principalEmail": principal}} if principal else {}),
            **more,
        },
    })  # fmt: skip


def bindings(policy: JsonObject) -> set[tuple[str, str]]:
    """(role, member) of a policy."""
    return {(one["role"], who) for one in policy.get("bindings") or () for who in one.get("members", ())}
