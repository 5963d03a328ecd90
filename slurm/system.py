"""Files, mounts and units of a machine: each call finds done what an earlier one did, and completes it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from slurm.errors import SlurmError
from slurm.machine import call

Run = Callable[..., str]
ANSWERS_S = 60.0


class System:
    """The machine; `root`: folder that stands for its file system; `run`: of programs."""

    def __init__(self, root: Path = Path("/"), run: Run = call):
        self.root, self.run = root, run

    def path(self, name: str) -> Path:
        """Return the place of an absolute path."""
        return self.root / name.lstrip("/")

    def write(self, name: str, content: str | bytes, *, mode: int = 0o644, owner: str = "") -> bool:
        """Replace a file, so that a power failure leaves it old or new; return whether it differed."""
        path, data = self.path(name), content.encode() if isinstance(content, str) else content
        if path.exists() and path.read_bytes() == data:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            if owner:
                shutil.chown(fresh, owner, owner)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return True

    def folder(self, name: str, *, mode: int = 0o755, owner: str = "") -> None:
        """Make a folder with this mode and owner."""
        path = self.path(name)
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        if owner:
            shutil.chown(path, owner, owner)

    def mounted(self, name: str) -> str:
        """Return what is mounted at a path; empty: nothing."""
        try:
            return self.run(["findmnt", "--noheadings", "--output", "SOURCE", "--mountpoint", name]).strip()
        except SlurmError:  # its way to say no
            return ""

    def start(self, unit: str, *, again: bool = False) -> None:
        """Start a unit; `again`: restart it."""
        self.run(["systemctl", "restart" if again else "start", unit], timeout_s=180.0)


def patiently(step: Callable[[], object], sleep: Callable[[float], None] = time.sleep) -> None:
    """Repeat a step while a daemon that has just started doesn't answer. Raises its SlurmError in the end."""
    until_s = time.monotonic() + ANSWERS_S
    while True:
        try:
            step()
        except SlurmError:
            if time.monotonic() > until_s:
                raise
            sleep(1.0)
        else:
            return
