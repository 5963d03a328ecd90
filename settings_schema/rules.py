"""Rules that a value must obey."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/+")
"""Beginning of a URL."""


@dataclass(frozen=True)
class Rule:
    """Requirement on a value; on each item of a list or mapping.

    Attributes:
        ok: test of a value of the field's type.
        text: noun phrase that continues "must be".
        fix: instruction for the user; empty: to write the default.
        choices: all values that obey it, where they are few.
    """

    ok: Callable[[Any], bool]
    text: str
    fix: str = ""
    choices: tuple[str, ...] = ()


def pattern(regex: str, text: str, fix: str) -> Rule:
    """Require that the whole text matches `regex`, whose classes such as \\d are ASCII's."""
    compiled = re.compile(regex, re.ASCII)
    return Rule(lambda value: compiled.fullmatch(value) is not None, text, fix)


TEXT = Rule(str.isprintable, "printable text, without control characters", "remove them")
"""Rule of texts that have none of their own, in files for people to review."""
MOST_CHARACTERS = 1000
SHORT = Rule(
    lambda value: len(value) <= MOST_CHARACTERS, f"at most {MOST_CHARACTERS} characters", "shorten it"
)
"""Rule of all texts there, beside their own."""


def between(low: float, high: float, unit: str = "") -> Rule:
    """Require a number from `low` to `high`, both included."""
    return Rule(lambda value: low <= value <= high, f"{low} to {high}{' ' + unit if unit else ''}")


def at_least(low: float) -> Rule:
    """Require at least `low`."""
    return Rule(lambda value: value >= low, f"at least {low:g}")


def above(low: float) -> Rule:
    """Require more than `low`."""
    return Rule(lambda value: value > low, f"greater than {low:g}")


def below(high: float) -> Rule:
    """Require at least 0 and less than `high`."""
    return Rule(lambda value: 0 <= value < high, f"at least 0 and less than {high:g}")


def one_of(*choices: str) -> Rule:
    """Require a value in `choices`."""
    shown = ", ".join(choice or '""' for choice in choices)
    return Rule(lambda value: value in choices, f"one of {shown}", choices=choices)
