"""A tar.gz whose bytes depend on nothing but what is in it."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path

__all__ = ["write"]


def write(
    path: Path,
    members: Mapping[str, bytes],
    links: Mapping[str, str] | None = None,
    executable: Collection[str] = (),
) -> None:
    """Write `members` (name → content) and `links` (name → target), sorted, without times and owners."""
    links = links or {}
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name in sorted({*members, *links}):
            entry = tarfile.TarInfo(name)
            if name in links:
                entry.type, entry.linkname = tarfile.SYMTYPE, links[name]
                tar.addfile(entry)
                continue
            entry.size = len(members[name])
            entry.mode = 0o755 if name in executable else 0o644
            tar.addfile(entry, io.BytesIO(members[name]))
