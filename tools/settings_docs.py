"""Blocks of the pages about settings: of the layers in YAML, and of the workload's programs in TOML."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from infra.engine.registry import section_classes
from infra.settings.schema import keys_of, records
from settings_schema.parser import NOUNS
from settings_schema.rules import Rule
from settings_schema.schema import record_of
from tools.blocks import ROOT, table

PAGES = ROOT / "docs" / "reference" / "settings"
"""A page for each section; `make docs` adds that of a new layer."""


def add_pages(folder: Path = PAGES) -> None:
    """Create the page of each section that has none, with an empty block."""
    for name in section_classes():
        page = folder / f"{name}.md"
        if not page.exists():
            block = f"<!-- begin generated: {__name__}.section {name} -->\n\n<!-- end generated -->"
            page.write_text(f"# `{name}:`\n\n{block}\n", encoding="utf-8")


def index() -> str:
    """Return a row for each section: its page and what it is about."""
    rows = (
        (f"[`{name}:`](settings/{name}.md)", inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0])
        for name, kind in section_classes().items()
    )
    return table(("section", "about"), rows)


def section(name: str) -> str:
    """Return all settings of a section: its table, and one for each list of records."""
    kind = section_classes()[name]
    return "\n\n".join([f"{inspect.getdoc(kind)}\n\n{_table(kind, f'{name}:')}", *_items(kind, f"{name}:")])


def _items(kind: type, prefix: str) -> Iterator[str]:
    """Yield a table for each list of records of a class, and of their own lists."""
    for key, item in records(kind).items():
        about = (inspect.getdoc(item) or "").partition("`: ")[
            2
        ]  # behind the list's name, which the title has
        lead = f"{about[0].upper()}{about[1:]}\n\n" if about else ""
        yield f"## An item of `{prefix}{key}`\n\n{lead}{_table(item, '')}"
        yield from _items(item, f"{prefix}{key}[].")


def _table(kind: type, prefix: str) -> str:
    hints = get_type_hints(kind)
    rows = []
    for key, item in keys_of(kind).items():
        rule: Rule | None = item.metadata["rule"]
        about, text = item.metadata["about"], rule.text if rule else ""
        default = default_of(item)
        if item.metadata["per_environment"]:
            default += f" in `dev`, else `{item.default}-ENV`"
        rows.append((f"`{prefix}{key}`", type_name(hints[item.name]), default, about, text))
    return table(("setting", "type", "default", "meaning", "rule"), rows)


def type_name(hint: Any) -> str:
    """Return a type in words: tuple[str, ...] is "list of text"."""
    if get_origin(hint) in (Union, types.UnionType):
        return type_name(next(choice for choice in get_args(hint) if choice is not type(None)))
    if get_origin(hint) is tuple:
        record = record_of(hint)
        return f"list of {'items' if record else type_name(get_args(hint)[0])}"
    return NOUNS.get(hint, "keys with text").removeprefix("a ")


def default_of(item: Field[Any]) -> str:
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


def workload(module: str) -> str:
    """Return all settings of a program, whose config is `Config` of `module`."""
    return table(("setting", "default", "meaning", "rule"), _rows(import_module(module).Config))


def _rows(kind: type, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    hints, comments = get_type_hints(kind), _comments(kind)
    for entry in fields(kind):
        hint = hints[entry.name]
        listed = get_origin(hint) is tuple
        kinds = [kind for kind in (hint, *get_args(hint)) if is_dataclass(kind)]  # a choice, or of a list
        tables = (_rows(kind, f"{prefix}{entry.name}{'[]' * listed}.") for kind in kinds)  # type: ignore[arg-type]
        if kinds and not listed:
            yield from chain.from_iterable(tables)
            continue
        default: Any = {} if entry.default_factory is dict else None
        default = default if entry.default is MISSING else entry.default
        shown = json.dumps(list(default) if isinstance(default, tuple) else default)
        rule: Rule | None = entry.metadata.get("rule")
        required = entry.default is entry.default_factory
        default = "**required**" if required else f"`{shown}`"
        yield f"`{prefix}{entry.name}`", default, comments[entry.name], rule.text if rule else ""
        yield from chain.from_iterable(tables)


def _comments(kind: type) -> dict[str, str]:
    """Return the comment beside each field, or the lines right above it."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    mapping = {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            beside = lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :].strip()
            above: list[str] = []
            for line in reversed(lines[: node.lineno - 1]):
                if not line.strip().startswith("#"):
                    break
                above.insert(0, line.strip().lstrip("# "))
            mapping[node.target.id] = re.sub(r"\s*# noqa.*", "", beside.lstrip("# ")) or " ".join(above)
    return mapping
