"""Cloud Logging: entries are written, listed, and counted by metrics; buckets, sinks, views and tailing
are not emulated.

https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries
"""

from __future__ import annotations

import json
import re
import uuid
from bisect import insort
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast
from urllib.parse import unquote

from aiohttp import web

from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.core.runtime import Telemetry
from rehearsal.cloud.core.service import Call, Method
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.services.logging import filter as logfilter

# https://cloud.google.com/logging/quotas
_MAX_ENTRY_BYTES = 256 << 10
_MAX_REQUEST_BYTES = 10 << 20
_MAX_LABELS, _MAX_LABEL_KEY, _MAX_LABEL_VALUE = 64, 512, 64 << 10
_FUTURE_S, _PAST_S = 24 * 3600, 30 * 24 * 3600  # beyond these an entry is taken and never listed

_LOG = re.compile(r"projects/([^/]+)/logs/([A-Za-z0-9._/%-]{1,511})")
_PAYLOADS = ("textPayload", "jsonPayload", "protoPayload")
_ORDERS = ("timestamp asc", "timestamp desc", "")

# The labels that each type of resource must have, of those that are emulated
# (https://cloud.google.com/monitoring/api/resources).
_RESOURCES = {
    "global": {"project_id"},
    "generic_node": {"project_id", "location", "namespace", "node_id"},
    "generic_task": {"project_id", "location", "namespace", "job", "task_id"},
    "build": {"project_id", "build_id", "build_trigger_id"},
    "gce_instance": {"project_id", "instance_id", "zone"},
    "cloud_dataproc_batch": {"project_id", "batch_id", "location"},
    "cloud_scheduler_job": {"project_id", "job_id", "location"},
    "cloud_run_revision": {"project_id", "service_name", "revision_name", "location", "configuration_name"},
}

_Key = tuple[float, str, str]  # timestamp, insertId, log: what is written twice under one is kept once


class LoggingService:
    """The logging API, as far as entries go. They are kept in memory, as long as the cloud is."""

    api = "logging"
    versions = ("v2",)

    def __init__(self, world: World, iam: Iam, telemetry: Telemetry) -> None:
        self._world = world
        self._iam = iam
        self._telemetry = telemetry
        self._entries: dict[_Key, JsonObject] = {}
        self._order: list[_Key] = []

    def methods(self) -> Mapping[str, Method]:
        """By method id. A request's projects are in its body, so handlers check permissions."""
        return {
            "logging.entries.write": Method(self._write),
            "logging.entries.list": Method(self._list),
        }

    async def _write(self, call: Call) -> JsonObject:
        sent = call.body or {}
        if not sent.get("entries"):
            raise bad_request("The request is missing the required field entries.")
        if len(json.dumps(sent)) > _MAX_REQUEST_BYTES:
            raise bad_request(f"The request is larger than {_MAX_REQUEST_BYTES} bytes.")
        refused: dict[int, ApiError] = {}
        good: list[JsonObject] = []
        for number, given in enumerate(sent["entries"]):
            try:
                good.append(self._completed(call, sent, given))
            except ApiError as error:
                refused[number] = error
        # All or none, unless the request allows a part.
        first = next(iter(refused.values()), None)
        if first and not (sent.get("partialSuccess") and good):
            raise first
        if not sent.get("dryRun"):
            for entry in good:
                self.keep(entry)
        if first:
            details: JsonObject = {
                "@type": "type.googleapis.com/google.logging.v2.WriteLogEntriesPartialErrors",
                "logEntryErrors": {
                    str(number): {"code": error.code, "message": error.message}
                    for number, error in refused.items()
                },
            }
            raise ApiError(first.code, first.status, first.message, details=[details])
        return {}

    def _completed(self, call: Call, sent: JsonObject, given: JsonObject) -> JsonObject:
        """Return an entry with the fields that the request has for all; ApiError for a wrong one."""
        entry = {key: sent[key] for key in ("logName", "resource") if sent.get(key)} | given
        entry["labels"] = {**sent.get("labels", {}), **given.get("labels", {})}
        self._require(call, entry.get("logName", ""))
        resource = entry.get("resource", {})
        if (desired := _RESOURCES.get(resource.get("type", ""))) is None:
            if not resource.get("type"):
                raise bad_request("The request is missing the required field resource.type.")
            raise NotEmulatedError(f"A resource of type {resource['type']}")
        labels = resource.setdefault("labels", {})
        labels.setdefault("project_id", self._world.project)
        if missing := desired ^ labels.keys():
            raise bad_request(
                f"Labels of resource {resource['type']} are {sorted(desired)}: {sorted(missing)}."
            )
        if sum(payload in entry for payload in _PAYLOADS) != 1:
            raise bad_request("A log entry must have exactly one payload.")
        if len(json.dumps(entry)) > _MAX_ENTRY_BYTES:
            raise bad_request(f"Log entry with size {len(json.dumps(entry))} exceeds maximum size of 256.0K.")
        if len(entry["labels"]) > _MAX_LABELS or any(
            len(key) > _MAX_LABEL_KEY or len(value) > _MAX_LABEL_VALUE
            for key, value in entry["labels"].items()
        ):
            raise bad_request(
                "Labels of a log entry: at most 64, keys of 512 and values of 65536 characters."
            )
        now = self._world.clock.rfc3339()
        entry.setdefault("timestamp", now)
        entry.setdefault("insertId", uuid.uuid4().hex[:16])
        entry.setdefault("severity", "DEFAULT")
        return entry | {"receiveTimestamp": now}

    def _require(self, call: Call, log: str) -> None:
        name = _LOG.fullmatch(log)
        if name is None or not unquote(name[2]):
            raise bad_request(f"Name {log!r} is missing the logs component. Expected: projects/P/logs/L")
        if name[1] not in (self._world.project, self._world.number):
            raise ApiError(403, "PERMISSION_DENIED", f"Permission denied on resource projects/{name[1]}.")
        self._iam.require(call.principal, "logging.logEntries.create", f"projects/{self._world.project}")

    async def write_as(self, account: str, body: JsonObject) -> None:
        """Serve entries.write to a user's program that a service of Google's runs."""
        method = "logging.entries.write"
        await self._write(Call("logging", "v2", method, {}, {}, body, account, cast(web.Request, None)))

    def write(self, entry: JsonObject) -> None:
        """Keep what a service of Google's logs itself, which takes no permission."""
        now = self._world.clock.rfc3339()
        self.keep(
            {"timestamp": now, "insertId": uuid.uuid4().hex[:16], "severity": "INFO", "labels": {}}
            | entry
            | {"receiveTimestamp": now}
        )

    def keep(self, entry: JsonObject) -> None:
        """Keep a complete entry, unless it is too old or too far in the future."""
        at = logfilter.epoch(entry["timestamp"])
        now = self._world.clock.now()
        # Hosts send the real time, which the virtual clock is ahead of: "past" is counted from both.
        real = datetime.now(UTC).timestamp()
        if at > now + _FUTURE_S or at < min(now, real) - _PAST_S:
            return
        key = at, str(entry["insertId"]), str(entry["logName"])
        if key not in self._entries:
            self._entries[key] = entry
            insort(self._order, key)
            self._telemetry.observe(entry)

    async def _list(self, call: Call) -> JsonObject:
        sent = call.body or {}
        names = sent.get("resourceNames", [])
        if not names:
            raise bad_request("The request is missing the required field resource_names.")
        if sent.get("projectIds"):
            raise NotEmulatedError("The deprecated field projectIds")
        for name in names:
            if name not in (f"projects/{self._world.project}", f"projects/{self._world.number}"):
                if name.count("/") != 1:
                    raise NotEmulatedError(f"A view ({name})")
                raise ApiError(403, "PERMISSION_DENIED", f"Permission denied on resource {name}.")
            self._iam.require(call.principal, "logging.logEntries.list", f"projects/{self._world.project}")
        order = sent.get("orderBy", "")
        if order not in _ORDERS:
            raise bad_request(f"Invalid order_by: {order}")
        size = int(sent.get("pageSize") or 50)
        if size < 0:
            raise bad_request("page_size must not be negative")
        matches = logfilter.parse(sent.get("filter", ""))
        keys = reversed(self._order) if order == "timestamp desc" else iter(self._order)
        matching = [entry for key in keys if matches(entry := self._entries[key])]
        start = int(sent.get("pageToken") or 0)
        page = matching[start : start + min(size, 1000)]
        answer: JsonObject = {"entries": page} if page else {}
        if start + len(page) < len(matching):
            answer["nextPageToken"] = str(start + len(page))
        return answer
