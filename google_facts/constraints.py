"""Constraints of organization policies: constraints.toml."""

import re
from collections.abc import Mapping
from typing import Any

from google_facts import table

_NAMED = re.compile(r"constraints/([a-z]+\.\w+)")


def block(constraint: str) -> Mapping[str, Any]:
    """Return what is known of `gcp.resourceLocations`; {} for another constraint."""
    known: Mapping[str, Any] = table("constraints").get(constraint, {})
    return known


def violated(message: str) -> str:
    """Return the constraint that Google's words are about; "" where they are about none."""
    if named := _NAMED.search(message):
        return named[1]
    of_marks = (name for name, item in table("constraints").items() if item.get("marks", "\0") in message)
    return next(of_marks, "")
