"""The data disk's snapshot: an ext4 image with token files, packed by the workload."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rehearsal.errors import WorldError
from rehearsal.hosts.disks import image_from_folder
from rehearsal.world.checkout import TREE, run
from rehearsal.world.layout import cache_dir

# Text that every machine with this project's requirements has: licences, and Python's own library.
LICENSES = "/usr/share/common-licenses"
STDLIB = "stdlib"


@dataclass(frozen=True)
class Text:
    """Source of the tokens: files or folders (`stdlib` is Python's library), restricted to `suffixes`."""

    sources: tuple[str, ...] = (LICENSES, STDLIB)
    suffixes: tuple[str, ...] = ("", ".py")
    limit_bytes: int = 8_000_000

    def files(self) -> list[Path]:
        """Return the files in their order, up to the limit; WorldError if there are none."""
        stdlib = sysconfig.get_paths()["stdlib"]
        chosen: list[Path] = []
        size_bytes = 0
        for path in _below(stdlib if source == STDLIB else source for source in self.sources):
            if path.suffix not in self.suffixes:
                continue
            size_bytes += path.stat().st_size
            if size_bytes > self.limit_bytes:
                break
            chosen.append(path)
        if not chosen:
            raise WorldError(f"no text below {', '.join(self.sources)}", "name other folders in the scenario")
        return chosen


def _below(sources: Iterable[str]) -> Iterator[Path]:
    """Files below folders, or files themselves, in one order: the same text gives the same tokens."""
    for source in sources:
        if Path(source).is_file():
            yield Path(source)
        for folder, folders, names in os.walk(source):
            # Not even looked into: a user's packages are 50,000 files.
            folders[:] = sorted(set(folders) - {"site-packages", "__pycache__"})
            yield from (path for name in sorted(names) if (path := Path(folder, name)).is_file())


def snapshot_image(text: Text) -> Path:
    """Return the image's path; made first if missing for this text and this version of the packer."""
    files = text.files()
    image = cache_dir() / "snapshots" / f"{_key(files)}.ext4"
    if image.exists():
        return image
    image.parent.mkdir(parents=True, exist_ok=True)
    with image.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.exists():
            with tempfile.TemporaryDirectory(dir=image.parent) as scratch:
                _make(Path(scratch), files, image)
    return image


def _key(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in [*sorted((TREE / "workload" / "data").rglob("*.py")), *files]:
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _make(scratch: Path, files: Sequence[Path], image: Path) -> None:
    gathered = scratch / "text"
    gathered.mkdir()
    for number, path in enumerate(files):
        shutil.copyfile(path, gathered / f"{number:05d}-{path.name}.txt")
    tokens = scratch / "tokens"
    command = [sys.executable, "-m", "workload", "data", "prepare"]
    run([*command, "--source", str(gathered), "--out", str(tokens)])
    image_from_folder(tokens, image)
