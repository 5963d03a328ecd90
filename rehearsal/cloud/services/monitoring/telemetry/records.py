"""Incidents of alert policies, and the notifications about them."""

from __future__ import annotations

from dataclasses import dataclass

from rehearsal.cloud.core.errors import JsonObject

Labels = tuple[tuple[str, str], ...]


@dataclass
class Incident:
    """An incident; times are virtual seconds since the epoch, `closed_s` 0 while it is open."""

    id: str
    name: str
    policy: JsonObject
    condition: JsonObject
    labels: Labels
    value: float
    opened_s: float
    closed_s: float = 0.0


@dataclass(frozen=True)
class Notification:
    """A message to a channel; `failed` is the reason why it wasn't delivered."""

    channel: str
    kind: str
    to: str
    message: JsonObject
    failed: str = ""
