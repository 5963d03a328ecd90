"""Lists: pages, filters and orders, as far as they are plain."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from rehearsal.cloud.collections.shape import values
from rehearsal.cloud.core.errors import JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.door.discovery import document
from rehearsal.cloud.door.schema import camel

_MOST = {"maxResults": 500, "pageSize": 1000}
_TERM = re.compile(
    r"""\s*(?P<key>[\w.]+)\s*(?P<op>!=|>=|<=|=|:|>|<|\beq\b|\bne\b)\s*(?P<value>"[^"]*"|'[^']*'|[^\s"'()]+)\s*"""
)

_SUPPORTED = re.compile(r"Supported fields: (.*?)(?:Some examples|e\.g\.|$)", re.DOTALL)
Keep = Callable[[JsonObject], bool]


def page(call: Call, items: list[JsonObject], default: int = 0) -> tuple[list[JsonObject], str]:
    """Return the requested page of the items, and the token of the next one or ""."""
    size_name = "maxResults" if "maxResults" in call.query else "pageSize"
    size = int(call.query.get(size_name) or 0)
    if size < 0:
        raise bad_request(f"Invalid value for field '{size_name}': '{size}'. Must not be negative.")
    token = str(call.query.get("pageToken") or "0")
    if not token.isdigit() or int(token) > len(items):
        raise bad_request(f"The page token '{token}' is invalid.")
    most = _MOST[size_name]
    start, end = int(token), int(token) + min(size or default or most, most)
    return items[start:end], str(end) if end < len(items) else ""


def chosen(call: Call, items: Iterable[tuple[str, JsonObject]]) -> list[tuple[str, JsonObject]]:
    """Select the named items that match `filter`, in the order of `orderBy`.

    The order is a list of fields, each with `desc` or without (https://google.aip.dev/132#ordering).
    """
    keep = predicate(call.query.get("filter") or "", _filterable(call))
    order = str(call.query.get("orderBy") or "")
    stored = [item for item in items if keep(item[1])]
    for term in reversed([part.split() for part in order.split(",") if part.strip()]):
        if len(term) > 2 or (len(term) == 2 and term[1].lower() not in ("asc", "desc")):
            raise bad_request(f"Invalid orderBy '{order}'.")
        path = ".".join(camel(part) for part in term[0].split("."))
        down = len(term) == 2 and term[1].lower() == "desc"
        stored.sort(key=lambda item, path=path: _sortable(values(item[1], path)), reverse=down)  # type: ignore[misc]
    return stored


def _filterable(call: Call) -> frozenset[str]:
    """Return the fields that the method's document names for its filter; none if it names none.

    They are names of the message (`display_name`), unless the document says that those of JSON are too.
    """
    method = document(call.api, call.version).methods.get(call.method_id, {})
    about = method.get("parameters", {}).get("filter", {}).get("description", "")
    listed = _SUPPORTED.search(about)
    if listed is None or "camelCase" in about:
        return frozenset()
    return frozenset(re.findall(r"\* `?([a-z_]+(?:\.[a-z_]+)*)\b", listed[1]))


def predicate(expression: str, fields: frozenset[str] = frozenset()) -> Keep:
    """Compile a filter of comparisons joined by AND; NotEmulatedError for any other.

    With `fields`, those alone are known: ApiError 400 for another.

    Compute's `eq` and `ne` compare with a regex that must match as a whole
    (https://cloud.google.com/compute/docs/reference/rest/v1/zones/list); the others are of
    https://google.aip.dev/160.
    """
    terms: list[Keep] = []
    rest = expression.strip()
    while rest:
        opened = rest.startswith("(")
        match = _TERM.match(rest.removeprefix("("))
        if match is None:
            raise NotEmulatedError(f"The filter '{expression}'")
        rest = rest.removeprefix("(")[match.end() :]
        if opened and not rest.startswith(")"):
            raise NotEmulatedError(f"The filter '{expression}'")
        rest = rest.removeprefix(")").strip() if opened else rest.strip()
        key = match["key"]
        if fields and not any(key == name or key.startswith(f"{name}.") for name in fields):
            raise bad_request(f"Invalid filter '{expression}': the field '{key}' is not supported.")
        terms.append(_compare(match["key"], match["op"], match["value"].strip("\"'")))
        if rest:
            joined = re.match(r"AND\s+|(?=\()", rest)
            if joined is None:
                raise NotEmulatedError(f"The filter '{expression}'")
            rest = rest[joined.end() :]
    return lambda item: all(term(item) for term in terms)


def _compare(key: str, op: str, wanted: str) -> Keep:
    path = ".".join(camel(part) for part in key.split("."))

    def keep(item: JsonObject) -> bool:
        texts = [_text(value) for value in values(item, path)]
        if op == "eq":
            return any(re.fullmatch(wanted, value) for value in texts)
        if op == "ne":
            return not any(re.fullmatch(wanted, value) for value in texts)
        if op == ":":
            return bool(texts) if wanted == "*" else any(wanted.lower() in value.lower() for value in texts)
        if op in ("=", "!="):
            pattern = ".*".join(re.escape(part) for part in wanted.split("*"))
            return any(re.fullmatch(pattern, value) for value in texts or [""]) == (op == "=")
        return any(_ordered(value, op, wanted) for value in texts)

    return keep


def _ordered(value: str, op: str, wanted: str) -> bool:
    left: Any = value
    right: Any = wanted
    if re.fullmatch(r"-?\d+(\.\d+)?", value) and re.fullmatch(r"-?\d+(\.\d+)?", wanted):
        left, right = float(value), float(wanted)
    return bool({">": left > right, "<": left < right, ">=": left >= right, "<=": left <= right}[op])


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sortable(texts: list[Any]) -> tuple[int, float, str]:
    """Return a sort key: missing values first, then numbers, also as text, then other text."""
    if not texts:
        return (0, 0.0, "")
    text = _text(texts[0])
    return (1, float(text), "") if re.fullmatch(r"-?\d+(\.\d+)?", text) else (2, 0.0, text)
