"""The user's program of `tpu run`: a script, a folder with one or a config of the trainer; its packages."""

import re
import shlex
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import InputError
from infra.publish.code import require_syntax
from infra.settings import commands

_ENTRIES = ("train.py", "main.py", "__main__.py")
# https://packaging.python.org/en/latest/specifications/inline-script-metadata/
_INLINE = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


@dataclass(frozen=True)
class UserCode:
    """Content of the bundle, and the command that starts it.

    Attributes:
        folder: uploaded as a whole; None: an image has the program.
        entry: the script in it.
        run: the command line, as a slice's `run`.
        requirements: file with its packages; None: none are named.
        reason: how `entry` and `requirements` were chosen, for people.
    """

    folder: Path | None
    entry: str
    run: str
    requirements: Path | None
    reason: str


def read_program(
    path: Path | None, entry: str | None, requirements: Path | None, words: list[str], work: Path,
    image: str = "",
) -> UserCode:  # fmt: skip
    """Read a program.

    Args:
        path: a script, uploaded alone; a folder, uploaded as a whole; or a TOML file of the trainer, whose
            folder is uploaded. None: `words` are a command of the image.
        entry: script of the folder that starts; None: train.py, main.py, or the only script.
        requirements: file with packages; None: that of the folder, or inline metadata.
        words: arguments of the script.
        work: an empty folder for copies.
        image: with the packages; empty: the workload's and those that the program names.

    Raises:
        InputError: it can't be run.
    """
    if image and requirements:
        fix = "add them to the image, or leave one of the two out"
        raise InputError(f"--requirements {requirements}: an image has packages of its own\n    fix: {fix}")
    if path is None:
        if entry:
            raise InputError(
                f"--entry {entry}: no folder is uploaded\n    fix: name it, or leave --entry out"
            )
        return UserCode(None, "", _command(words), None, "of the image")
    if not path.exists():
        raise InputError(f"{path}: no such file or folder\n    fix: the path of a script or folder")
    if path.is_dir():
        folder, name, reason = path, *_entry(path, entry)
    elif entry:
        raise InputError(f"--entry {entry}: {path} is a script already\n    fix: its folder, or no --entry")
    elif path.suffix == ".toml":
        folder, name = path.absolute().parent, path.name
        reason = "trained by the workload; its folder is uploaded whole"
    else:
        folder, name, reason = work / "code", path.name, "the script alone; a folder is uploaded whole"
        folder.mkdir()
        shutil.copy(path, folder / name)
    if not name.endswith((".py", ".toml")):
        raise InputError(f"{name} is no Python script\n    fix: a .py file that starts the program")
    if name.endswith(".py") and not image:
        require_syntax(folder / name, str(path / name if path.is_dir() else path))
    packages = None if image else requirements or _requirements(folder, folder / name, work)
    if requirements and not requirements.is_file():
        raise InputError(f"--requirements {requirements}: no such file\n    fix: write it")
    own = "the image's own" if image else "the workload's own (JAX, NumPy, Orbax)"
    listed = f"packages: {packages.name if packages else own}"
    run = _command(["train" if name.endswith(".toml") else "python", name, *words])
    return UserCode(folder, name, run, packages, f"{name} ({reason}); {listed}")


def _command(words: list[str]) -> str:
    """Return words as a slice's `run`. Raises InputError if hosts don't start it."""
    run = shlex.join(words)
    if commands.can_start(run):
        return run
    if len(run) > commands.MAX_CHARACTERS or not run.isprintable():
        rule = f"at most {commands.MAX_CHARACTERS} printable characters"
        raise InputError(f"{run[:80]}…: not accepted by hosts: {rule}\n    fix: put options into a file")
    rule = f"begins with {', '.join(commands.PROGRAMS)} or a path"
    raise InputError(f"{run[:80]}: not accepted by hosts: {rule}\n    fix: -- /usr/bin/env {run[:80]}")


def _entry(folder: Path, entry: str | None) -> tuple[str, str]:
    if entry:
        if not (folder / entry).is_file():
            raise InputError(f"--entry {entry}: isn't in {folder}\n    fix: a script of that folder")
        return entry, "--entry"
    for name in _ENTRIES:
        if (folder / name).is_file():
            return name, f"the first of {', '.join(_ENTRIES)} that {folder} has"
    scripts = sorted(path.name for path in folder.glob("*.py"))
    if len(scripts) == 1:
        return scripts[0], f"the only script of {folder}"
    listed = ", ".join(scripts) or "no script"
    raise InputError(f"{folder}: which script starts? It has {listed}\n    fix: --entry SCRIPT")


def _requirements(folder: Path, script: Path, work: Path) -> Path | None:
    """Return `requirements.txt` of the folder, or a file with the script's inline metadata; None: neither."""
    if (beside := folder / "requirements.txt").is_file():
        return beside
    dependencies = _inline(script).get("dependencies")
    if not dependencies:
        return None
    path = work / "inline script metadata"
    path.write_text("".join(f"{package}\n" for package in dependencies), "utf-8")
    return path


def _inline(script: Path) -> dict[str, Any]:
    try:
        block = _INLINE.search(script.read_text("utf-8"))
        lines = block["content"].splitlines(keepends=True) if block else []
        return tomllib.loads("".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{script.name}: its inline script metadata can't be read: {error}") from None
