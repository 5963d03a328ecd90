"""A control group for each machine: systemd-nspawn with `--keep-unit` puts the payload below its own.

Works with the unified hierarchy (version 2) and with the hybrid one (version 1 beside it).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from rehearsal.hosts.errors import HostError


def own_groups() -> list[Path]:
    """Return the folders of this process's groups, in systemd's own hierarchy and in the unified one."""
    memberships = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        memberships[controllers] = path
    folders = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        # In a container the mount may show but a part of the hierarchy, and begin at the container's group.
        top, mount = before.split()[3:5]
        if kind == "cgroup2":
            folders.append(Path(mount) / memberships[""].removeprefix(top).lstrip("/"))
        elif kind == "cgroup" and "name=systemd" in options.split(","):
            folders.append(Path(mount) / memberships["name=systemd"].removeprefix(top).lstrip("/"))
    if not folders:
        raise HostError("no control groups are mounted here, so systemd can't start inside a machine")
    return folders


class ControlGroup:
    """Group of a machine in every hierarchy."""

    def __init__(self, name: str) -> None:
        self._folders = [parent / name for parent in own_groups()]

    def open(self) -> None:
        """Make the group."""
        for folder in self._folders:
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise HostError(f"control group {folder}: {error.strerror}", "machines need root") from None

    def enter(self) -> list[str]:
        """Return the start of a command line that runs its remaining words in the group."""
        script = "".join(f'echo 0 > "{folder}/cgroup.procs" && ' for folder in self._folders)
        return ["/bin/sh", "-c", f'{script}exec "$@"', "sh"]

    def close(self) -> None:
        """Remove the group and what systemd made below it; nothing in it runs any more."""
        for folder in self._folders:
            below = sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True)
            for group in (*below, folder):
                with contextlib.suppress(FileNotFoundError):
                    group.rmdir()
