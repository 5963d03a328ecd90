"""Cloud Logging's query language, as far as it is emulated: comparisons, joined by AND.

`FIELD = "VALUE"`, `!=`, `:` (has the text), and of timestamps and severities `<`, `<=`, `>`, `>=`. What else
the language has (OR, NOT, parentheses, regular expressions, text without a field, functions) is refused as
not emulated. https://cloud.google.com/logging/docs/view/logging-query-language
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from datetime import datetime

from rehearsal.cloud.service import JsonObject, NotEmulatedError, bad_request

__all__ = ["epoch", "parse"]

Matches = Callable[[JsonObject], bool]

_MAX_CHARACTERS = 20_000
_TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|(!=|<=|>=|=~|!~|[=<>:()-])|([^\s"=<>!:()]+))')
_FIELD = re.compile(
    r"logName|insertId|severity|timestamp|textPayload|resource\.type|(?:resource\.labels|labels|jsonPayload)\.[\w.-]+"
)
_SEVERITIES = (
    *("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING"),
    *("ERROR", "CRITICAL", "ALERT", "EMERGENCY"),
)
_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def epoch(timestamp: str) -> float:
    """Seconds since the epoch of an RFC 3339 time; ApiError 400 for what is none."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", timestamp)
    try:
        if found:
            whole = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00")).timestamp()
            return whole + float(found[2] or 0)
    except ValueError:
        pass
    raise bad_request(f"Invalid timestamp: {timestamp}")


def parse(text: str) -> Matches:
    """What decides whether an entry matches; ApiError 400 for a broken filter."""
    if len(text) > _MAX_CHARACTERS:
        raise bad_request(f"The filter is longer than {_MAX_CHARACTERS} characters.")
    tokens = _tokens(text)
    conditions: list[Matches] = []
    while tokens:
        if conditions and tokens[0] == "AND":  # without it, too, comparisons are joined by it
            tokens.pop(0)
        if len(tokens) < 3 or not _FIELD.fullmatch(tokens[0]) or tokens[2] in ("(", ")"):
            raise NotEmulatedError(f"The filter {text!r}")
        field, comparison, value = tokens[:3]
        del tokens[:3]
        conditions.append(_condition(text, field, comparison, _unquoted(value)))
    return lambda entry: all(condition(entry) for condition in conditions)


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise bad_request(f"Unparseable filter: syntax error at {text[at : at + 20]!r}")
        tokens.append(found[1] or found[2] or found[3])
        at = found.end()
    return tokens


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def _condition(text: str, field: str, comparison: str, value: str) -> Matches:
    if field == "timestamp" and comparison in _COMPARE:
        desired, compare = epoch(value), _COMPARE[comparison]
        return lambda entry: compare(epoch(entry["timestamp"]), desired)
    if field == "severity":
        if value not in _SEVERITIES:
            raise bad_request(f"Unknown severity: {value}")
        if comparison in _COMPARE:
            compare, least = _COMPARE[comparison], _SEVERITIES.index(value)
            return lambda entry: compare(_SEVERITIES.index(entry["severity"]), least)
    if comparison == "=":
        return lambda entry: _value(entry, field) == value
    if comparison == "!=":
        return lambda entry: _value(entry, field) != value
    if comparison == ":":
        return lambda entry: value.lower() in (_value(entry, field) or "").lower()
    raise NotEmulatedError(f"The filter {text!r}")


def _value(entry: JsonObject, field: str) -> str | None:
    found: object = entry
    for part in field.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return None if found is None else str(found)
