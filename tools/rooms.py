"""Draw the packages, what each may hold and what it stands on, from the code: `python -m tools.rooms`.

`make docs` writes picture and table into docs/architecture.md. Type imports and deferred imports count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import grimp

from views.table import markdown

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("cli", "fleet", "infra", "rehearsal", "views", "workload")
OPENED = ("infra", "rehearsal", "rehearsal.cloud", "workload")
"""Packages whose own packages are drawn."""


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)


def rooms(package: str) -> tuple[str, ...]:
    """Return the packages directly in `package`, sorted by name; modules and empty folders are left out."""
    folders = (ROOT / package.replace(".", "/")).iterdir()
    names = (f"{package}.{folder.name}" for folder in folders if (folder / "__init__.py").is_file())
    return tuple(sorted(name for name in names if name in _graph().modules))


def purpose(package: str) -> str:
    """Return the first sentence of the package's docstring."""
    text = (ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    lines = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    return " ".join(lines.split())


def edges(nodes: Iterable[str]) -> dict[str, set[str]]:
    """Return the imports between packages, without those that others imply."""
    names = sorted(nodes)
    direct = {
        name: {
            other
            for other in names
            if other != name
            and not other.startswith(f"{name}.")
            and not name.startswith(f"{other}.")
            and _graph().direct_import_exists(importer=name, imported=other, as_packages=True)
        }
        for name in names
    }
    return reduced(direct)


def reduced(direct: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the transitive reduction of an acyclic graph."""

    def reachable(start: str, without: str) -> set[str]:
        seen: set[str] = set()
        ahead = [other for other in direct[start] if other != without]
        while ahead:
            name = ahead.pop()
            if name not in seen:
                seen.add(name)
                ahead += direct[name]
        return seen

    return {
        name: {other for other in targets if other not in reachable(name, other)}
        for name, targets in direct.items()
    }


def picture() -> str:
    """Return a mermaid flowchart: packages in their parents, arrows to what they import."""
    lines = ["```mermaid", "flowchart TB"]
    for package in PACKAGES:
        lines += _box(package, "  ")
    groups: list[Iterable[str]] = [PACKAGES, *(rooms(package) for package in OPENED)]
    for group in groups:
        for name, targets in edges(group).items():
            lines += [f"  {_id(name)} --> {_id(target)}" for target in sorted(targets)]
    return "\n".join([*lines, "```"])


def _box(package: str, indent: str) -> list[str]:
    label = package.rpartition(".")[2]
    if package not in OPENED:
        return [f"{indent}{_id(package)}[{label}]"]
    inside = [line for room in rooms(package) for line in _box(room, f"{indent}  ")]
    return [f"{indent}subgraph {_id(package)}[{label}]", *inside, f"{indent}end"]


def _id(package: str) -> str:
    return package.replace(".", "_")


def table() -> str:
    """Return a line for each package: its name and what may be in it."""
    names = [name for package in PACKAGES for name in (package, *_inside(package))]
    rows = [(f"`{name.replace('.', '/')}`", purpose(name)) for name in names]
    return "\n".join(markdown(("package", "holds"), rows))


def _inside(package: str) -> list[str]:
    return [name for room in rooms(package) for name in (room, *_inside(room))]


if __name__ == "__main__":
    print(picture())
    print(table())
