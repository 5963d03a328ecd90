"""The workload's settings as tables in its documents: written again, or compared.

python -m tools.config_tables [--write]
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from tools.blocks import filled
from views.table import markdown
from workload.extract import config as extraction
from workload.preprocess import config as preprocessing
from workload.train.config import Config

DOCS = Path(__file__).resolve().parent.parent / "docs"
TABLES: dict[str, type] = {
    "trainer.md": Config,
    "extraction.md": extraction.Config,
    "preprocess.md": preprocessing.Config,
}


def rows(kind: type, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Return a row for each setting: key, default, meaning, rule."""
    hints, output = get_type_hints(kind), comments(kind)
    for entry in fields(kind):
        hint = hints[entry.name]
        if is_dataclass(hint):
            yield from rows(hint, f"{prefix}{entry.name}.")  # type: ignore[arg-type]
            continue
        default: Any = entry.default if entry.default is not MISSING else None
        shown = json.dumps(list(default) if isinstance(default, tuple) else default)
        rule = entry.metadata.get("rule", ("", None))[0].removeprefix("must ").removeprefix("be ")
        about = "; ".join(part for part in (output.get(entry.name, ""), rule) if part)
        yield f"`{prefix}{entry.name}`", f"`{shown}`", about


def comments(kind: type) -> dict[str, str]:
    """Return the comment beside each field, or the lines right above it."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    mapping = {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            beside = lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :].strip()
            above = []
            for line in reversed(lines[: node.lineno - 1]):
                if not line.strip().startswith("#"):
                    break
                above.insert(0, line.strip().lstrip("# "))
            mapping[node.target.id] = re.sub(r"\s*# noqa.*", "", beside.lstrip("# ")) or " ".join(above)
    return mapping


def block(kind: type) -> str:
    """Return the table of a config."""
    return "\n".join(markdown(("setting", "default", "meaning and rule"), rows(kind)))


def main() -> None:
    """Write every table, or compare them."""
    for name, kind in TABLES.items():
        before = (DOCS / name).read_text(encoding="utf-8")
        after = filled(before, {"settings": block(kind)}, name)
        if "--write" in sys.argv:
            (DOCS / name).write_text(after, encoding="utf-8")
        elif before != after:
            sys.exit(f"docs/{name}: its table is out of date: run 'make docs'")


if __name__ == "__main__":
    main()
