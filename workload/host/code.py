"""Puts the bundle's copy of the user's own code into /opt/training, at every boot.

Its files are the bundle's, whatever lay there under their names; a file that somebody wrote or changed on
this host is kept beside, as `NAME.kept`, `NAME.kept-2` and so on. What the bundle doesn't have stays, but
for files that an earlier bundle put there and nobody has changed. Killed in any place, it continues at the
next boot.
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

__all__ = ["Installed", "install"]

# Writable for all, with the sticky bit, as the folder itself: logins share no group that could own them.
_FOLDER_MODE = 0o1777


@dataclass(frozen=True)
class Installed:
    """What was done."""

    files: int
    written: int
    kept: tuple[str, ...]  # where what people had there lies now
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
    """One entry of the archive: a file's content, or a link's target."""

    content: bytes
    mode: int
    target: str | None = None

    @property
    def digest(self) -> str:
        """What the record keeps of it."""
        kind, what = ("file", self.content) if self.target is None else ("link", self.target.encode())
        return f"{kind}:{hashlib.sha256(what).hexdigest()}"


def install(archive: Path | None, folder: Path, record: Path) -> Installed:
    """Make `folder` hold what `archive` does (a tar.gz; None: nothing).

    `record` knows what was put there before.

    Raises `CodeError` where a folder and a file, or a link that leads elsewhere, stand in each other's way.
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
        place = folder / name
        found = _digest(place)
        if found != file.digest:
            _make_folders(folder, PurePosixPath(name).parent)
            if found is not None and found != before.get(name):
                stored.append(_keep(place, folder))
            _write(place, file)
            written += 1
        elif file.target is None:
            place.chmod(file.mode)
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
    """Name → digest. A record that a full disk cut off knows nothing: all that differs is kept beside."""
    try:
        found = json.loads(record.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return dict(found)


def _files(archive: Path | None) -> Iterator[tuple[str, _File]]:
    if archive is None:
        return
    with tarfile.open(archive) as tar:
        for entry in tar:
            parts = PurePosixPath(entry.name).parts
            if entry.name.startswith("/") or ".." in parts or not (entry.isreg() or entry.issym()):
                raise CodeError(f"{entry.name!r} in {archive.name} is no file of a published folder")
            if content := tar.extractfile(entry) if entry.isreg() else None:
                yield entry.name, _File(content.read(), 0o755 if entry.mode & 0o100 else 0o644)
            else:
                yield entry.name, _File(b"", 0, entry.linkname)


def _digest(place: Path) -> str | None:
    """As the record has it; None where there is nothing."""
    try:
        about = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(about.st_mode):
        return _File(b"", 0, os.readlink(place)).digest
    if not stat.S_ISREG(about.st_mode):
        raise CodeError(f"{place}: the published code has a file of that name: move what is there away")
    return _File(place.read_bytes(), 0).digest


def _unchanged(place: Path, digest: str) -> bool:
    try:
        return _digest(place) == digest
    except CodeError:  # a folder by now
        return False


def _make_folders(folder: Path, parent: PurePosixPath) -> None:
    place = folder
    for part in parent.parts:
        place /= part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise CodeError(f"{place}: the published code has a folder of that name: move what is there away")
        if not place.exists():
            place.mkdir()
            place.chmod(_FOLDER_MODE)


def _keep(place: Path, folder: Path) -> str:
    number = 1
    while os.path.lexists(
        stored := place.with_name(f"{place.name}.kept" if number == 1 else f"{place.name}.kept-{number}")
    ):
        number += 1
    place.rename(stored)
    return str(stored.relative_to(folder))


def _write(place: Path, file: _File) -> None:
    new = place.with_name(f".{place.name}.new")
    new.unlink(missing_ok=True)
    if file.target is not None:
        new.symlink_to(file.target)
    else:
        new.write_bytes(file.content)
        new.chmod(file.mode)
    new.replace(place)
