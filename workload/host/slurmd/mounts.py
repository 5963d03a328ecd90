"""Mounts of a host: /home, and what a nodeset's `networkStorage` lists."""

from __future__ import annotations

import json
import os
from pathlib import Path

from workload.host.errors import HostError
from workload.host.slurmd.arguments import Mount
from workload.host.slurmd.install import command

_GCSFUSE = "/opt/tpu/current/gcsfuse"
# In memory: gone with the mounts after a reboot.
RECORD = Path("/run/tpu/slurm-mounts.json")


def mount(desired: Mount, record: Path = RECORD) -> None:
    """Mount a file system unless an earlier start did. Raises HostError."""
    recorded = json.loads(record.read_text()) if record.exists() else {}
    mounted = os.path.ismount(desired.target)
    if mounted and recorded.get(desired.target) == desired.source:
        return
    what = f"{desired.source} can't be mounted at {desired.target}"
    if mounted and desired.target not in recorded:
        raise HostError(f"{what}: another file system is there: umount it, and boot the host again")
    if desired.target in recorded:
        # Also where its program ended, and nothing answers there.
        command("sh", "-c", f"umount --lazy {desired.target} || true", doing=what)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(
        json.dumps(recorded | {desired.target: desired.source})
    )  # before: a mount is never unknown
    Path(desired.target).mkdir(parents=True, exist_ok=True)
    options = ["-o", ",".join(desired.options)] if desired.options else []
    if desired.kind == "gcsfuse":
        command(_GCSFUSE, "-o", "allow_other", *options, desired.source, desired.target, doing=what)
    else:
        command("mount", "-t", "nfs", *options, desired.source, desired.target, doing=what)
