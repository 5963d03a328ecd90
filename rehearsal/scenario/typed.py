"""Who types a step: `as` in a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Account = Literal["platform-engineer", "ml-engineer", "ci"]


@dataclass(frozen=True, kw_only=True)
class Typed:
    """What somebody types, and whose account they are logged in with."""

    as_: Account = "ml-engineer"


@dataclass(frozen=True, kw_only=True)
class Deployed(Typed):
    """What a platform engineer types unless it says otherwise."""

    as_: Account = "platform-engineer"
