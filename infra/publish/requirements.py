"""Packages that the user's own code needs besides the workload's: resolved and locked once for the hosts."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import uv

from infra.publish.errors import PublishError
from infra.publish.wheels import HOST_GLIBC_MINOR, cache_dir

__all__ = ["resolve"]

_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==")
_INCLUDED = re.compile(r"(?:-[rc]|--requirement|--constraint)[ =]*(\S+)")


def resolve(requirements: Path, shown: str, lock: Path | None) -> Path:
    """Return a hash-locked list of what `requirements` asks for beyond `lock`, whose versions it keeps.

    Asked of the package index once for each content of both files and each Python. Raises `PublishError`,
    which calls the file `shown`, where there is no solution in wheels for the hosts' Python.
    """
    if not requirements.is_file():
        raise PublishError(f"tpu:requirements: {shown} does not exist: write it, or correct tpu:requirements")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    contents = [*_contents(requirements), lock.read_text("utf-8") if lock else "", version]
    key = hashlib.sha256("\0".join(contents).encode()).hexdigest()[:16]
    made = cache_dir("requirements") / f"{key}.txt"
    if not made.exists():
        text = _beyond(_compiled(requirements, shown, lock, version), shown, lock)
        part = made.with_name(f"{made.name}.{os.getpid()}.part")  # others may be at the same
        part.write_text(text, "utf-8")
        part.replace(made)
    return made


def _contents(file: Path) -> Iterator[str]:
    """Return a file's lines, included files expanded."""
    text = file.read_text("utf-8", errors="replace")
    yield text
    for line in text.splitlines():
        if match := _INCLUDED.match(line.strip()):
            included = file.parent / match[1]
            if included.is_file():
                yield from _contents(included)


def _compiled(requirements: Path, shown: str, lock: Path | None, version: str) -> str:
    # fmt: off
    command = [
        uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes",
        "--only-binary", ":all:", "--python-version", version,
        "--python-platform", f"x86_64-manylinux_2_{HOST_GLIBC_MINOR}",
        *(["--constraint", str(lock)] if lock else []), str(requirements),
    ]
    # fmt: on
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    output = " ".join(re.sub(r"(?m)^\s*(error|cause|×|╰─▶|│)\s?:?", "", done.stderr).split())
    among = f", beside the packages of workload/locks/{lock.name}" if lock else ""
    raise PublishError(
        f"tpu:requirements: {shown} can't be resolved for the hosts (Python {version}, Linux on x86-64, "
        f"wheels only{among}): {output} Change the file"
    )


def _beyond(compiled: str, shown: str, lock: Path | None) -> str:
    """Return the entries that aren't in the lock."""
    locked = {_name(line) for line in (lock.read_text("utf-8").splitlines() if lock else ())}
    stored, keeping = [], False
    for line in compiled.splitlines(keepends=True):
        if not line.startswith((" ", "\t", "#")) and line.strip():
            name = _name(line)
            if name is None:
                raise PublishError(
                    f"tpu:requirements: {shown} asks for {line.split()[0]!r}, which is no released package, "
                    "so its hash can't be locked: put its code into tpu:code"
                )
            keeping = name not in locked
        if keeping:
            stored.append(line)
    return "".join(stored)


def _name(line: str) -> str | None:
    match = _PINNED.match(line)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else None
