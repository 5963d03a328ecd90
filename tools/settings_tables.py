"""`python -m tools.settings_tables`: the tables of docs/settings.md, made from the classes."""

import types
from dataclasses import MISSING, Field
from typing import Any, Union, get_args, get_origin, get_type_hints

from infra.engine.registry import section_classes
from infra.settings.rules import Rule
from infra.settings.schema import keys_of, record_of, records
from views.table import markdown

_NAMES: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def tables() -> str:
    """All tables as Markdown, one a section and one for each list of records."""
    parts = []
    for name, kind in section_classes().items():
        parts.append(f"### `{name}:`\n\n{_about(kind)}\n\n{_table(kind, f'{name}:')}")
        for key, item in records(kind).items():
            parts.append(f"### An item of `{name}:{key}`\n\n{_about(item)}\n\n{_table(item, '')}")
    return "\n\n".join(parts)


def _about(kind: type) -> str:
    return (kind.__doc__ or "").strip()


def _table(kind: type, prefix: str) -> str:
    hints = get_type_hints(kind)
    rows = []
    for key, item in keys_of(kind).items():
        rule: Rule | None = item.metadata["rule"]
        cells = type_name(hints[item.name]), default_of(item), item.metadata["about"]
        rows.append((f"`{prefix}{key}`", *cells, rule.text if rule else ""))
    return "\n".join(markdown(("setting", "type", "default", "meaning", "rule"), rows))


def type_name(hint: Any) -> str:
    """Return a type in words: tuple[str, ...] is "list of text"."""
    if get_origin(hint) in (Union, types.UnionType):
        return type_name(next(choice for choice in get_args(hint) if choice is not type(None)))
    if get_origin(hint) is tuple:
        record = record_of(hint)
        plural = record and f"{record.__name__.removesuffix('Settings').lower()}s"
        return f"list of {plural or type_name(get_args(hint)[0])}"
    return _NAMES.get(hint, "keys with text")


def default_of(item: "Field[Any]") -> str:
    """Return a default as it would be written in the file; "required" and "none" in words."""
    if item.default_factory is not MISSING:
        return "`{}`"
    if item.default is MISSING:
        return "**required**"
    if item.default is None:
        return "none"
    if isinstance(item.default, bool):
        return f"`{str(item.default).lower()}`"
    if isinstance(item.default, tuple):
        return f"`[{', '.join(item.default)}]`"
    return f"`{item.default}`"


if __name__ == "__main__":
    print(tables())
