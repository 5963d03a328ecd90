"""The user's program as `tpu run` takes it: a script, or a folder with one, and what it needs."""

import re
import shlex
import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import CommandError
from infra.settings import commands

_ENTRIES = ("train.py", "main.py", "__main__.py")
# https://packaging.python.org/en/latest/specifications/inline-script-metadata/
_INLINE = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


@dataclass(frozen=True)
class Program:
    """What goes into the bundle, and how hosts start it.

    Attributes:
        folder: all that goes along.
        entry: the script in it.
        run: the command line, as a slice's `run`.
        requirements: file with its packages; None where it names none.
        why: how `entry` and `requirements` were chosen, for people.
    """

    folder: Path
    entry: str
    run: str
    requirements: Path | None
    why: str


def program(
    path: Path, entry: str | None, requirements: Path | None, words: list[str], work: Path
) -> Program:
    """The program at `path`: a script goes alone, a folder whole; `work` is an empty folder for copies.

    Raises CommandError with what is wrong with it.
    """
    if not path.exists():
        raise CommandError(
            f"{path}: there is no such file or folder\n    fix: the path of a script or folder"
        )
    if path.is_dir():
        folder, name, why = path, *_entry(path, entry)
    elif entry:
        raise CommandError(f"--entry {entry}: {path} is a script already\n    fix: its folder, or no --entry")
    else:
        folder, name, why = work / "code", path.name, "the script alone; a folder goes whole"
        folder.mkdir()
        shutil.copy(path, folder / name)
    if not name.endswith(".py"):
        raise CommandError(f"{name} is no Python script\n    fix: a .py file that starts the program")
    found = requirements or _requirements(folder, folder / name, work)
    if requirements and not requirements.is_file():
        raise CommandError(f"--requirements {requirements}: there is no such file\n    fix: write it")
    packages = f"packages: {found.name}" if found else "packages: the workload's own (JAX, NumPy, Orbax)"
    run = shlex.join(["python", name, *words])
    if not commands.can_start(run):
        rule = f"at most {commands.MAX_CHARACTERS} printable characters"
        raise CommandError(
            f"{run[:80]}…: is no command line for a host: {rule}\n    fix: put options into a file"
        )
    return Program(folder, name, run, found, f"{name} ({why}); {packages}")


def _entry(folder: Path, entry: str | None) -> tuple[str, str]:
    if entry:
        if not (folder / entry).is_file():
            raise CommandError(f"--entry {entry}: isn't in {folder}\n    fix: a script of that folder")
        return entry, "--entry"
    for name in _ENTRIES:
        if (folder / name).is_file():
            return name, f"the first of {', '.join(_ENTRIES)} that {folder} has"
    scripts = sorted(each.name for each in folder.glob("*.py"))
    if len(scripts) == 1:
        return scripts[0], f"the only script of {folder}"
    listed = ", ".join(scripts) or "no script"
    raise CommandError(f"{folder}: which script starts? It has {listed}\n    fix: --entry SCRIPT")


def _requirements(folder: Path, script: Path, work: Path) -> Path | None:
    """`requirements.txt` of the folder, or what the script says of itself; None where there is neither."""
    if (beside := folder / "requirements.txt").is_file():
        return beside
    dependencies = _inline(script).get("dependencies")
    if not dependencies:
        return None
    made = work / "inline script metadata"
    made.write_text("".join(f"{each}\n" for each in dependencies), "utf-8")
    return made


def _inline(script: Path) -> dict[str, Any]:
    try:
        found = _INLINE.search(script.read_text("utf-8"))
        lines = found["content"].splitlines(keepends=True) if found else []
        return tomllib.loads("".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CommandError(f"{script.name}: its inline script metadata can't be read: {error}") from None
