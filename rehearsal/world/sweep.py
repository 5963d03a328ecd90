"""Removal of a world's control groups and loop devices, which outlive its first process.

Everything else of a world (mounts, network, host names, processes) belongs to namespaces and ends with
the last process in them. Every function may run twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from rehearsal.world.layout import Layout

_LOOP_CLR_FD = 0x4C01  # linux/loop.h


def cgroup_mounts() -> Iterator[Path]:
    """Return the mounts of control groups: systemd's own hierarchy (version 1) and the unified one."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            yield Path(before.split()[4])


def join_cgroup(layout: Layout) -> None:
    """Put the calling process, and all that it will start, into the world's control group."""
    for mount in cgroup_mounts():
        group = mount / layout.cgroup_name
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").write_text("0")


def loop_devices(below: Path) -> Iterator[Path]:
    """Yield the loop devices whose backing file lies, or lay, below this folder."""
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # detached between the listing and the reading
            backing = entry.read_text().strip().removesuffix(" (deleted)")
            if Path(backing).is_relative_to(below):
                yield Path("/dev") / entry.parent.parent.name


def sweep(layout: Layout, patience_s: float = 10.0) -> list[str]:
    """Remove the world's control groups and loop devices; return what remains after `patience_s`, and why.

    A killed process leaves its control group a moment after its death, so this tries again.
    """
    end = time.monotonic() + patience_s
    while True:
        _kill(layout.cgroup_name)
        left = [*_detach(layout.root), *_remove_groups(layout.cgroup_name)]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def erase(folder: Path) -> None:
    """Remove a folder with the boot disks of many machines in it; rm does it in a third of Python's time."""
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(folder)], check=False)


def _detach(root: Path) -> Iterator[str]:
    for device in list(loop_devices(root)):
        try:
            with device.open("rb") as handle:
                fcntl.ioctl(handle, _LOOP_CLR_FD)
        except OSError as refused:
            yield f"loop device {device}: {refused.strerror}"


def _kill(name: str) -> None:
    """Kill the processes left in the world's groups after its first process is gone."""
    for mount in cgroup_mounts():
        for group in _groups(mount / name):
            with contextlib.suppress(OSError):  # gone meanwhile
                # 0 is a process outside this pid namespace; for kill(2) it would be the caller's own group.
                for pid in filter(None, map(int, (group / "cgroup.procs").read_text().split())):
                    os.kill(pid, signal.SIGKILL)


def _groups(top: Path) -> list[Path]:
    """Return a control group and its descendants, except those that vanish during the listing."""
    return [Path(folder) for folder, _, _ in os.walk(top)]


def _remove_groups(name: str) -> Iterator[str]:
    for mount in cgroup_mounts():
        for group in sorted(_groups(mount / name), key=lambda path: len(path.parts), reverse=True):
            try:
                group.rmdir()
            except FileNotFoundError:
                continue
            except OSError as refused:
                yield f"control group {group}: {refused.strerror}"
