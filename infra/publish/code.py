"""The user's own code: one folder, as an archive whose bytes depend on nothing but its files."""

from __future__ import annotations

import os
import stat
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from infra.publish.archive import write
from infra.publish.errors import OwnFilesError
from infra.settings import commands

__all__ = ["MAX_BYTES", "pack", "read", "require", "require_syntax"]

MAX_BYTES = 100 << 20
"""Limit: every host of every slice downloads it at every new boot."""

_LEFT_OUT = {".git", ".hg", ".svn", "__pycache__", ".venv", "node_modules", ".ipynb_checkpoints", ".DS_Store"}
_LEFT_OUT |= {".mypy_cache", ".pytest_cache", ".ruff_cache"}
_SHOWN = 5
_MIB = 1 << 20


def pack(folder: Path, shown: str, archive: Path, key: str = "tpu:code") -> Path:
    """Write what `read` returns to `archive` (tar.gz), the same bytes for the same files, modes and links."""
    write(archive, *read(folder, shown, key))
    return archive


def read(folder: Path, shown: str, key: str) -> tuple[dict[str, bytes], dict[str, str], set[str]]:
    """Return the files of `folder` and its links by name, and the names of what is executable.

    Version control, caches, compiled Python and virtual environments are left out. Raises `OwnFilesError`,
    which names setting `key` and folder `shown`, where it isn't there, is too large, or holds what no host
    could be given.
    """
    shown = f"{key}: {shown}"
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise OwnFilesError(f"{shown} {what}: make it, or correct {key}")
    files: dict[str, Path] = {}
    links: dict[str, str] = {}
    for path in _below(folder):
        name = path.relative_to(folder).as_posix()
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            links[name] = _target(path, folder, shown)
        elif stat.S_ISREG(mode):
            files[name] = path
        else:
            raise OwnFilesError(f"{shown}/{name} is neither file, folder nor link: take it away")
    if not files:
        raise OwnFilesError(f"{shown} holds no file: put your code there")
    sizes = {name: path.stat().st_size for name, path in files.items()}
    if sum(sizes.values()) > MAX_BYTES:
        raise OwnFilesError(_too_large(shown, sizes))
    try:
        members = {name: path.read_bytes() for name, path in files.items()}
    except OSError as error:
        raise OwnFilesError(
            f"{key}: {error.filename}: {error.strerror}: you must be able to read it"
        ) from error
    executable = {name for name, path in files.items() if path.stat().st_mode & stat.S_IXUSR}
    return members, links, executable


def require(runs: Mapping[str, str], folder: Path, shown: str, hosts: Collection[str] = ()) -> None:
    """Refuse a `run` (by the path of its setting) that starts what isn't in the folder, or is no program.

    `hosts`: paths of the runs that the hosts' own Python starts.
    """
    for path, run in runs.items():
        if (name := commands.own_file(run)) is None:
            continue
        start, words = f'{path}: "{run}" needs {name}, which', commands.split(run)
        if not (folder / name).exists() or _LEFT_OUT & set(Path(name).parts):
            raise OwnFilesError(f"{start} isn't in {shown}: put it there, or correct the run")
        if words[0].startswith("./") and not os.access(folder / name, os.X_OK):
            raise OwnFilesError(f"{start} isn't executable: chmod +x {shown}/{name}")
        if path in hosts and words[0] == "python":
            require_syntax(folder / name, f"{shown}/{name}")


def require_syntax(script: Path, shown: str) -> None:
    """Refuse a script that hosts' Python, which has this one's version, can't compile."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(script.read_bytes(), shown, "exec", dont_inherit=True)
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text else ""
        where = f"{shown}:{error.lineno}" if error.lineno else shown
        raise OwnFilesError(f"{where}: {error.msg}{text}\n    fix: correct the line") from None
    except (OSError, ValueError) as error:
        raise OwnFilesError(f"{shown}: {error}\n    fix: write a Python script") from None


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in _LEFT_OUT or path.suffix == ".pyc":
            continue
        if path.is_symlink() or not path.is_dir():
            yield path
        elif not (path / "pyvenv.cfg").exists():
            yield from _below(path)


def _target(link: Path, folder: Path, shown: str) -> str:
    target = os.readlink(link)
    if target.startswith("/") or not (link.parent / target).resolve().is_relative_to(folder.resolve()):
        name = link.relative_to(folder)
        raise OwnFilesError(
            f"{shown}/{name} leads to {target}, out of the folder: put what it means there instead"
        )
    return target


def _too_large(shown: str, sizes: Mapping[str, int]) -> str:
    """Report a folder that is too large, with its largest entries and files."""
    total = sum(sizes.values())
    entries: Counter[str] = Counter()
    for name, size in sizes.items():
        first, slash, _ = name.partition("/")
        entries[first + slash] += size
    largest = ", ".join(f"{name} {size / _MIB:.1f} MiB" for name, size in entries.most_common(_SHOWN))
    return (
        f"{shown} has {total / _MIB:.1f} MiB, at most {MAX_BYTES // _MIB} MiB: {largest}; move "
        "data to the bucket (gcloud storage cp) or to the data disk"
    )
