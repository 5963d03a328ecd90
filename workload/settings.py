"""Parser from TOML to frozen dataclasses: reports all problems, and the nearest key to an unknown one.

A field declares its rule: `ruled(10, at_least(1))`.
"""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, get_type_hints

from workload.errors import ConfigError, Problem

WORDS = tuple[str, ...]  # type of a field that accepts a word or a list of words
Rule = tuple[str, Callable[[Any], bool]]
MOST = 2**31 - 1  # of whole numbers: XLA and JAX count in 32 bits


def at_least(low: float) -> Rule:
    """Require at least `low`."""
    return f"must be at least {low:g}", lambda value: value >= low


def between(low: float, high: float) -> Rule:
    """Require a value from `low` to `high`, both included."""
    return f"must lie between {low:.10g} and {high:.10g}", lambda value: low <= value <= high


def below(high: float) -> Rule:
    """Require at least 0 and less than `high`."""
    return f"must be at least 0 and less than {high:g}", lambda value: 0 <= value < high


def one_of(*choices: str) -> Rule:
    """Require a value in `choices`."""
    return f"must be one of {', '.join(choices)}", lambda value: value in choices


def matching(pattern: re.Pattern[str], rule: str) -> Rule:
    """Require an empty text or a match of `pattern`; `rule` describes it."""
    return rule, lambda value: not value or pattern.fullmatch(value) is not None


def above(low: float) -> Rule:
    """Require more than `low`."""
    return f"must be greater than {low:g}", lambda value: value > low


def ruled(default: Any, rule: Rule, most: int = MOST) -> Any:
    """Declare a dataclass field with a default and a rule; whole numbers are at most `most`."""
    return field(default=default, metadata={"rule": rule, "most": most})


def packaged(folder: Traversable) -> list[str]:
    """List the configs in a folder of the package."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read(name: str, folder: Traversable, within: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read the tables of a TOML file, merged over those of its `base`.

    Args:
        name: a path, or the name of a file in `folder`.
        folder: of packaged files.
        within: files that extend this one.

    Raises:
        ConfigError: the file is missing or isn't TOML.
    """
    path = Path(name)
    source = str(path.resolve()) if path.is_file() else f"packaged {path.name}"
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            rule = f"can't be read: {error.strerror if isinstance(error, OSError) else error}"
            fix = "let this user read it; a config is UTF-8 text"
            raise ConfigError(name, [Problem("CONFIG", name, rule, fix)]) from None
    elif path.name in packaged(folder) and (name == path.name or within):
        text = (folder / path.name).read_text()
    else:
        fix = f"use a path, or one of {', '.join(packaged(folder))}"
        raise ConfigError(
            within[0].removeprefix("packaged ") if within else name,
            [Problem("CONFIG", name, "no such file or packaged config", fix)],
        )
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        fix = "see https://toml.io for the syntax"
        raise ConfigError(name, [Problem("CONFIG", name, f"is not TOML: {error}", fix)]) from None
    base = table.pop("base", None)
    if base is None:
        return table
    beside = path.parent / str(base)
    # A user's config may have the name of its packaged base.
    is_beside = path.is_file() and beside.is_file() and beside.resolve() != path.resolve()
    below = str(beside.resolve()) if is_beside else f"packaged {base}"
    if not isinstance(base, str) or below in (*within, source):
        fix = "name the config that this one extends"
        raise ConfigError(name, [Problem("base", repr(base), "must name another config", fix)])
    return _merged(read(str(beside) if is_beside else base, folder, (*within, source)), table)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if nested else value
    return merged


def override(table: dict[str, Any], overrides: Sequence[str]) -> list[Problem]:
    """Set `key=value` strings in a TOML table; return their problems."""
    problems = []
    for override in overrides:
        key, equals, text = override.partition("=")
        *parents, leaf = key.strip().split(".")
        if not equals or not leaf:
            problems.append(Problem("--set", override, "must read key=value", "e.g. --set train.steps=20"))
            continue
        target = table
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                problems.append(Problem("--set", override, f"{parent} is not a table", "name a table.key"))
                break
        else:
            target[leaf] = _toml_value(text.strip())
    return problems


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word, as a shell leaves it


def build(kind: type, table: Mapping[str, Any], prefix: str, problems: list[Problem]) -> Any:
    """Create a `kind` from a TOML table; append violations to `problems`."""
    hints = get_type_hints(kind)
    known = {entry.name: entry for entry in fields(kind)}
    for key in table.keys() - known.keys():
        nearest = difflib.get_close_matches(key, known, n=1)
        fix = f"did you mean {prefix}{nearest[0]}?" if nearest else f"remove it; known are {', '.join(known)}"
        problems.append(Problem(f"{prefix}{key}", _shown(table[key]), "unknown key", fix))
    values: dict[str, Any] = {}
    for key, entry in known.items():
        if key not in table:
            continue
        value, hint, path = table[key], hints[key], f"{prefix}{key}"
        if is_dataclass(hint):
            if isinstance(value, dict):
                values[key] = build(hint, value, f"{path}.", problems)  # type: ignore[arg-type]
            else:
                problems.append(Problem(path, _shown(value), "must be a table", f"write [{path}]"))
            continue
        if hint is float and type(value) is int:
            value = float(value) if abs(value) < 2**1023 else math.inf
        if hint == WORDS and (type(value) is str or _all_strings(value)):
            values[key] = (value,) if isinstance(value, str) else tuple(value)
            continue
        if type(value) is not hint:
            rule = f"must be {_NOUNS[hint]}, not {_NOUNS.get(type(value), type(value).__name__)}"
            problems.append(Problem(path, _shown(value), rule, f"the default is {_shown(entry.default)}"))
            continue
        rule, holds = entry.metadata.get("rule", ("", lambda _: True))
        if hint is float and not math.isfinite(value):
            rule, holds = "must be finite", math.isfinite
        if hint is int and value > (most := entry.metadata.get("most", MOST)):
            rule, holds = f"must be at most {most}", lambda _: False
        if not holds(value):
            problems.append(Problem(path, _shown(value), rule, f"the default is {_shown(entry.default)}"))
            continue
        values[key] = value
    return kind(**values)


def _all_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


_NOUNS = {
    WORDS: "a list of words",
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    list: "a list",
}


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)
