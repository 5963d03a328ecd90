"""Events of a controller: each in the next observation, and in the log with its fields."""

import logging
from collections.abc import Mapping, Sequence

from fleet.model import Decision
from infra.slices.nodes import Node

_log = logging.getLogger("fleet.controller")


class Events:
    """Events since the last observation."""

    def __init__(self) -> None:
        self._events: list[str] = []
        self._conditions: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._unread: set[str] = set()  # names of objects that were reported

    def add(self, text: str, level: int = logging.INFO, **fields: object) -> None:
        """Add an event."""
        _log.log(level, "%s", text, extra={"fields": fields})
        self._events.append(text)

    def once(self, text: str, level: int = logging.INFO, topic: str = "") -> None:
        """Add an event unless it repeats the last one of its topic; an empty text ends that."""
        if text != self._last.get(topic, ""):
            self._last[topic] = text
            if text:
                self.add(text, level)

    def of_member(
        self, text: str, member: Node, action: str, attempt: int, level: int = logging.INFO
    ) -> None:
        """Add an event of a member."""
        self.add(text, level, node=member.name, zone=member.zone, action=action, attempt=attempt)

    def unread(self, unread: Mapping[str, str]) -> None:
        """Add an event for objects of the bucket that weren't reported as unread before."""
        if fresh := [name for name in unread if name not in self._unread]:
            self._unread.update(fresh)
            self.add(left_out(unread, fresh), logging.WARNING)

    def changes(self, decisions: Sequence[Decision]) -> list[tuple[Decision, str]]:
        """Return the decisions whose condition has changed since the last call, with a text."""
        before = self._conditions
        self._conditions = {decision.member.key: decision.condition for decision in decisions}
        result = []
        for decision in decisions:
            previous = before.get(decision.member.key, decision.condition)
            if previous != decision.condition:
                why = f" ({decision.why})" if decision.why else ""
                result.append((decision, f"{decision.node}: {previous} -> {decision.condition}{why}"))
        return result

    def taken(self) -> list[str]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events


def left_out(unread: Mapping[str, str], names: Sequence[str]) -> str:
    """Return a line on objects of the bucket that aren't read, with the reason for the first."""
    more = f", and {len(names) - 1} more objects" if len(names) > 1 else ""
    return f"left out: {names[0]} ({unread[names[0]]}){more}"
