"""Packages that the user's own code needs besides the workload's: resolved and locked once for the hosts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import uv

from infra.publish.cache import cache_dir, key_of, once
from infra.publish.errors import PublishError
from infra.publish.wheels import HOST_GLIBC_MINOR, PYTHON
from infra.settings import commands

__all__ = ["require", "resolve"]

_LOCKED = re.compile(r"(?m)^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==")
_INCLUDED = re.compile(r"(?:-[rc]|--requirement|--constraint)[ =]*(\S+)")


def resolve(requirements: Path, shown: str, lock: Path | None) -> Path:
    """Return a hash-locked list of what `requirements` asks for beyond `lock`, whose versions it keeps.

    Asked of the package index once for each content of both files and each Python. Raises `PublishError`,
    which calls the file `shown`, where there is no solution in wheels for the hosts' Python.
    """
    if not requirements.is_file():
        raise PublishError(f"tpu:requirements: {shown} does not exist: write it, or correct tpu:requirements")
    contents = [*_contents(requirements), lock.read_text("utf-8") if lock else "", PYTHON]

    def make(made: Path) -> None:
        text = _compiled(requirements, shown, lock)
        for line in text.splitlines():
            if not line.startswith((" ", "#")) and not _LOCKED.match(line):
                raise PublishError(
                    f"tpu:requirements: {shown} asks for {line.split()[0]!r}, which is no released package, "
                    "so its hash can't be locked: put its code into tpu:code"
                )
        made.write_text(text, "utf-8")

    return once(cache_dir("requirements") / f"{key_of(*contents)}.txt", make)


def require(runs: Mapping[str, str], folder: Path | None, shown: str, resolved: Path | None) -> None:
    """Refuse a `run` (by the path of its setting) that sends its curves to W&B without W&B's package.

    Args:
        runs: by the path of the setting.
        folder: of the user's code; None: there is none.
        shown: the file of requirements, for people.
        resolved: its packages beyond the workload's; None: there are none.
    """
    if resolved and "wandb" in _LOCKED.findall(resolved.read_text("utf-8")):
        return
    for path, run in runs.items():
        started = commands.training(run)
        if project := started and commands.given(started, folder).get("observe.wandb"):
            raise PublishError(
                f'{path}: "{run}" with observe.wandb = "{project}" needs the package wandb: '
                f"add a line `wandb` to {shown}"
            )


def _contents(file: Path) -> Iterator[str]:
    """Return a file's lines, included files expanded."""
    text = file.read_text("utf-8", errors="replace")
    yield text
    for line in text.splitlines():
        if match := _INCLUDED.match(line.strip()):
            included = file.parent / match[1]
            if included.is_file():
                yield from _contents(included)


def _compiled(requirements: Path, shown: str, lock: Path | None) -> str:
    """Resolve for the hosts beside the lock's versions; return the entries that aren't in the lock."""
    locked = _LOCKED.findall(lock.read_text("utf-8")) if lock else []
    # fmt: off
    command = [
        uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes",
        "--only-binary", ":all:", "--python-version", PYTHON,
        "--python-platform", f"x86_64-manylinux_2_{HOST_GLIBC_MINOR}",
        *(["--constraint", str(lock)] if lock else []), *(f"--no-emit-package={name}" for name in locked),
        str(requirements),
    ]
    # fmt: on
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    output = " ".join(re.sub(r"(?m)^\s*(error|cause|×|╰─▶|│)\s?:?", "", done.stderr).split())
    among = f", beside the packages of workload/locks/{lock.name}" if lock else ""
    raise PublishError(
        f"tpu:requirements: {shown} can't be resolved for the hosts (Python {PYTHON}, Linux on x86-64, "
        f"wheels only{among}): {output} Change the file"
    )
