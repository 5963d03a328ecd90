"""Lines that a Run service prints, as entries of Cloud Logging.

https://cloud.google.com/run/docs/logging and https://cloud.google.com/logging/docs/structured-logging.
"""

from __future__ import annotations

import json

from rehearsal.cloud.core.errors import JsonObject

_SEVERITIES = {
    "DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY",
}  # fmt: skip
# Special fields of a line, and where they go in its entry.
_MOVED = {
    "time": "timestamp",
    "httpRequest": "httpRequest",
    **{
        f"logging.googleapis.com/{field}": field
        for field in ("insertId", "labels", "operation", "sourceLocation", "spanId", "trace")
    },
    "logging.googleapis.com/trace_sampled": "traceSampled",
}


def entry(line: str) -> JsonObject:
    """Return severity, payload and more of a line: an object in JSON is `jsonPayload`, all else text."""
    try:
        payload = json.loads(line)
    except (ValueError, RecursionError):
        payload = None
    if not isinstance(payload, dict):
        return {"severity": "DEFAULT", "textPayload": line}
    result: JsonObject = {_MOVED[key]: payload.pop(key) for key in _MOVED.keys() & payload.keys()}
    severity = str(payload.pop("severity", "DEFAULT")).upper()
    result["severity"] = severity if severity in _SEVERITIES else "DEFAULT"
    if payload.keys() == {"message"}:
        return {**result, "textPayload": str(payload["message"])}
    return {**result, "jsonPayload": payload}
