"""Parser from mappings to frozen dataclasses: it collects all problems.

Values have their types, as in TOML and JSON, or are the texts that Pulumi passes on, structures as JSON.
"""

from __future__ import annotations

import contextlib
import json
import math
import textwrap
import types
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from settings_schema.problem import Problem
from settings_schema.rules import SHORT, TEXT, Rule
from settings_schema.schema import former, hints_of, once_a_class, plain, record_of

T = TypeVar("T")
SHOWN_CHARACTERS = 80
NOUNS = {str: "text", bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}
_FIXES = {
    str: "put it in quotes",
    bool: "write true or false",
    int: "write digits only, without a unit",
    float: "write a number, such as 0.5",
    Path: "put it in quotes",
}

RecordRule = Callable[[str, Any, dict[str, Any], set[str]], tuple[Any, Sequence[Problem]]]
"""Rule between the fields of a list's item.

Called with the item's path, the item, its text, and the broken paths, to which it adds. Returns the item as
other rules can read it, and the problems.
"""


class _WrongTypeError(Exception):
    """A value of the wrong type: the right one, and how to write it."""

    def __init__(self, noun: str, fix: str):
        super().__init__(noun, fix)
        self.rule, self.fix = f"must be {noun}", fix


@once_a_class
def fields_of(kind: type) -> Mapping[str, Field[Any]]:
    """Return the fields of a dataclass by name."""
    return {item.name: item for item in fields(kind)}


class Parser:
    """Parser of one source.

    Attributes:
        problems: all so far.
        broken: paths that have no usable value.
    """

    def __init__(
        self,
        keys: Callable[[type], Mapping[str, Field[Any]]] = fields_of,
        *,
        texts: bool = False,
        record_rules: Mapping[type, RecordRule] | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        """Create a parser.

        Args:
            keys: fields of a dataclass by the keys that users write.
            texts: values may be texts, structures JSON, as Pulumi passes them.
            record_rules: by the class of a list's items.
            problems: known from reading the source.
        """
        self._keys, self._texts, self._record_rules = keys, texts, record_rules or {}
        self.problems = [*problems]
        self.broken = {problem.path for problem in problems}

    def report(self, path: str, value: Any, rule: str, fix: str) -> None:
        """Note a problem at `path`."""
        self.problems.append(Problem(path, shown(value, self._texts), rule, fix))
        self.broken.add(path)

    def section(self, prefix: str, kind: type[T], raw: Mapping[str, Any]) -> T:
        """Parse a mapping whose keys have `prefix`. A field with a problem gets its default, or an empty
        value.
        """
        known, hints = self._keys(kind), hints_of(kind)
        for key in sorted(raw.keys() - known.keys()):
            if entry := former(kind, key):
                self.report(f"{prefix}{key}", raw[key], entry.rule, entry.fix)
                if entry.present and entry.present not in raw:
                    self.broken.add(f"{prefix}{entry.present}")
                continue
            near = nearest(key, known)
            listed = textwrap.shorten(f"remove it; known are {', '.join(known)}", 120, placeholder=" …")
            fix = f"did you mean {prefix}{near}?" if near else listed
            self.problems.append(Problem(f"{prefix}{key}", shown(raw[key], self._texts), "unknown key", fix))
            if near and near not in raw:  # its default isn't what was meant
                self.broken.add(f"{prefix}{near}")
        values: dict[str, Any] = {}
        for key, item in known.items():
            path = f"{prefix}{key}"
            if key in raw:
                values[item.name] = self._value(path, item, hints[item.name], raw[key])
            elif item.default is item.default_factory:  # both are missing
                values[item.name] = _fallback(item, hints[item.name])
                if any(problem.path == path for problem in self.problems):
                    continue
                about, example = item.metadata.get("about"), item.metadata.get("example", "")
                rule = f"required ({about})" if about else "required"
                self.report(path, None, rule, f"add {path if prefix.endswith(':') else key}: {example}")
        return kind(**values)

    def _value(self, path: str, item: Field[Any], hint: Any, raw: Any) -> Any:
        """Parse a field; report a broken rule and return the default."""
        before = len(self.problems)
        try:
            parsed = self._typed(path, item, hint, raw)
        except _WrongTypeError as wrong:
            self.report(path, raw, wrong.rule, wrong.fix)
            return _fallback(item, hint)
        if is_dataclass(hint) or record_of(hint):  # broken fields are noted there
            return parsed
        if len(self.problems) > before:
            self.broken.add(path)
        # The good items stay, so that rules between settings can be checked with them.
        if get_origin(hint) is tuple and self._texts:
            return self._once(path, parsed)
        if len(self.problems) == before or get_origin(hint) in (tuple, dict, Mapping):
            return parsed
        return _fallback(item, hint)

    def _typed(self, path: str, item: Field[Any], hint: Any, raw: Any) -> Any:
        """Parse a value of type `hint`, and check its rule. Raises _WrongTypeError."""
        if get_origin(hint) in (Union, types.UnionType):
            if raw is None and not self._texts:
                return None
            hint = next(choice for choice in get_args(hint) if choice is not type(None))
        rule, origin = item.metadata.get("rule"), get_origin(hint)
        if is_dataclass(hint):
            if not isinstance(raw, dict):
                raise _WrongTypeError("a table", f"write [{path}]")
            return self.section(f"{path}.", hint, raw)  # type: ignore[arg-type]
        if origin is tuple:
            return self._list(path, item, record_of(hint), raw)
        if origin is not None:
            return self._mapping(path, item, get_args(hint)[1], raw)
        value = _scalar(hint, raw, self._texts)
        most = item.metadata.get("most")
        if most is not None and value > most:
            rule = Rule(lambda _: False, f"at most {most}")
        self._obeys(path, value, rule, item, raw)
        return value

    def _list(self, path: str, item: Field[Any], record: type | None, raw: Any) -> tuple[Any, ...]:
        if not self._texts:  # typed: a word may stand alone, and may be a whole number
            raw = [raw] if isinstance(raw, str) or type(raw) is int else raw
            raw = [str(word) if type(word) is int else word for word in raw] if type(raw) is list else raw
        example = item.metadata.get("example", "")
        items = self._decoded(raw, list, "a list", f"write it as a list: {example or '[…]'}")
        if not items and (reason := item.metadata.get("not_empty")):
            fix = f"write e.g. {example}" if example else "name some, or remove it"
            self.report(path, items, reason, fix)
        if record:
            return self._records(path, record, items)
        elements = (self._element(f"{path}[{i}]", item, value) for i, value in enumerate(items))
        return tuple(element for element in elements if element is not None)

    def _once(self, path: str, items: tuple[str, ...]) -> tuple[str, ...]:
        """Drop repeated items, whatever their case, and note them."""
        first = {item.casefold(): item for item in reversed(items)}
        for folded, times in Counter(item.casefold() for item in items).items():
            if times > 1:
                repeated = Problem(
                    path, f'"{first[folded]}" {times} times', "each item once", "remove the repetition"
                )
                self.problems.append(repeated)
        return tuple(first[folded] for folded in dict.fromkeys(map(str.casefold, items)))

    def _mapping(self, path: str, item: Field[Any], element: Any, raw: Any) -> dict[str, Any]:
        pairs = self._decoded(raw, dict, "keys with values", "write one `key: value` a line under it")
        if element is not str:
            return pairs
        rule = item.metadata.get("key_rule")
        good = {key for key in pairs if self._obeys(f"{path}.{key}", key, rule, item)}
        values = {key: self._element(f"{path}.{key}", item, value) for key, value in pairs.items()}
        return {key: value for key, value in values.items() if value is not None and key in good}

    def _element(self, path: str, item: Field[Any], raw: Any) -> str | None:
        """Parse a text of a list or mapping; report a broken rule and return None."""
        if isinstance(raw, str):  # a number is refused: YAML drops leading zeros and more
            return raw if self._obeys(path, raw, item.metadata.get("rule"), item) else None
        self.report(path, raw, "must be text", _FIXES[str])
        return None

    def _records(self, path: str, kind: type[T], items: list[Any]) -> tuple[T, ...]:
        """Parse the items. A field with a problem gets a value that breaks no further rule; `broken` names
        it.
        """
        parsed: list[T] = []
        required = [key for key, item in self._keys(kind).items() if item.default is item.default_factory]
        hints = hints_of(kind)
        for i, raw in enumerate(items):
            if not isinstance(raw, dict):
                examples = [f"{key}: {'[…]' if get_origin(hints[key]) is tuple else '…'}" for key in required]
                noun = kind.__name__.removesuffix("Settings").lower()
                fix = f"write {{{', '.join([*examples, '…'])}}}"
                self.report(f"{path}[{i}]", raw, f"each {noun} is keys with values", fix)
                continue
            record = self.section(f"{path}[{i}].", kind, raw)
            if rule := self._record_rules.get(kind):
                record, problems = rule(f"{path}[{i}]", record, raw, self.broken)
                self.problems.extend(problems)
            parsed.append(record)
        return tuple(parsed)

    def _obeys(self, path: str, value: Any, rule: Rule | None, item: Field[Any], raw: Any = None) -> bool:
        """Return True if `value` obeys `rule`; report it otherwise."""
        if self._texts and isinstance(value, str):
            rule = SHORT if not SHORT.ok(value) else rule or TEXT
        if rule is None or rule.ok(value):
            return True
        otherwise = "write such a value"
        if item.default not in (MISSING, None):
            otherwise = f"the default is {shown(item.default)}"
        elif item.default is None and (example := item.metadata.get("example")):
            otherwise = f"write e.g. {example}, or remove it"
        self.report(path, value if raw is None else raw, f"must be {rule.text}", rule.fix or otherwise)
        return False

    def _decoded(self, raw: Any, kind: type[T], noun: str, fix: str) -> T:
        """Return a structure, which may be JSON where values are texts. Raises _WrongTypeError."""
        try:
            value = json.loads(raw) if isinstance(raw, str) and self._texts else raw
        except ValueError:
            value = raw
        if not isinstance(value, kind):
            raise _WrongTypeError(noun, fix)
        return value


def nearest(key: str, known: Collection[str]) -> str | None:
    """Return the known key closest to `key`, ignoring case, `_` and `-`; None if none is close."""
    spelled = {plain(known_key): known_key for known_key in known}
    near = get_close_matches(plain(key), list(spelled), n=1)
    return spelled[near[0]] if near else None


def choice(value: str, choices: Collection[str]) -> str:
    """Return the fix for a value that is none of `choices`: the closest one, otherwise some of them."""
    near = nearest(value, choices)
    listed = textwrap.shorten(f"e.g. {', '.join(filter(None, choices))}", 160, placeholder=" …")
    return f"did you mean {near}?" if near else listed


def shown(value: Any, texts: bool = True) -> str:
    """Format a value for a message: text in quotes, everything else as in the file.

    `texts`: a structure, number or truth value may be a text with JSON.
    """
    if value is None:
        return "nothing"
    written = json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, str) and texts:
        with contextlib.suppress(ValueError):
            written = value if not isinstance(json.loads(value), str) else written
    if not written.isprintable():  # such as U+2028, which a user couldn't see
        written = written.encode("ascii", "backslashreplace").decode()
    return written if len(written) <= SHOWN_CHARACTERS else written[: SHOWN_CHARACTERS - 1] + "…"


def _fallback(item: Field[Any], hint: Any) -> Any:
    """Return a field's default, or an empty value of its type."""
    if item.default is not MISSING:
        return item.default
    if item.default_factory is not MISSING:
        return item.default_factory()
    origin = get_origin(hint)
    return () if origin is tuple else "" if origin is None else {}


def _scalar(hint: Any, raw: Any, texts: bool) -> Any:
    """Convert a value to its type. Raises _WrongTypeError."""
    value: Any = raw
    try:
        if texts and isinstance(raw, str) and hint in (bool, int, float):
            # In ASCII, since int() and float() read digits of every script.
            value = {"true": True, "false": False}[raw.lower()] if hint is bool else hint(raw.encode("ascii"))
        elif hint is float and type(raw) is int:
            value = float(raw)
        elif hint is Path and isinstance(raw, str):
            value = Path(raw)
    except (KeyError, ValueError, OverflowError):
        value = None
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise _WrongTypeError(NOUNS[hint], _FIXES[hint])
    if isinstance(value, float) and not math.isfinite(value):
        raise _WrongTypeError("finite", _FIXES[float])
    return value
