"""Cloud Logging's query language, as far as it is emulated: comparisons, AND, OR, NOT and parentheses.

`FIELD = "VALUE"`, `!=`, `:` (has the text), `:*` (is there), `=~` (matches), and of timestamps, severities
and numbers `<`, `<=`, `>`, `>=`. Of a list one element is enough. NOT binds first, then OR, then AND. What
else the language has (`-`, text without a field, lists of values, functions) is refused as not emulated.
https://cloud.google.com/logging/docs/view/logging-query-language
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from datetime import datetime

from rehearsal.cloud.collections import shape
from rehearsal.cloud.core.errors import JsonObject, NotEmulatedError, bad_request

__all__ = ["Matches", "epoch", "parse", "values"]

Matches = Callable[[JsonObject], bool]

_MAX_CHARACTERS = 20_000
_TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|(!=|<=|>=|=~|!~|[=<>:()-])|([^\s"=<>!:()]+))')
_FIELD = re.compile(
    r"logName|insertId|severity|timestamp|textPayload|resource\.type|(?:resource\.labels|labels|jsonPayload|protoPayload)\.[\w.-]+"
)
_SEVERITIES = (
    *("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING"),
    *("ERROR", "CRITICAL", "ALERT", "EMERGENCY"),
)
_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def epoch(timestamp: str) -> float:
    """Seconds since the epoch of an RFC 3339 time; ApiError 400 for what is none."""
    parts = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", timestamp)
    try:
        if parts:
            whole = datetime.fromisoformat(parts[1] + parts[3].replace("Z", "+00:00")).timestamp()
            return whole + float(parts[2] or 0)
    except ValueError:
        pass
    raise bad_request(f"Invalid timestamp: {timestamp}")


def parse(text: str) -> Matches:
    """Compile a filter of entries; ApiError 400 for a malformed one."""
    if len(text) > _MAX_CHARACTERS:
        raise bad_request(f"The filter is longer than {_MAX_CHARACTERS} characters.")
    tokens = _tokens(text)
    conditions = _terms(text, tokens)
    if tokens:
        raise NotEmulatedError(f"The filter {text!r}")
    return conditions


def _terms(text: str, tokens: list[str]) -> Matches:
    """Take terms off `tokens` until the end, or a closing parenthesis."""
    conditions: list[Matches] = []
    while tokens and tokens[0] != ")":
        if conditions and tokens[0] == "AND":  # without it, too, terms are joined by it
            tokens.pop(0)
        conditions.append(_alternatives(text, tokens))
    return lambda entry: all(condition(entry) for condition in conditions)


def _alternatives(text: str, tokens: list[str]) -> Matches:
    """Take a term, and those that OR joins to it."""
    conditions = [_term(text, tokens)]
    while tokens[:1] == ["OR"]:
        tokens.pop(0)
        conditions.append(_term(text, tokens))
    return lambda entry: any(condition(entry) for condition in conditions)


def _term(text: str, tokens: list[str]) -> Matches:
    """Take a comparison, a negated term, or a whole filter in parentheses."""
    if tokens[:1] == ["NOT"]:
        tokens.pop(0)
        term = _term(text, tokens)
        return lambda entry: not term(entry)
    if tokens[:1] == ["("]:
        tokens.pop(0)
        inner = _terms(text, tokens)
        if tokens[:1] == [")"]:
            tokens.pop(0)
            return inner
    if len(tokens) < 3 or not _FIELD.fullmatch(tokens[0]) or tokens[2] in ("(", ")"):
        raise NotEmulatedError(f"The filter {text!r}")
    field, comparison, value = tokens[:3]
    del tokens[:3]
    return _condition(text, field, comparison, _unquoted(value))


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while text[at:].strip():
        token = _TOKEN.match(text, at)
        if token is None:
            raise bad_request(f"Unparseable filter: syntax error at {text[at : at + 20]!r}")
        tokens.append(token[1] or token[2] or token[3])
        at = token.end()
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
        return lambda entry: value in values(entry, field)
    if comparison == "!=":
        return lambda entry: value not in values(entry, field)
    if comparison == ":":
        has = value.lower() if value != "*" else ""
        return lambda entry: any(has in text.lower() for text in values(entry, field))
    if comparison == "=~":
        try:
            pattern = re.compile(value)
        except re.error as error:
            raise bad_request(f"Invalid regular expression {value!r}: {error}") from None
        return lambda entry: any(pattern.search(text) for text in values(entry, field))
    if comparison in _COMPARE and field.startswith("jsonPayload."):
        compare, bound = _COMPARE[comparison], _number(value)
        if bound is None:
            raise NotEmulatedError(f"The filter {text!r}")
        return lambda entry: any(
            number is not None and compare(number, bound) for number in map(_number, values(entry, field))
        )
    raise NotEmulatedError(f"The filter {text!r}")


def values(entry: JsonObject, field: str) -> list[str]:
    """Return the values of an entry's field as text: none, one, or those of a list on the way."""
    given = (value for value in shape.values(entry, field) if value is not None)
    return [str(value).lower() if isinstance(value, bool) else str(value) for value in given]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
