"""The functions of Workflows' standard library that answer at once.

https://cloud.google.com/workflows/docs/reference/stdlib/overview. Their parameters are named as there,
since a `call` step gives them by name. Those that wait or reach outside are in outside.py.
"""

from __future__ import annotations

import base64
import binascii
import copy
import hashlib
import hmac
import inspect
import json
import math
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote, quote_plus, unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rehearsal.cloud.services.workflows.engine.values import (
    Function,
    encoded,
    error,
    is_number,
    truth,
    type_name,
)

_ALGORITHMS = ("SHA256", "SHA1", "MD5", "SHA384", "SHA512")
_BACKOFF = {"initial_delay": 1.0, "max_delay": 60.0, "multiplier": 1.25}


def _need(kind: str, *values: Any) -> None:
    for value in values:
        if type_name(value) != kind:
            raise error("TypeError", f"must be a {kind}, not a {type_name(value)}")


def _numbers(*values: Any) -> None:
    for value in values:
        if not is_number(value):
            raise error("TypeError", f"must be a number, not a {type_name(value)}")


# Expression helpers


def _int(value: Any) -> int:
    try:
        if is_number(value) or isinstance(value, str):
            return int(value)
    except (ValueError, OverflowError):
        raise error("ValueError", f"can't convert {encoded(value)} to an integer") from None
    raise error("TypeError", f"can't convert a {type_name(value)} to an integer")


def _double(value: Any) -> float:
    try:
        if is_number(value) or isinstance(value, str):
            return float(value)
    except ValueError:
        raise error("ValueError", f"can't convert {encoded(value)} to a double") from None
    raise error("TypeError", f"can't convert a {type_name(value)} to a double")


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or is_number(value):
        return encoded(value)
    raise error("TypeError", f"can't convert a {type_name(value)} to a string")


def _len(value: Any) -> int:
    if not isinstance(value, str | bytes | list | dict):
        raise error("TypeError", f"a {type_name(value)} has no length")
    return len(value)


def _keys(map: Any) -> list[str]:  # noqa: A002
    _need("map", map)
    return list(map)


def _default(value: Any, default: Any) -> Any:
    return default if value is None else value


def _if(condition: Any, ifTrue: Any, ifFalse: Any) -> Any:
    return ifTrue if truth(condition, "the condition of if()") else ifFalse


# text


# RE2, whose syntax Workflows takes, looks neither ahead nor behind, and refers to no group:
# https://github.com/google/re2/wiki/Syntax
_NOT_RE2 = re.compile(r"(?<!\\)(?:\\\\)*(\(\?<?[=!]|\(\?>|\(\?\(|\(\?P=|\\[1-9])")


def _regex(regexp: str) -> re.Pattern[str]:
    _need("string", regexp)
    if match := _NOT_RE2.search(regexp):
        raise error("ValueError", f"{regexp} isn't a regular expression: RE2 has no {match[1]}")
    try:
        return re.compile(regexp)
    except re.error as wrong:
        raise error("ValueError", f"{regexp} isn't a regular expression: {wrong}") from None


def _find_all(source: Any, substr: Any) -> list[int]:
    _need("string", source, substr)
    return [result.start() for result in re.finditer(re.escape(substr), source)]


def _find_all_regex(source: Any, regexp: Any) -> list[dict[str, Any]]:
    _need("string", source)
    return [{"index": result.start(), "match": result[0]} for result in _regex(regexp).finditer(source)]


def _match_regex(source: Any, regexp: Any) -> bool:
    _need("string", source)
    return _regex(regexp).search(source) is not None


def _replace_all(source: Any, substr: Any, repl: Any) -> str:
    _need("string", source, substr, repl)
    return str(source.replace(substr, repl))


def _replace_all_regex(source: Any, regexp: Any, repl: Any) -> str:
    _need("string", source, repl)
    # RE2 writes groups as \1, as Python does.
    return _regex(regexp).sub(repl, source)


def _split(source: Any, separator: Any) -> list[str]:
    _need("string", source, separator)
    return source.split(separator) if separator else list(source)


def _substring(source: Any, start: Any, end: Any) -> str:
    _need("string", source)
    _need("integer", start, end)
    if not 0 <= start <= end <= len(source):
        raise error("IndexError", f"index out of range: [{start}, {end}) of {len(source)}")
    return str(source[start:end])


def _text(change: Callable[[str], str]) -> Callable[[Any], str]:
    def run(source: Any) -> str:
        _need("string", source)
        return change(source)

    return run


def _encode(data: Any, charset: Any = "UTF-8") -> bytes:
    _need("string", data, charset)
    return str(data).encode(charset)


def _decode(data: Any, charset: Any = "UTF-8") -> str:
    _need("bytes", data)
    try:
        return bytes(data).decode(charset)
    except UnicodeDecodeError:
        raise error("ValueError", f"the bytes aren't {charset}") from None


# json, base64, hash


def _json_text(data: Any, indent: Any = None) -> str:
    separators = None if indent else (",", ":")
    encoded(data)  # TypeError for what has no form in JSON
    prefix = indent.get("indent") if isinstance(indent, dict) else indent
    return json.dumps(data, ensure_ascii=False, indent=prefix or None, separators=separators)


def _json_bytes(data: Any, indent: Any = None) -> bytes:
    return _json_text(data, indent).encode()


def _json_decode(data: Any) -> Any:
    if not isinstance(data, str | bytes):
        raise error("TypeError", f"must be a string or bytes, not a {type_name(data)}")
    try:
        return json.loads(data)
    except ValueError as wrong:
        raise error("ValueError", f"isn't JSON: {wrong}") from None


def _base64_encode(data: Any, padding: Any = True) -> str:
    _need("bytes", data)
    text = base64.b64encode(data).decode()
    return text if padding else text.rstrip("=")


def _base64_decode(data: Any, padding: Any = True) -> bytes:
    _need("string", data)
    try:
        return base64.b64decode(data if padding else data + "=" * (-len(data) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise error("ValueError", "isn't base64") from None


def _digest(algorithm: Any) -> str:
    if algorithm not in _ALGORITHMS:
        raise error("ValueError", f"algorithm {algorithm} must be one of {', '.join(_ALGORITHMS)}")
    return str(algorithm).lower()


def _checksum(data: Any, algorithm: Any) -> bytes:
    _need("bytes", data)
    return hashlib.new(_digest(algorithm), data).digest()


def _hmac(key: Any, data: Any, algorithm: Any) -> bytes:
    _need("bytes", key, data)
    return hmac.digest(key, data, _digest(algorithm))


# list, map, math, time


def _concat(objs: Any, val: Any) -> list[Any]:
    _need("list", objs)
    return [*objs, val]


def _prepend(objs: Any, val: Any) -> list[Any]:
    _need("list", objs)
    return [val, *objs]


def _map_get(map: Any, keys: Any) -> Any:  # noqa: A002
    """Null where a key isn't there."""
    for key in keys if isinstance(keys, list) else [keys]:
        if not isinstance(map, dict):
            return None
        map = map.get(key)  # noqa: A001
    return map


def _map_delete(map: Any, key: Any) -> dict[str, Any]:  # noqa: A002
    _need("map", map)
    return {name: value for name, value in map.items() if name != key}


def _merge(first: Any, second: Any) -> dict[str, Any]:
    _need("map", first, second)
    return {**first, **second}


def _merge_nested(first: Any, second: Any) -> dict[str, Any]:
    merged = _merge(first, second)
    for key in first.keys() & second.keys():
        if isinstance(first[key], dict) and isinstance(second[key], dict):
            merged[key] = _merge_nested(first[key], second[key])
    return merged


def _abs(x: Any) -> Any:
    _numbers(x)
    return abs(x)


def _floor(x: Any) -> int:
    _numbers(x)
    floor: int = math.floor(x)
    return floor


def _max(x: Any, y: Any) -> Any:
    _numbers(x, y)
    return max(x, y)


def _min(x: Any, y: Any) -> Any:
    _numbers(x, y)
    return min(x, y)


def _time_format(seconds: Any, timezone: Any = "UTC") -> str:
    _numbers(seconds)
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, TypeError):
        raise error("ValueError", f"unknown time zone {timezone}") from None
    moment = datetime.fromtimestamp(seconds, UTC).astimezone(zone)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _time_parse(value: Any) -> float:
    _need("string", value)
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        raise error("ValueError", f"{value} isn't a time of ISO 8601") from None


# Retries: https://cloud.google.com/workflows/docs/reference/stdlib/http/default_retry_predicate


def _retries(codes: tuple[int, ...], kinds: tuple[str, ...]) -> Callable[[Any], bool]:
    def predicate(exception: Any) -> bool:
        if not isinstance(exception, dict):
            return False
        return exception.get("code") in codes or bool({*kinds} & {*(exception.get("tags") or ())})

    return predicate


def _policy(predicate: str) -> dict[str, Any]:
    return {"predicate": Function(predicate), "max_retries": 5, "backoff": dict(_BACKOFF)}


_ANY, _NON_IDEMPOTENT = "http.default_retry_predicate", "http.default_retry_predicate_non_idempotent"
CONSTANTS: Mapping[str, Any] = {
    "http.default_retry": _policy(_ANY),
    "http.default_retry_non_idempotent": _policy(_NON_IDEMPOTENT),
    "retry.default_backoff": dict(_BACKOFF),
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "int": _int,
    "double": _double,
    "string": _string,
    "len": _len,
    "keys": _keys,
    "default": _default,
    "get_type": type_name,
    "if": _if,
    "text.find_all": _find_all,
    "text.find_all_regex": _find_all_regex,
    "text.match_regex": _match_regex,
    "text.replace_all": _replace_all,
    "text.replace_all_regex": _replace_all_regex,
    "text.split": _split,
    "text.substring": _substring,
    "text.to_lower": _text(str.lower),
    "text.to_upper": _text(str.upper),
    "text.url_encode": _text(lambda source: quote(source, safe="")),
    "text.url_encode_plus": _text(quote_plus),
    "text.url_decode": _text(unquote),
    "text.encode": _encode,
    "text.decode": _decode,
    "json.encode": _json_bytes,
    "json.encode_to_string": _json_text,
    "json.decode": _json_decode,
    "base64.encode": _base64_encode,
    "base64.decode": _base64_decode,
    "hash.compute_checksum": _checksum,
    "hash.compute_hmac": _hmac,
    "list.concat": _concat,
    "list.prepend": _prepend,
    "map.get": _map_get,
    "map.delete": _map_delete,
    "map.merge": _merge,
    "map.merge_nested": _merge_nested,
    "math.abs": _abs,
    "math.floor": _floor,
    "math.max": _max,
    "math.min": _min,
    "time.format": _time_format,
    "time.parse": _time_parse,
    "uuid.generate": lambda: str(uuid.uuid4()),
    _ANY: _retries((429, 502, 503, 504), ("ConnectionError", "ConnectionFailedError", "TimeoutError")),
    _NON_IDEMPOTENT: _retries((429, 503), ("ConnectionFailedError",)),
    "retry.always": lambda exception: True,
    "retry.never": lambda exception: False,
}


@cache
def parameters(name: str) -> tuple[tuple[str, ...], int]:
    """Return the names of a function's parameters, and how many of them must be given."""
    result = inspect.signature(FUNCTIONS[name]).parameters.values()
    return tuple(item.name for item in result), sum(item.default is item.empty for item in result)


def call(name: str, arguments: list[Any]) -> Any:
    """Return what a function answers; TypeError of the workflow for a wrong number of arguments."""
    names, needed = parameters(name)
    if not needed <= len(arguments) <= len(names):
        raise error("TypeError", f"{name} takes {needed} to {len(names)} arguments, not {len(arguments)}")
    return copy.deepcopy(FUNCTIONS[name](*arguments))
