"""Mounts of a host: /home, and what a nodeset's `networkStorage` lists."""

from __future__ import annotations

import os
from pathlib import Path

from workload.host.errors import HostError
from workload.host.slurmd.arguments import Mount
from workload.host.slurmd.install import command

_GCSFUSE = "/opt/tpu/current/gcsfuse"
_TABLE = Path("/proc/self/mountinfo")


def mount(desired: Mount, table: Path = _TABLE) -> None:
    """Mount a file system unless it is mounted. Raises HostError."""
    current = mounted(desired.target, table)
    if current == desired.source and _answers(desired.target):
        return
    what = f"{desired.target}, {desired.source}, isn't mounted"
    if current is not None and current != desired.source and desired.target == "/home":
        raise HostError(f"{what}: {current} is there: umount /home, and boot the host again")
    if current is not None:
        command("umount", "--lazy", desired.target, doing=what)
    Path(desired.target).mkdir(parents=True, exist_ok=True)
    options = ",".join(desired.options)
    flags = ["-o", options] if options else []
    if desired.kind == "gcsfuse":
        command(_GCSFUSE, "-o", "allow_other", *flags, desired.source, desired.target, doing=what)
    else:
        command("mount", "-t", "nfs", *flags, desired.source, desired.target, doing=what)


def mounted(target: str, table: Path = _TABLE) -> str | None:
    """Return the source of what is mounted at a folder; None if nothing is. proc_pid_mountinfo(5)."""
    source = None
    for line in table.read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[4] == target:
            source = after.split()[1]
    return source


def _answers(target: str) -> bool:
    """Return False for a mount whose program ended ("Transport endpoint is not connected")."""
    try:
        os.stat(target)
    except OSError:
        return False
    return True
