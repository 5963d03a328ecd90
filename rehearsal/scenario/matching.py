"""Steps that hold a regular expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Matching:
    """A step of which one field is a pattern: `prints`, unless it names another."""

    regex: ClassVar[str] = "prints"

    def check(self) -> Iterator[str]:
        """A pattern that can't be compiled is a broken rule."""
        try:
            re.compile(getattr(self, self.regex) or "")
        except re.error as broken:
            yield f"{self.regex}: not a regular expression: {broken}"
