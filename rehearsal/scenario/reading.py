"""From YAML values to frozen dataclasses, with every problem named by its key path."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Problems:
    """Collects what is wrong with a file, so that all of it is said at once."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, path: str, rule: str) -> None:
        """One problem: where, and the rule that is broken."""
        self.lines.append(f"{path}: {rule}")


def read(cls: type[T], value: object, path: str, problems: Problems) -> T | None:
    """`value` as an instance of a dataclass; None, with at least one problem added, where it isn't one.

    A class whose `scalar` names a field also takes that field's value alone: `up: storage`. Values are
    held against the annotations; a `check` method of the class may yield further broken rules.
    """
    assert dataclasses.is_dataclass(cls)
    scalar = getattr(cls, "scalar", None)
    if scalar and not isinstance(value, Mapping):
        value = {scalar: value}
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        problems.add(path, f"expected a mapping, got {_shown(value)}")
        return None
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    hints = typing.get_type_hints(cls)
    before = len(problems.lines)
    known = {name.rstrip("_"): name for name in fields}  # `from_` is `from` in the file
    arguments: dict[str, Any] = {}
    for key, given in value.items():
        if key not in known:
            problems.add(f"{path}.{key}", f"unknown key{nearest(str(key), list(known))}")
            continue
        arguments[known[key]] = convert(hints[known[key]], given, f"{path}.{key}", problems)
    for key, name in known.items():
        field = fields[name]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and key not in value:
            problems.add(f"{path}.{key}", "missing")
    if len(problems.lines) > before:
        return None
    instance = cls(**arguments)
    for rule in getattr(instance, "check", lambda: ())():
        problems.add(path, rule)
    return typing.cast(T, instance) if len(problems.lines) == before else None


def convert(hint: Any, value: object, path: str, problems: Problems) -> Any:
    """`value` as the annotated type; adds a problem where it is another's."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        hint = next(argument for argument in arguments if argument is not type(None))
        return convert(hint, value, path, problems)
    if origin is typing.Literal:
        if value not in arguments:
            choices = ", ".join(map(str, arguments))
            problems.add(path, f"{_shown(value)} is none of {choices}{nearest(str(value), arguments)}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            problems.add(path, f"expected a list, got {_shown(value)}")
            return ()
        inner = arguments[0] if arguments[-1] is Ellipsis else None
        if inner is None and len(value) != len(arguments):
            problems.add(path, f"expected {len(arguments)} values, got {len(value)}")
            return ()
        hints = [inner] * len(value) if inner else list(arguments)
        pairs = enumerate(zip(hints, value, strict=True))
        return tuple(convert(each, item, f"{path}[{i}]", problems) for i, (each, item) in pairs)
    if origin is list:
        if not isinstance(value, list):
            problems.add(path, f"expected a list, got {_shown(value)}")
            return []
        return [convert(arguments[0], item, f"{path}[{i}]", problems) for i, item in enumerate(value)]
    if origin is dict or hint is dict:
        if not isinstance(value, Mapping):
            problems.add(path, f"expected a mapping, got {_shown(value)}")
            return {}
        return dict(value)
    if dataclasses.is_dataclass(hint):
        return read(typing.cast(type[Any], hint), value, path, problems)
    if hint is Any:
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        problems.add(path, f"expected {_NAMES[hint]}, got {_shown(value)}")
    return value


_NAMES: dict[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def nearest(given: str, known: typing.Iterable[object]) -> str:
    """`; did you mean X?`, or the choices, or nothing where there are none."""
    names = [str(name) for name in known]
    close = difflib.get_close_matches(given, names, 1, 0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known: {', '.join(names)}" if names else ""


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value) if isinstance(value, str) else str(value).lower()
