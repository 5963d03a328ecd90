"""A bundle: files named by path and content, and the manifest whose sha256 is its id."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.publish.errors import PublishError

__all__ = ["Bundle", "BundleFile", "assemble", "sha256_of"]

# What the boot script accepts in a manifest.
_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]*")


@dataclass(frozen=True)
class BundleFile:
    """A file: its path on hosts, its content's hash, and its path here."""

    path: str
    sha256: str
    size_bytes: int
    source: Path


@dataclass(frozen=True)
class Bundle:
    """Files sorted by path."""

    files: tuple[BundleFile, ...]

    @property
    def manifest(self) -> bytes:
        """The lines that `sha256sum --check` reads."""
        return "".join(f"{file.sha256}  {file.path}\n" for file in self.files).encode()

    @property
    def id(self) -> str:
        """The manifest's sha256, in hex."""
        return hashlib.sha256(self.manifest).hexdigest()

    @property
    def size_bytes(self) -> int:
        """The size of all files together, in bytes."""
        return sum(file.size_bytes for file in self.files)


def assemble(sources: Mapping[str, Path]) -> Bundle:
    """Make a bundle of path → file on this machine."""
    for path in sources:
        if not _PATH.fullmatch(path) or ".." in path:
            raise PublishError(f"{path!r} can't be a path in a bundle: use letters, digits and . _ + - /")
    files = (
        BundleFile(path, sha256_of(source), source.stat().st_size, source) for path, source in sources.items()
    )
    return Bundle(tuple(sorted(files, key=lambda file: file.path)))


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
