"""A private copy of the program, so that a rehearsal never writes into the user's own tree."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import yaml

from rehearsal.errors import WorldError

TREE = Path(__file__).resolve().parents[2]
PROJECTS = {
    str(yaml.safe_load(path.read_text())["name"]): str(path.parent.relative_to(TREE))
    for path in sorted((*TREE.glob("Pulumi.yaml"), *TREE.glob("infra/layers/*/Pulumi.yaml")), reverse=True)
}
"""The program's Pulumi projects, by name, with the folder that `pulumi -C` takes."""
if TYPE_CHECKING:
    Layer: TypeAlias = str
else:
    Layer = Literal[*PROJECTS]


def run(command: Sequence[str], folder: Path = TREE, fix: str = "") -> str:
    """Run a command of the program, in a copy of it or in this tree; return its standard output.

    Raises:
        WorldError: it failed, with the end of what it printed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()[-1500:]
        raise WorldError(f"`{' '.join(command)}` failed:\n{output}", fix)
    return done.stdout


def copy_program(target: Path, tree: Path = TREE) -> int:
    """Copy what git tracks and what it doesn't ignore; the number of files.

    The copy is the program as it stands, uncommitted edits included.
    """
    # Root, in a container above all, is seldom the one who has cloned the tree.
    git = ["git", "-c", f"safe.directory={tree}"]
    listed = subprocess.run(
        [*git, "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=tree,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        raise WorldError(
            f"{tree} is not a git checkout: {listed.stderr.decode().strip()}", "git clone it anew"
        )
    files = [tree / name for name in listed.stdout.decode().split("\0") if name]
    copied = 0
    for source in files:
        if not source.is_file():  # tracked, but deleted in the working tree
            continue
        place = target / source.relative_to(tree)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, place)
        copied += 1
    return copied


def settings_file(program: Path, environment: str) -> Path:
    """Return the path of the environment's settings; WorldError if there is no such environment."""
    path = program / f"Pulumi.{environment}.yaml"
    if not path.exists():
        known = sorted(p.name.split(".")[1] for p in program.glob("Pulumi.*.yaml"))
        raise WorldError(f"there is no {path.name}; environments here: {', '.join(known) or 'none'}")
    return path


def read_settings(program: Path, environment: str) -> dict[str, object]:
    """Return the `config` block of an environment's file."""
    document = yaml.safe_load(settings_file(program, environment).read_text()) or {}
    return dict(document.get("config") or {})


def change_settings(program: Path, environment: str, changes: Mapping[str, object]) -> None:
    """Set keys of the `config` block; None takes a key away. Comments of the copy are lost."""
    path = settings_file(program, environment)
    document = yaml.safe_load(path.read_text()) or {}
    config = document.setdefault("config", {})
    for key, value in changes.items():
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
