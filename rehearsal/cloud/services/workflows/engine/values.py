"""Values of a workflow, what operators do with them, and its errors.

Types are those of JSON, with integers of 64 bits apart from doubles, and bytes. An error is a value too, a
map with `tags`, `message` and maybe `code`, `headers` and `body`, or whatever `raise` was given
(https://cloud.google.com/workflows/docs/reference/syntax/error-types).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAX_STRING_BYTES = 256 << 10  # https://cloud.google.com/workflows/quotas
_INT_BITS = 64
# Errors that are one of another kind too.
_KINDS = {"KeyError": "LookupError", "IndexError": "LookupError", "ZeroDivisionError": "ArithmeticError"}


class SourceError(ValueError):
    """A definition that can't be deployed: what is wrong, and in which line."""


class UncoveredError(SourceError):
    """A definition that Google would take, and this engine doesn't."""


@dataclass(frozen=True)
class Place:
    """A step, as stack traces name it; `line` and `column` from 1."""

    step: str
    routine: str
    line: int
    column: int


@dataclass
class Raised(Exception):  # noqa: N818  # an error of the workflow, not of ours
    """An error of a workflow, on its way out. `trace`: the steps that it came through, innermost first."""

    value: Any
    trace: list[Place] = field(default_factory=list)

    @property
    def context(self) -> str:
        """Google's text for an uncaught error."""
        value = self.value
        tags: list[str] = (value.get("tags") or []) if isinstance(value, dict) else []
        if isinstance(value, dict) and isinstance(value.get("message"), str) and tags:
            text = value["message"] if "HttpError" in tags else f"{tags[0]}: {value['message']}"
        else:
            text = f"RuntimeError: {encoded(value)}"
        where = [f'in step "{at.step}", routine "{at.routine}", line: {at.line}' for at in self.trace]
        return "\n".join([text, *where])


def error(tag: str, message: str, **more: Any) -> Raised:
    """Return an error with this tag, and those of the kinds that it belongs to."""
    tags = [tag, *([_KINDS[tag]] if tag in _KINDS else [])]
    return Raised({"tags": tags, "message": message, **more})


@dataclass(frozen=True)
class Function:
    """A subworkflow or a function of the library, as a value (`retry.predicate`)."""

    name: str


def type_name(value: Any) -> str:
    """As get_type() calls it."""
    if value is None:
        return "null"
    kinds: tuple[tuple[type, str], ...] = (
        (bool, "boolean"), (int, "integer"), (float, "double"), (str, "string"), (bytes, "bytes"),
        (list, "list"), (dict, "map"),
    )  # fmt: skip
    return next((name for kind, name in kinds if isinstance(value, kind)), "function")


def encoded(value: Any) -> str:
    """JSON, as results and payloads are."""

    def other(unknown: Any) -> Any:
        if isinstance(unknown, bytes):
            raise error("TypeError", "bytes can't be encoded as JSON")
        raise error("TypeError", f"a {type_name(unknown)} can't be encoded as JSON")

    return json.dumps(value, ensure_ascii=False, default=other)


def size(value: Any) -> int:
    """Bytes of memory (https://cloud.google.com/workflows/docs/reference/syntax/variables#memory-usage)."""
    if isinstance(value, str):
        return 8 + len(value.encode())
    if isinstance(value, bytes):
        return 8 + len(value)
    if isinstance(value, list):
        return 8 + sum(map(size, value))
    if isinstance(value, dict):
        return 8 + sum(size(key) + size(item) for key, item in value.items())
    return 8


def is_number(value: Any) -> bool:
    """Return an integer or a double; true and false aren't."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def truth(value: Any, what: str) -> bool:
    """Return a boolean; TypeError for everything else."""
    if not isinstance(value, bool):
        raise error("TypeError", f"{what} must be a boolean, not a {type_name(value)}")
    return value


def _sum(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        if len((left + right).encode()) > MAX_STRING_BYTES:
            raise error("ResourceLimitError", f"the string is larger than {MAX_STRING_BYTES} bytes")
        return left + right
    return _arithmetic("+", left, right, lambda a, b: a + b)


def _arithmetic(sign: str, left: Any, right: Any, run: Callable[[Any, Any], Any]) -> Any:
    if not (is_number(left) and is_number(right)):
        names = f"{type_name(left)} and {type_name(right)}"
        raise error("TypeError", f"unsupported operand types for {sign}: {names}")
    try:
        result = run(left, right)
    except ZeroDivisionError:
        raise error("ZeroDivisionError", "division by zero") from None
    if isinstance(result, int) and not -(1 << _INT_BITS - 1) <= result < 1 << _INT_BITS - 1:
        raise error("ValueError", f"the result of {sign} isn't an integer of {_INT_BITS} bits")
    return result


def equal(left: Any, right: Any) -> bool:
    """Numbers by value, true and false as neither; maps and lists by what they hold."""
    if isinstance(left, bool) is not isinstance(right, bool):
        return False
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return bool(left == right)


def _order(sign: str, run: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare(left: Any, right: Any) -> bool:
        if not ((is_number(left) and is_number(right)) or (isinstance(left, str) and isinstance(right, str))):
            raise error("TypeError", f"can't compare {type_name(left)} {sign} {type_name(right)}")
        return run(left, right)

    return compare


def _contains(left: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return left in right if isinstance(left, str) else False
    if not isinstance(right, list):
        raise error("TypeError", f"'in' needs a list or a map, not a {type_name(right)}")
    return any(equal(left, item) for item in right)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": _sum,
    "-": lambda a, b: _arithmetic("-", a, b, lambda x, y: x - y),
    "*": lambda a, b: _arithmetic("*", a, b, lambda x, y: x * y),
    "/": lambda a, b: _arithmetic("/", a, b, lambda x, y: x / y),
    "//": lambda a, b: _arithmetic("//", a, b, lambda x, y: x // y),
    "%": lambda a, b: _arithmetic("%", a, b, lambda x, y: x % y),
    "==": equal,
    "!=": lambda a, b: not equal(a, b),
    "<": _order("<", lambda a, b: a < b),
    "<=": _order("<=", lambda a, b: a <= b),
    ">": _order(">", lambda a, b: a > b),
    ">=": _order(">=", lambda a, b: a >= b),
    "in": _contains,
}


def member(of: Any, key: Any) -> Any:
    """`of.key` or `of[key]`."""
    if isinstance(of, dict):
        if not isinstance(key, str):
            raise error("TypeError", f"a key of a map must be a string, not a {type_name(key)}")
        if key not in of:
            raise error("KeyError", f"key not found: {key}")
        return of[key]
    if isinstance(of, list):
        return of[position(of, key)]
    raise error("TypeError", f"a {type_name(of)} has no members (asked for {encoded(key)})")


def position(of: list[Any], key: Any) -> int:
    """Return an index that is in the list."""
    if isinstance(key, bool) or not isinstance(key, int):
        raise error("TypeError", f"an index must be an integer, not a {type_name(key)}")
    if not 0 <= key < len(of):
        raise error("IndexError", f"index out of range: {key} of {len(of)}")
    return key
