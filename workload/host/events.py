"""Events: lines for people and programs, `TIME KIND {JSON}`.

    2026-11-24T10:00:00.000000Z save {"step": 500}

A host sends each to Cloud Logging as an entry with `jsonPayload`: `event`, `message` (the line)
and the keys of the JSON. Any program of a job may print events; docs/internals/architecture.md lists
the trainer's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_EVENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z ([a-z][a-z-]{0,62}) (\{.*\})")


def now() -> str:
    """Return the time in UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def line(kind: str, details: Mapping[str, Any], at: str | None = None) -> str:
    """Return an event as a line."""
    return f"{at or now()} {kind} {json.dumps(details)}"


def payload(text: str) -> dict[str, Any] | None:
    """Return an entry's `jsonPayload`; None if the line isn't an event.

    NaN and infinities, which JSON lacks and Python writes, become text.
    """
    match = _EVENT.fullmatch(text)
    if not match:
        return None
    try:
        details = json.loads(match[2], parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return {**details, "event": match[1], "message": text}
