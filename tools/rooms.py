"""Blocks of docs/internals/architecture.md, drawn from the code: packages, their contents and imports.

Type imports and deferred imports count.
"""

from __future__ import annotations

import ast
from functools import cache

import grimp

from tools.blocks import ROOT
from tools.blocks import table as table_of

PACKAGES = (
    "cli", "fleet", "google_facts", "infra", "pipeline", "rehearsal", "settings_schema", "views", "workload",
)  # fmt: skip
OPENED = ("infra", "rehearsal", "rehearsal.cloud", "workload")
"""Packages whose own packages are drawn."""


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)


def rooms(package: str) -> list[str]:
    """Return the packages directly in `package`, sorted by name; modules and empty folders are left out."""
    folders = (ROOT / package.replace(".", "/")).iterdir()
    names = (f"{package}.{folder.name}" for folder in folders if (folder / "__init__.py").is_file())
    return sorted(name for name in names if name in _graph().modules)


def table() -> str:
    """Return a row for each package: its name and the first sentence of its docstring."""

    def below(package: str) -> list[str]:
        return [package, *(name for room in rooms(package) for name in below(room))]

    def purpose(package: str) -> str:
        text = (ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
        return " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())

    names = (name for package in PACKAGES for name in below(package))
    return table_of(("package", "holds"), ((f"`{name.replace('.', '/')}`", purpose(name)) for name in names))


def picture() -> str:
    """Return a mermaid flowchart: packages in their parents, arrows to what they import."""
    arrows = [
        f"  {_id(name)} --> {_id(target)}"
        for group in (PACKAGES, *map(rooms, OPENED))
        for name, targets in _edges(sorted(group)).items()
        for target in sorted(targets)
    ]
    boxes = (line for package in PACKAGES for line in _box(package, "  "))
    return "\n".join(["```mermaid", "flowchart TB", *boxes, *arrows, "```"])


def _edges(names: list[str]) -> dict[str, set[str]]:
    """Return the imports between packages of one parent, without those that others imply; no circles."""

    def imports(name: str, other: str) -> bool:
        return _graph().direct_import_exists(importer=name, imported=other, as_packages=True)

    def reachable(name: str) -> set[str]:
        return direct[name].union(*map(reachable, direct[name]))

    direct = {name: {other for other in names if other != name and imports(name, other)} for name in names}
    return {name: targets.difference(*map(reachable, targets)) for name, targets in direct.items()}


def _box(package: str, indent: str) -> list[str]:
    label = package.rpartition(".")[2]
    if package not in OPENED:
        return [f"{indent}{_id(package)}[{label}]"]
    inside = (line for room in rooms(package) for line in _box(room, f"{indent}  "))
    return [f"{indent}subgraph {_id(package)}[{label}]", *inside, f"{indent}end"]


def _id(package: str) -> str:
    return package.replace(".", "_")
