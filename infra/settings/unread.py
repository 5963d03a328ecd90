"""Rule of settings that are read beside others alone: whoever writes one expects that it does something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from infra.errors import Problem
from infra.settings.schema import Relation, Settings


@dataclass(frozen=True)
class ReadWith:
    """Keys of a layer's settings that are read only where `holds` is true of its section.

    Attributes:
        keys: without the layer's name.
        beside: the condition in words, as a setting is written.
        holds: the condition.
    """

    keys: tuple[str, ...]
    beside: str
    holds: Callable[[Any], bool]


def unread(layer: str, section: type[Any], *rows: ReadWith) -> Relation:
    """Return the rule that refuses these settings where nothing reads them."""

    def check(settings: Settings, given: set[str]) -> Iterator[Problem]:
        if (desired := settings.get(section)) is None:
            return
        for row in rows:
            rule, fix = f"it is read with {row.beside} alone", f"remove it, or write {row.beside}"
            for path in (f"{layer}:{key}" for key in row.keys):
                if path in given and not row.holds(desired):
                    yield Problem(path, "a value that nothing reads", rule, fix)

    return tuple(f"{layer}:{key}" for row in rows for key in row.keys), check
