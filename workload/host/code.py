"""Installation of the user's own code from the bundle into /opt/training, at every boot.

The bundle's files replace those of the same name. A file that was created or changed on this host is kept
beside, as `NAME.kept`, `NAME.kept-2` and so on. Files that the bundle lacks stay, except unchanged files
of an earlier bundle. An interrupted installation continues at the next boot.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from workload.host.errors import CodeError

# Writable for all, with the sticky bit, like the folder itself: logins share no group.
_FOLDER_MODE = 0o1777


@dataclass(frozen=True)
class Installed:
    """Result of an installation."""

    files: int
    written: int
    kept: tuple[str, ...]  # new names of files changed on this host
    removed: int

    def __str__(self) -> str:
        output = f"{self.files} files, {self.written} of them new"
        if self.removed:
            output += f"; removed {self.removed} of an earlier bundle"
        if self.kept:
            output += f"; files changed on this host are kept beside: {', '.join(self.kept)}"
        return output


@dataclass(frozen=True)
class _File:
    """An entry of the archive: a file's content, or a link's target."""

    content: bytes
    mode: int
    target: str | None = None

    @property
    def digest(self) -> str:
        """Kind and SHA-256, as the record stores them."""
        kind, content = ("file", self.content) if self.target is None else ("link", self.target.encode())
        return f"{kind}:{hashlib.sha256(content).hexdigest()}"


def install(archive: Path | None, folder: Path, record: Path) -> Installed:
    """Make `folder` hold the files of `archive` (a tar.gz; None: no files).

    `record` stores the digests of the files installed before.

    Raises `CodeError` where a folder, a file or a foreign link blocks a path of the archive.
    """
    try:
        return _install(archive, folder, record)
    except OSError as error:
        raise CodeError(
            f"{error.filename or folder}: {error.strerror}: make room, or move it away"
        ) from error


def _install(archive: Path | None, folder: Path, record: Path) -> Installed:
    before = _remembered(record)
    folder.mkdir(parents=True, exist_ok=True)
    now: dict[str, str] = {}
    written, stored = 0, []
    for name, file in _files(archive):
        now[name] = file.digest
        path = folder / name
        digest = _digest(path)
        if digest != file.digest:
            _make_folders(folder, PurePosixPath(name).parent)
            if digest is not None and digest != before.get(name):
                stored.append(_keep(path, folder))
            _write(path, file)
            written += 1
        elif file.target is None:
            path.chmod(file.mode)
    removed = 0
    for name in sorted(before.keys() - now.keys(), reverse=True):
        if _unchanged(folder / name, before[name]):
            (folder / name).unlink()
            removed += 1
            for parent in list(PurePosixPath(name).parents)[:-1]:
                with suppress(OSError):  # something else is in there
                    (folder / parent).rmdir()
    record.parent.mkdir(parents=True, exist_ok=True)
    new = record.with_name(f"{record.name}.new")
    new.write_text(json.dumps(now, sort_keys=True))
    new.replace(record)
    return Installed(len(now), written, tuple(stored), removed)


def _remembered(record: Path) -> dict[str, str]:
    """Return name → digest. A truncated record counts as empty: differing files are then kept beside."""
    try:
        digests = json.loads(record.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return dict(digests)


def _files(archive: Path | None) -> Iterator[tuple[str, _File]]:
    if archive is None:
        return
    with tarfile.open(archive) as tar:
        for entry in tar:
            parts = PurePosixPath(entry.name).parts
            if entry.name.startswith("/") or ".." in parts or not (entry.isreg() or entry.issym()):
                raise CodeError(f"{entry.name!r} in {archive.name} is not a file of a published folder")
            if content := tar.extractfile(entry) if entry.isreg() else None:
                yield entry.name, _File(content.read(), 0o755 if entry.mode & 0o100 else 0o644)
            else:
                yield entry.name, _File(b"", 0, entry.linkname)


def _digest(path: Path) -> str | None:
    """Return a file's digest as the record stores it; None if it doesn't exist."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(status.st_mode):
        return _File(b"", 0, os.readlink(path)).digest
    if not stat.S_ISREG(status.st_mode):
        raise CodeError(f"{path}: the published code has a file of that name: move this one away")
    return _File(path.read_bytes(), 0).digest


def _unchanged(path: Path, digest: str) -> bool:
    try:
        return _digest(path) == digest
    except CodeError:  # a folder by now
        return False


def _make_folders(folder: Path, parent: PurePosixPath) -> None:
    path = folder
    for part in parent.parts:
        path /= part
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise CodeError(f"{path}: the published code has a folder of that name: move this file away")
        if not path.exists():
            path.mkdir()
            path.chmod(_FOLDER_MODE)


def _keep(path: Path, folder: Path) -> str:
    number = 1
    while os.path.lexists(
        stored := path.with_name(f"{path.name}.kept" if number == 1 else f"{path.name}.kept-{number}")
    ):
        number += 1
    path.rename(stored)
    return str(stored.relative_to(folder))


def _write(path: Path, file: _File) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    if file.target is not None:
        new.symlink_to(file.target)
    else:
        new.write_bytes(file.content)
        new.chmod(file.mode)
    new.replace(path)
