"""Shipping of the output of boot and job to Cloud Logging, where it outlives the host.

journald is the buffer: lines not yet sent are read again from the cursor, so memory is bounded, an outage of
the API loses no line that the journal still holds, and a restart loses none. A line sent twice has the same
`insertId`, and Cloud Logging keeps one entry.
Protocol: cloud.google.com/logging/docs/reference/v2/rest/v2/entries/write.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import queue
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from workload.host import events
from workload.host.errors import HostError, LogsError, MetadataError
from workload.host.metadata import access_token, read

_LOG = logging.getLogger(__name__)
LOG = "tpu-host"
VITALS_LOG = "tpu-vitals"
VITALS = ("alive", "heartbeat")
"""Events of every minute; they go to a log of their own."""
UNITS = ("google-startup-scripts.service", "tpu-job.service", "tpu-heartbeat.service")

_SERVER = "https://logging.googleapis.com"
_TIMEOUT_S = 20.0
_MOST_ENTRIES = 500
_MOST_BYTES = 1 << 20  # of one request; the API takes ten times that
_LONGEST = 32 << 10  # of one line; the API takes 256 KiB an entry
_ALIVE_EVERY_S = 60.0
_WAITING = 500  # lines in memory
_TOGETHER_S = 1.0  # lines of so long go in one request
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_LAST_S = 5.0  # for the last lines, when the host goes away
# Retried, like 5xx; any other status means that the entries are invalid.
_TRANSIENT = frozenset({401, 403, 404, 408, 429})
# LogSeverity of each priority of syslog(3).
_SEVERITIES = ("EMERGENCY", "ALERT", "CRITICAL", "ERROR", "WARNING", "NOTICE", "INFO", "DEBUG")

Entry = dict[str, Any]


def destination() -> dict[str, Any]:
    """Return the log, resource and labels of all entries of this host, from its metadata."""
    project, instance = read("project/project-id"), read("instance/id")
    node, zone = (read(f"instance/attributes/{key}") for key in ("tpu-slice", "tpu-zone"))
    worker, name = (read(f"instance/attributes/{key}") for key in ("agent-worker-number", "tpu-slice-name"))
    bucket = read("instance/attributes/tpu-bucket")
    if not project or not node or not zone:
        raise MetadataError(
            "the node's metadata lacks its project, name or zone: was it made by the tpu stack?"
        )
    slice_ = name or node
    return {
        "logName": f"projects/{project}/logs/{LOG}",
        "resource": {
            "type": "generic_node",
            "labels": {"project_id": project, "location": zone, "namespace": slice_, "node_id": node},
        },
        "labels": {
            "node": node,
            "worker": worker or "unknown",
            "zone": zone,
            "slice": slice_,
            "instance": instance or "unknown",
            **({"bucket": bucket} if bucket else {}),
        },
    }


def entry(line: bytes) -> tuple[str, Entry]:
    """Convert a line of `journalctl --output=json` into its cursor and a LogEntry."""
    record = json.loads(line)
    cursor = str(record["__CURSOR"])
    message = record.get("MESSAGE")
    if isinstance(message, list):  # bytes that aren't UTF-8
        message = bytes(message).decode(errors="replace")
    text = str(message or "")
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}… ({len(text)} characters)"
    at = datetime.fromtimestamp(int(record["__REALTIME_TIMESTAMP"]) / 1e6, UTC)
    priority = str(record.get("PRIORITY", ""))
    event = events.payload(text)
    return cursor, {
        **({"jsonPayload": event} if event else {"textPayload": text}),
        "timestamp": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "severity": _SEVERITIES[int(priority)] if priority in set("01234567") else "DEFAULT",
        "insertId": hashlib.sha256(cursor.encode()).hexdigest()[:32],
        # systemd's own lines about a unit name it in UNIT.
        "labels": {"unit": str(record.get("UNIT") or record.get("_SYSTEMD_UNIT") or "unknown")},
    }


def alive(shared: dict[str, Any], accelerator_type: str | None) -> Entry | None:
    """Return an entry that this node is up, with its chips; None on workers other than 0."""
    labels = shared["labels"]
    chips = str(accelerator_type).rpartition("-")[2]
    if labels["worker"] != "0" or not chips.isdecimal():
        return None
    at = events.now()
    return {
        "jsonPayload": {"event": "alive", "chips": int(chips), "message": f"{labels['node']} is up"},
        "timestamp": at,
        "severity": "INFO",
        "insertId": hashlib.sha256(f"{labels['instance']} {at}".encode()).hexdigest()[:32],
        "labels": {"unit": "tpu-logs.service"},
    }


class Shipper:
    """Client that writes entries; retries while the API is unavailable, drops entries that it refuses."""

    def __init__(
        self,
        shared: dict[str, Any],
        stopping: threading.Event,
        *,
        server: str = _SERVER,
        token: Callable[[], str] = access_token,
        first_pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        self._shared, self._stopping, self._server = shared, stopping, server
        self._mint, self._token, self._first_pause_s = token, "", first_pause_s

    def send(self, entries: list[Entry]) -> None:
        """Write entries; return once they are stored, or refused as invalid.

        Raises:
            LogsError: the host shuts down, and the API still doesn't answer.
        """
        pause_s, failing, give_up = self._first_pause_s, False, 0.0
        while True:
            try:
                self._send_once(entries)
            except (HostError, urllib.error.URLError, http.client.HTTPException, OSError) as error:
                output, transient = str(error), True
                if isinstance(error, urllib.error.HTTPError):
                    output = f"HTTP {error.code}: {error.read(500).decode(errors='replace')}"
                    transient = error.code in _TRANSIENT or error.code >= 500
                self._token = ""
                if not transient:
                    _LOG.error("%d entries were refused, and are left out: %s", len(entries), output)
                    return
                if not failing:
                    _LOG.warning("logs can't be sent, will retry: %s", output)
                failing = True
            else:
                if failing:
                    _LOG.info("logs are sent again")
                return
            if self._stopping.wait(pause_s):
                give_up = give_up or time.monotonic() + _LAST_S
                if time.monotonic() > give_up:
                    raise LogsError(f"{len(entries)} lines or more weren't sent: {output}")
                time.sleep(self._first_pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _send_once(self, entries: list[Entry]) -> None:
        self._token = self._token or self._mint()
        vitals = {"logName": self._shared["logName"].replace(f"/{LOG}", f"/{VITALS_LOG}")}
        routed = [
            entry | vitals if entry.get("jsonPayload", {}).get("event") in VITALS else entry
            for entry in entries
        ]
        body = json.dumps({**self._shared, "entries": routed, "partialSuccess": True}).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._server}/v2/entries:write", body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
            reply.read()


class Journal:
    """Lines of some units after a cursor, as they come; a bounded number is in memory."""

    def __init__(self, command: Iterable[str]) -> None:
        self._process = subprocess.Popen(list(command), stdout=subprocess.PIPE)
        self._lines: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._ended = False
        assert self._process.stdout
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, out: IO[bytes]) -> None:
        for line in out:
            self._lines.put(line)  # waits where the queue is full: the journal keeps the rest
        self._lines.put(None)

    def batch(self) -> list[tuple[str, Entry]]:
        """Return the lines of the next second, or of less if they fill a request."""
        batch: list[tuple[str, Entry]] = []
        size = 0
        until = time.monotonic() + _TOGETHER_S
        while not self._ended and len(batch) < _MOST_ENTRIES and size < _MOST_BYTES:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if line is None:
                self._ended = True
                break
            batch.append(entry(line))
            size += len(line)
        return batch

    @property
    def ended(self) -> bool:
        """True once journalctl has ended."""
        return self._ended

    def end(self) -> None:
        """Stop journalctl; lines already read stay available."""
        self._process.terminate()


def run(
    cursor: Path,
    stopping: threading.Event,
    shipper: Shipper,
    units: Iterable[str] = UNITS,
    sign: Callable[[], Entry | None] = lambda: None,
) -> None:
    """Send the output of `units` until `stopping`, and the rest of it then; a `sign` a minute.

    Raises:
        LogsError: the journal ended; a restart of this program opens it again.
    """
    before = cursor.read_text().strip() if cursor.exists() else ""
    journal = Journal(
        [
            *("journalctl", "--quiet", "--follow", "--no-tail", "--all", "--output=json"),
            "--output-fields=MESSAGE,PRIORITY,UNIT,_SYSTEMD_UNIT",
            *(f"--unit={unit}" for unit in units),
            *([f"--after-cursor={before}"] if before else []),
        ]
    )
    try:
        _forward(journal, cursor, stopping, shipper, sign)
    finally:
        journal.end()


def _forward(
    journal: Journal,
    cursor: Path,
    stopping: threading.Event,
    shipper: Shipper,
    sign: Callable[[], Entry | None],
) -> None:
    last_s: float | None = None
    signed_s = -_ALIVE_EVERY_S
    while True:
        batch = journal.batch()
        if not stopping.is_set() and time.monotonic() >= signed_s + _ALIVE_EVERY_S:
            signed_s = time.monotonic()
            if (vital := sign()) is not None:
                shipper.send([vital])
        if batch:
            shipper.send([entry for _, entry in batch])
            new = cursor.with_name(f"{cursor.name}.new")
            new.write_text(batch[-1][0])
            new.replace(cursor)
        elif journal.ended and not stopping.is_set():
            raise LogsError("the journal ended")
        if stopping.is_set():
            last_s = last_s or time.monotonic() + _LAST_S
            # A second without a line means the end: the units stop before this one.
            if not batch or journal.ended or time.monotonic() > last_s:
                return
