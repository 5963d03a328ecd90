"""Log of requests: the newest in memory, all of them in a file of JSON lines."""

from __future__ import annotations

import json
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rehearsal.cloud.core.errors import JsonObject

_KEPT = 20_000


@dataclass(frozen=True)
class LoggedRequest:
    """A request. `reason` is "" when a handler answered, else the obstacle.

    `time` is virtual, RFC 3339; `address` is the client's; `status` 0 is a connection that a fault closed
    without an answer.
    """

    time: str
    method_id: str
    http_method: str
    host: str
    path: str
    principal: str
    address: str
    status: int
    reason: str
    message: str
    duration_s: float


class RequestLog:
    """Keeps entries and counts requests by method: validated or refused."""

    def __init__(self, path: Path | None = None) -> None:
        self._entries: deque[JsonObject] = deque(maxlen=_KEPT)
        self._next = 0
        self._file: TextIO | None = path.open("a", buffering=1) if path else None
        self._validated: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def add(self, entry: LoggedRequest, *, validated: bool, refused: bool) -> None:
        """Record a request; `validated`: its discovery document accepted it, `refused`: fails a rehearsal."""
        numbered = {"n": self._next, **vars(entry)}
        self._next += 1
        self._entries.append(numbered)
        if validated:
            self._validated[entry.method_id] += 1
        if refused:
            self._refused[entry.method_id] += 1
        if self._file is not None:
            self._file.write(json.dumps(numbered) + "\n")

    def since(self, n: int) -> JsonObject:
        """Return entries from number `n` on that are in memory, and the number to continue from."""
        newest = self._next - max(n, 0)
        requests = list(self._entries)[-newest:] if newest > 0 else []
        return {"next": self._next, "requests": requests}

    def counts(self) -> JsonObject:
        """Return totals, and both counts by method id."""
        methods = {
            name: {"validated": self._validated[name], "refused": self._refused[name]}
            for name in sorted(self._validated.keys() | self._refused.keys())
        }
        return {
            "validated": self._validated.total(),
            "refused": self._refused.total(),
            "methods": methods,
        }

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
