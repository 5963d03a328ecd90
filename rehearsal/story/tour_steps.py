"""The step that calls what the program doesn't use; the others are in steps.py, which lists all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Tour:
    """Make, read, change and delete a resource of each collection served, as the project's owner.

    `covers` is the least part of the methods served that the whole story must have called at its end.
    """

    scalar: ClassVar[str] = "covers"
    covers: float

    def __str__(self) -> str:
        return "a tour of every service"

    def check(self) -> Iterator[str]:
        """A part of a whole."""
        if not 0 < self.covers <= 1:
            yield f"covers: {self.covers:g} is not in (0, 1]"
