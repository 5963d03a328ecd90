"""From the text that Pulumi hands a program to typed settings, or to all problems at once.

Pulumi gives every value as text, structures as JSON; `sources.py` makes the same of a YAML
file. So there is one way in, with or without Pulumi.
"""

from __future__ import annotations

import json
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field
from difflib import get_close_matches
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from infra.errors import Problem
from infra.settings.schema import RecordRule, keys_of, record_of

T = TypeVar("T")
SHOWN_CHARACTERS = 80


class _WrongTypeError(Exception):
    """A value of the wrong type: what it should be, and how to write it."""

    def __init__(self, rule: str, fix: str):
        super().__init__(rule, fix)
        self.rule, self.fix = rule, fix


class Parser:
    """Reads one environment's settings; `problems` grows, `broken` holds the paths that have no value."""

    def __init__(self, record_rules: Mapping[type, RecordRule], problems: Sequence[Problem]) -> None:
        """`record_rules`: see `Layer`, of all layers. `problems` are known from reading."""
        self.record_rules = record_rules
        self.problems = [*problems]
        self.broken = {problem.path for problem in problems}

    def report(self, path: str, value: Any, rule: str, fix: str) -> None:
        """Note a problem at `path`."""
        self.problems.append(Problem(path, shown(value), rule, fix))
        self.broken.add(path)

    def section(self, prefix: str, section: type[T], raw: Mapping[str, Any], separator: str = ":") -> T:
        """Parse a section. A field with a problem gets its default, or the empty value."""
        known = keys_of(section)
        hints = get_type_hints(section)
        for key in sorted(raw.keys() - known.keys()):
            near = self.unknown(prefix, key, raw[key], list(known), separator)
            if near and near not in raw:  # its default isn't what was meant
                self.broken.add(f"{prefix}{separator}{near}")
        values: dict[str, Any] = {}
        for key, item in known.items():
            path = f"{prefix}{separator}{key}"
            if key in raw:
                values[item.name] = self.value(path, item, hints[item.name], raw[key])
            elif item.default is MISSING and item.default_factory is MISSING:
                values[item.name] = empty(hints[item.name])
                if any(problem.path == path for problem in self.problems):
                    continue
                rule = f"required ({item.metadata['about']})"
                written = path if separator == ":" else key
                self.report(path, None, rule, f"add {written}: {item.metadata['example']}")
        return section(**values)

    def unknown(self, prefix: str, key: str, value: Any, known: list[str], separator: str) -> str | None:
        """Refuse a key that no layer reads, and say which one was probably meant; that is returned."""
        near = nearest(key, known)
        fix = f"perhaps {prefix}{separator}{near} was meant" if near else "remove it"
        rule = "only the settings in docs/settings.md exist"
        self.problems.append(Problem(f"{prefix}{separator}{key}", shown(value), rule, fix))
        return near

    def value(self, path: str, item: Field[Any], hint: Any, raw: Any) -> Any:
        """Parse a field; report a broken rule and return the default."""
        before = len(self.problems)
        try:
            parsed = self.typed(path, item, hint, raw)
        except _WrongTypeError as wrong:
            self.report(path, raw, wrong.rule, wrong.fix)
        else:
            if record_of(hint):  # which fields of which item, is noted there
                return parsed
            if len(self.problems) > before:
                self.broken.add(path)
            # The good items stay, so that rules between settings can be checked with them.
            if get_origin(hint) is tuple:
                return self.once(path, parsed)
            if len(self.problems) == before or get_origin(hint) is Mapping:
                return parsed
        if item.default is not MISSING:
            return item.default
        return empty(hint)

    def typed(self, path: str, item: Field[Any], hint: Any, raw: Any) -> Any:
        """Parse a value of type `hint`, and check its rule."""
        if get_origin(hint) in (Union, types.UnionType):
            hint = next(choice for choice in get_args(hint) if choice is not type(None))
        rule, key_rule = item.metadata["rule"], item.metadata["key_rule"]
        origin = get_origin(hint)
        if origin is tuple:
            record = record_of(hint)
            items = decoded(raw, list, "a list", f"write it as a list: {item.metadata['example'] or '[…]'}")
            if record:
                return self.records(path, record, items)
            good = (self.element(f"{path}[{i}]", item_, rule) for i, item_ in enumerate(items))
            return tuple(element for element in good if element is not None)
        if origin is not None:
            pairs = decoded(raw, dict, "keys with values", "write one `key: value` a line under it")
            good_keys = {key for key in pairs if self.obeys(f"{path}.{key}", key, key_rule)}
            values = {
                key: self.element(f"{path}.{key}", pair_value, rule) for key, pair_value in pairs.items()
            }
            return {
                key: element for key, element in values.items() if element is not None and key in good_keys
            }
        value = SCALARS[hint](raw)
        self.obeys(path, value, rule, raw)
        return value

    def obeys(self, path: str, value: Any, rule: Any, raw: Any = None) -> bool:
        """Return True if `value` obeys `rule`; report it otherwise."""
        if rule is None or rule.ok(str(value)):
            return True
        self.report(path, value if raw is None else raw, rule.text, rule.fix)
        return False

    def element(self, path: str, raw: Any, rule: Any) -> str | None:
        """Parse a text of a list or mapping; report a broken rule and return None."""
        try:
            return raw if self.obeys(path, text(raw), rule) else None
        except _WrongTypeError as wrong:
            self.report(path, raw, wrong.rule, wrong.fix)
            return None

    def once(self, path: str, items: tuple[str, ...]) -> tuple[str, ...]:
        """Drop repeated items of a list, and report them."""
        for value, times in Counter(items).items():
            if times > 1:
                output = Problem(path, f'"{value}" {times} times', "each item once", "remove the repetition")
                self.problems.append(output)
        return tuple(dict.fromkeys(items))

    def records(self, path: str, kind: type[T], items: list[Any]) -> tuple[T, ...]:
        """Parse the items. A field with a problem gets a value that breaks no further rule; `broken` names
        it.
        """
        parsed: list[T] = []
        required = [key for key, item in keys_of(kind).items() if item.default is item.default_factory]
        hints = get_type_hints(kind)
        for i, raw in enumerate(items):
            if not isinstance(raw, dict):
                examples = [f"{key}: {'[…]' if get_origin(hints[key]) is tuple else '…'}" for key in required]
                what = kind.__name__.removesuffix("Settings").lower()
                fix = f"write {{{', '.join([*examples, '…'])}}}"
                self.report(f"{path}[{i}]", raw, f"each {what} is keys with values", fix)
                continue
            record = self.section(f"{path}[{i}]", kind, raw, separator=".")
            if rule := self.record_rules.get(kind):
                record, problems = rule(f"{path}[{i}]", record, raw, self.broken)
                self.problems.extend(problems)
            parsed.append(record)
        return tuple(parsed)


def nearest(key: str, known: list[str]) -> str | None:
    """Return the known key closest to `key`, ignoring case, `_` and `-`; None if none is close."""
    plain = {key_.lower(): key_ for key_ in known}
    near = get_close_matches(key.lower().replace("_", "").replace("-", ""), list(plain), n=1, cutoff=0.6)
    return plain[near[0]] if near else None


def shown(value: Any) -> str:
    """Format a value for a message: text in quotes, everything else as in the file."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        try:
            structured = not isinstance(json.loads(value), str)
        except ValueError:
            structured = False
        written = value if structured else json.dumps(value, ensure_ascii=False)
    else:
        written = json.dumps(value, ensure_ascii=False)
    if not written.isprintable():  # such as U+2028, which a user couldn't see
        written = written.encode("ascii", "backslashreplace").decode()
    return written if len(written) <= SHOWN_CHARACTERS else written[: SHOWN_CHARACTERS - 1] + "…"


def empty(hint: Any) -> Any:
    """Return a placeholder of the type for a required field without value."""
    origin = get_origin(hint)
    return () if origin is tuple else "" if origin is None else {}


def decoded(raw: Any, kind: type[T], name: str, fix: str) -> T:
    """Decode a structure, given as such or as JSON, as Pulumi does."""
    try:
        value = json.loads(raw) if isinstance(raw, str) else raw
    except ValueError:
        value = raw
    if not isinstance(value, kind):
        raise _WrongTypeError(name, fix)
    return value


def text(raw: Any) -> str:
    """Text. A number in a structure is refused: YAML drops leading zeros and more."""
    if not isinstance(raw, str):
        raise _WrongTypeError("text", "put it in quotes")
    return raw


def _boolean(raw: Any) -> bool:
    if str(raw).lower() not in ("true", "false"):
        raise _WrongTypeError("true or false", "write true or false")
    return str(raw).lower() == "true"


def _whole(raw: Any) -> int:
    try:
        if isinstance(raw, bool | float):
            raise ValueError
        return int(str(raw))
    except ValueError:
        raise _WrongTypeError("a whole number", "write digits only, without a unit") from None


def _number(raw: Any) -> float:
    try:
        if isinstance(raw, bool):
            raise ValueError
        return float(str(raw))
    except ValueError:
        raise _WrongTypeError("a number", "write a number, such as 0.5") from None


SCALARS: dict[Any, Any] = {str: text, bool: _boolean, int: _whole, float: _number}
