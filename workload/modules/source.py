"""Source files of a user's module, read without importing it.

A run of a module continues with the same sources only: their sha256 is a part of its record.
"""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_INSTALLED = ("site-packages", "dist-packages")


def files(name: str) -> dict[str, Path]:
    """Return the files of a module and those that it imports from its package or folder, by relative path.

    The working directory comes first, as for a script. Empty if there is no such module.

    Args:
        name: `my_model:Model`, or `package.model:Model`.
    """
    module = name.partition(":")[0]
    top = module.partition(".")[0]
    spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) or _installed(top)
    # A package has folders, even one without __init__.py.
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not spec or not (folders or spec.origin):
        return {}
    path = Path(folders[0] if folders else str(spec.origin))
    root, alone = path.parent, not folders and path.parent.name in _INSTALLED
    known: dict[str, Path] = {}
    desired = [module]
    while desired:
        for file in _files_of(root, desired.pop()):
            relative = str(file.relative_to(root))
            within = relative.startswith(f"{top}/") if folders else not alone
            if relative not in known and (within or file == path):
                known[relative] = file
                desired += _imports(file, root)
    return dict(sorted(known.items()))


def _installed(top: str) -> ModuleSpec | None:
    """Return what another finder knows, such as that of an editable install."""
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # of `__main__`
        return None
    return spec if spec and (spec.has_location or spec.submodule_search_locations) else None


def digest(name: str) -> str:
    """Return the sha256 over paths and contents of a module's files; see `files`."""
    sha = hashlib.sha256()
    for relative, path in files(name).items():
        content = path.read_bytes()
        sha.update(f"{relative} {len(content)}\n".encode() + content)
    return sha.hexdigest()


def _files_of(root: Path, module: str) -> Iterator[Path]:
    """Yield the files that an import of `module` executes, packages first."""
    folder = root
    for part in module.split("."):
        folder /= part
        for file in (folder / "__init__.py", folder.with_suffix(".py")):
            if file.is_file():
                yield file


def _imports(file: Path, root: Path) -> list[str]:
    """Return the modules that a file imports, at any depth of its code."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # reported by the import
        return []
    package = file.relative_to(root).parent.parts
    imported = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            imported += [".".join(filter(None, [base, alias.name])) for alias in node.names]
    return imported
