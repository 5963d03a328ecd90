"""Placeholders of fixes, replaced where settings and login are known."""

from __future__ import annotations

import re
from collections.abc import Callable

from infra.settings.schema import Settings


def filled(fix: str, settings: Settings, member: Callable[[], str]) -> str:
    """Return a fix with the environment's own names; `member` returns the login's, "" if unknown."""
    known = re.sub(r"\bENV\b", settings.environment, fix)
    known = re.sub(r"=PROJECT\b", f"={settings.project}", known)
    return known.replace("user:YOU", member() or "user:YOU") if "user:YOU" in known else known
