"""Audit entries of what this cloud does, for the methods that alerts are made on.

https://cloud.google.com/logging/docs/audit/understanding-audit-logs. An operation of Cloud TPU's that fails
has a second entry, of severity ERROR; of Dataproc's none is documented. Data Access entries are off, as at
Google.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.runtime import Telemetry
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam

_TYPE = "type.googleapis.com/google.cloud.audit.AuditLog"
_CODES = {"PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8, "CANCELLED": 1}
_METHODS = {
    "tpu.projects.locations.nodes.create": ("tpu", "google.cloud.tpu.{version}.Tpu.CreateNode"),
    "storage.buckets.setIamPolicy": ("storage", "storage.setIamPermissions"),
}


@dataclass(frozen=True)
class _Subject:
    """The subject of an entry: the resource's full name, the type and labels that it is logged under, and, of
    nodes, the request.
    """

    service: str
    method: str
    name: str
    resource: JsonObject
    principal: str = ""
    request: JsonObject | None = None


class Audit:
    """Writes the entries, with `record`."""

    def __init__(
        self, world: World, iam: Iam, record: Callable[[JsonObject], None], telemetry: Telemetry
    ) -> None:
        self._world, self._iam, self._record, self._telemetry = world, iam, record, telemetry

    def begin(self, call: Call) -> Audited | None:
        """Begin the entries of a call; None for a call without any."""
        listed = _METHODS.get(call.method_id)
        if listed is None:
            return None
        service, method = listed
        path, query, project = call.path, call.query, {"project_id": self._world.project}
        request: JsonObject | None = None
        if service == "storage":
            name = f"projects/_/buckets/{path['bucket']}"
            resource = {"type": "gcs_bucket", "labels": {**project, "bucket_name": path["bucket"]}}
        else:
            name = f"{path['parent']}/nodes/{query.get('nodeId', '')}"
            method = method.format(version=call.version)
            resource = self._audited_resource(service, method)
            request = {**path, **query, "node": call.body or {}}
        subject = _Subject(service, method, name, resource, call.principal, request)
        return Audited(self, subject, self.bindings(subject))

    def terminated(self, node: str) -> None:
        """Record that Google took a TPU node back."""
        method = "tpu.nodes.terminate"
        subject = _Subject("tpu", method, node, self._audited_resource("tpu", method))
        self.write(subject, log="system_event", metadata={"terminateReason": "PREEMPTED"})

    def bindings(self, subject: _Subject) -> set[tuple[str, str]]:
        """Return (role, member) of the policy of a bucket; nothing for any other resource."""
        if subject.service != "storage":
            return set()
        policy = self._iam.existing(subject.name)
        return {
            (binding["role"], member)
            for binding in policy.get("bindings") or ()
            for member in binding.get("members", ())
        }

    def quota_exceeded(self, service: str, message: str) -> None:
        """Count a refusal in Google's metric of exceeded quotas."""
        labels = {"service": f"{service}.googleapis.com", "project_id": self._world.project}
        self._telemetry.measure(
            "serviceruntime.googleapis.com/quota/exceeded", labels, {"limit_name": message}
        )

    def write(
        self, subject: _Subject, *, severity: str = "NOTICE", log: str = "activity", **more: Any
    ) -> None:
        """Write one entry."""
        now = self._world.clock.rfc3339()
        caller: JsonObject = {}
        if subject.principal:
            caller = {"authenticationInfo": {"principalEmail": subject.principal}}
        if subject.request:
            caller["request"] = subject.request
        self._record({
            "logName": f"projects/{self._world.project}/logs/cloudaudit.googleapis.com%2F{log}",
            "resource": subject.resource,
            "labels": {},
            "severity": severity,
            "timestamp": now,
            "receiveTimestamp": now,
            "insertId": uuid.uuid4().hex[:16],
            "protoPayload": {
                "@type": _TYPE,
                "serviceName": f"{subject.service}.googleapis.com",
                "methodName": subject.method,
                "resourceName": subject.name,
                **caller,
                **more,
            },
        })  # fmt: skip

    def _audited_resource(self, service: str, method: str) -> JsonObject:
        """Return the resource of services that have no type of their own."""
        labels = {
            "project_id": self._world.project,
            "service": f"{service}.googleapis.com",
            "method": method,
        }
        return {"type": "audited_resource", "labels": labels}


@dataclass(frozen=True)
class Audited:
    """A call that leaves entries; `before` are the bindings that it found."""

    audit: Audit
    subject: _Subject
    before: set[tuple[str, str]]

    def done(self) -> None:
        """Record that the call was accepted, with the changes of a policy."""
        more: JsonObject = {}
        if self.subject.service == "storage":
            after = self.audit.bindings(self.subject)
            changes = (("ADD", after - self.before), ("REMOVE", self.before - after))
            deltas = [
                {"action": action, "role": role, "member": member}
                for action, bindings in changes
                for role, member in sorted(bindings)
            ]
            more = {"serviceData": {"policyDelta": {"bindingDeltas": deltas}}}
        self.audit.write(self.subject, **more)

    def failed(self, error: ApiError) -> None:
        """Record that the call was refused, or that its operation failed."""
        status = {"code": _CODES.get(error.status, 2), "message": error.message}
        self.audit.write(self.subject, severity="ERROR", status=status)
        if error.status == "RESOURCE_EXHAUSTED" and "quota" in error.message.lower():
            self.audit.quota_exceeded(self.subject.service, error.message)
