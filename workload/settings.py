"""Settings in TOML: files that extend one another, overrides on the command line, rules of fields.

A field declares its rule: `ruled(10, at_least(1))`.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from settings_schema.parser import Parser
from settings_schema.rules import Rule
from settings_schema.schema import setting
from workload.errors import ConfigError, Problem

WORDS = tuple[str, ...]  # type of a field that accepts a word or a list of words
MOST = 2**31 - 1  # of whole numbers: XLA and JAX count in 32 bits


def matching(pattern: re.Pattern[str], text: str) -> Rule:
    """Require an empty text or a match of `pattern`; `text` describes it."""
    return Rule(lambda value: not value or pattern.fullmatch(value) is not None, text)


def ruled(default: Any, rule: Rule, most: int = MOST) -> Any:
    """Declare a dataclass field with a default and a rule; whole numbers are at most `most`."""
    return setting(default=default, rule=rule, most=most if type(default) is int else None)


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
    parser = Parser()
    built: Any = parser.section(prefix, kind, table)
    problems += parser.problems
    return built


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a tree's values by their key paths."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return values
