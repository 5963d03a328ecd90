"""Events: lines that say something to programs too, `TIME KIND {JSON}`.

    2026-11-24T10:00:00.000000Z save {"step": 500}

What a host sends to Cloud Logging of it is an entry with `jsonPayload`: `event`, `message` (the line)
and the keys of the JSON. Any program of a job may print some; docs/architecture.md lists ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = ["line", "now", "payload"]

_EVENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z ([a-z][a-z-]{0,62}) (\{.*\})")


def now() -> str:
    """The time, in UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def line(kind: str, details: Mapping[str, Any], at: str | None = None) -> str:
    """An event as it is printed."""
    return f"{at or now()} {kind} {json.dumps(details)}"


def payload(text: str) -> dict[str, Any] | None:
    """An entry's `jsonPayload`; None for a line that is no event.

    JSON has no NaN and no infinity, which Python writes: they become text.
    """
    found = _EVENT.fullmatch(text)
    if not found:
        return None
    try:
        details = json.loads(found[2], parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return {**details, "event": found[1], "message": text}
