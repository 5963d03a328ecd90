"""Data that hosts and pods write: JSON and text within limits, as values of the requested types.

Whatever an object contains, these functions return a value or raise ForeignError.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_MOST_BYTES = 1 << 20
_DEEPEST = 32
_LONGEST = 2000  # of a text; more is cut off
_MOST = 10**18  # of a count
_LARGEST = 1e30  # of a number; above it, sums and formats of a few digits end
_COUNT = re.compile(r"[0-9]{1,18}")
_NUMBER = re.compile(r"(?i)[-+]?([0-9]{1,40}(\.[0-9]{0,40})?(e[-+]?[0-9]{1,4})?|inf(inity)?|nan)")


class ForeignError(ValueError):
    """Data isn't of its schema."""


def parse(raw: bytes | str, most_bytes: int = _MOST_BYTES) -> dict[str, Any]:
    """Parse a JSON object. Raises ForeignError."""
    require_size(len(raw), most_bytes)
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ForeignError(f"is no JSON: {str(error)[:80]}") from None
    if not isinstance(parsed, dict):
        raise ForeignError("is no JSON object")
    level: list[Any] = [parsed]
    for _ in range(_DEEPEST):
        containers = [entry for entry in level if isinstance(entry, dict | list)]
        level = [
            entry for held in containers for entry in (held.values() if isinstance(held, dict) else held)
        ]
    if level:
        raise ForeignError(f"is nested deeper than {_DEEPEST}")
    return parsed


def require_size(size: int, most_bytes: int = _MOST_BYTES) -> None:
    """Raise ForeignError for an object of so many bytes that it isn't read."""
    if size > most_bytes:
        raise ForeignError(f"has more than {most_bytes} bytes")


def text(data: Mapping[str, Any], key: str, pattern: str = "") -> str:
    """Return a text of `pattern`, if given, without halves of surrogate pairs; empty if missing."""
    value = data.get(key)
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or (pattern and not re.fullmatch(pattern, value)):
        raise _unlike(key, value, f"a text like {pattern}" if pattern else "a text")
    return value[:_LONGEST].encode(errors="replace").decode()


def count(data: Mapping[str, Any], key: str) -> int:
    """Return a whole number that isn't negative, of a number or of ASCII digits; 0 if missing."""
    value = data.get(key)
    if value is None or value == "":
        return 0
    digits = isinstance(value, str) and _COUNT.fullmatch(value)
    if not digits and (type(value) is not int or not 0 <= value < _MOST):
        raise _unlike(key, value, "a whole number of at most 18 digits")
    return int(value)


def number(data: Mapping[str, Any], key: str) -> float | None:
    """Return a number, of a number or of its ASCII text; None if missing, not finite or above 1e30."""
    value = data.get(key)
    if value is None or value == "":
        return None
    if not (isinstance(value, str) and _NUMBER.fullmatch(value)) and type(value) not in (int, float):
        raise _unlike(key, value, "a number")
    if isinstance(value, int):  # it may be too large for a float
        return float(value) if -_LARGEST <= value <= _LARGEST else None
    result = float(value)
    return result if math.isfinite(result) and abs(result) <= _LARGEST else None


def group(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an object within an object; empty if missing."""
    value = data.get(key)
    if value is not None and not isinstance(value, dict):
        raise _unlike(key, value, "an object")
    return value or {}


def _unlike(key: str, value: object, rule: str) -> ForeignError:
    shown = ascii(value) if isinstance(value, str | float | bool) else type(value).__name__
    return ForeignError(f"{key} = {shown[:60]}: must be {rule}")
