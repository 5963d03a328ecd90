"""The steps that the project's owner takes; the others are in steps.py, which lists all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rehearsal.scenario.typed import Deployed


@dataclass(frozen=True)
class Request:
    """Send one request, as the project's owner: what must be there before a layer can use it.

    `$project`, `$zone` and `$region` in a text are those of the first slice.
    """

    method: str  # with its version: `cloudkms.v1.projects.locations.keyRings.create`
    arguments: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"request: {self.method}"

    def check(self) -> Iterator[str]:
        """An API, a version, and what is in between them and the verb."""
        if self.method.count(".") < 3:
            yield f"method: {self.method!r} isn't API.VERSION.COLLECTION.VERB"


@dataclass(frozen=True)
class Guide(Deployed):
    """Run the commands of a guide as it prints them, section by section; each question is answered with y."""

    page: str
    sections: tuple[str, ...]
    timeout_s: float = 1800.0

    def __str__(self) -> str:
        return f"{self.page}: {', '.join(self.sections)}"
