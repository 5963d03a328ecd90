"""The state disk: found by its name, formatted once, mounted; and /home on it or from Filestore."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable

from infra.layers.slurm import names
from infra.layers.slurm.conf import exports
from infra.settings.schema import Settings
from slurm.errors import SlurmError
from slurm.system import System

DEVICE = f"/dev/disk/by-id/google-{names.STATE_DEVICE}"
# https://cloud.google.com/compute/docs/disks/disk-symlinks
_ATTACHED_S = 60.0
_LOG = logging.getLogger(__name__)
_NOTHING, _AMBIGUOUS = 2, 8
"""Exit status of blkid: no file system, no partition table; several. https://man7.org/linux/man-pages/man8/blkid.8.html"""


def state(system: System, cluster: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Mount the state disk, and make its folders.

    A disk with anything on it is never formatted. A formatting that was killed has left nothing that blkid
    knows, since mke2fs writes the superblock last, and is begun again.

    Raises:
        SlurmError: it isn't attached, holds something else than a file system, or another cluster's jobs.
    """
    until_s = time.monotonic() + _ATTACHED_S
    while not system.path(DEVICE).exists():
        if time.monotonic() > until_s:
            raise SlurmError(f"{DEVICE}: no such disk is attached\n    fix: tpu up ENV slurm")
        sleep(1.0)
    if not system.mounted(names.STATE):
        kind = _kind(system)
        if not kind:
            system.run(["mkfs.ext4", "-q", "-m", "0", "-L", names.STATE_DEVICE, DEVICE], timeout_s=600.0)
        system.folder(names.STATE)
        # A file system is repaired, or the mount fails with what is wrong.
        system.run(["mount", "-o", "noatime,discard", DEVICE, names.STATE])
    system.run(["resize2fs", DEVICE], timeout_s=600.0)  # after the disk has grown
    system.folder(names.STATE_SAVE, mode=0o700, owner="slurm")
    system.folder(names.REQUESTS, mode=0o700, owner="slurm")
    system.folder(names.HOME_EXPORT)
    of = f"{names.STATE_SAVE}/clustername"  # slurmctld's, which ends over another name
    before = file.read_text().strip() if (file := system.path(of)).exists() else cluster
    if before != cluster:
        fix = f"slurm:name: {before}; or on the controller, to give its jobs to {cluster}: sudo rm {of}"
        raise SlurmError(
            f"{of}: the state disk is that of the cluster {before}, not {cluster}\n    fix: {fix}"
        )


def _kind(system: System) -> str:
    """Return the disk's file system, empty if there is nothing on it. Raises SlurmError for another one."""
    script = 'blkid --probe --output export "$1"; echo "STATUS=$?"'
    lines = system.run(["sh", "-c", script, "sh", DEVICE]).splitlines()
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    status, kind = fields.get("STATUS"), fields.get("TYPE", "")
    if status == str(_NOTHING) and not kind:
        return ""
    if kind != "ext4":
        table = f"a partition table ({fields['PTTYPE']})" if "PTTYPE" in fields else "something unknown"
        what = "signatures of several file systems" if status == str(_AMBIGUOUS) else kind or table
        raise SlurmError(
            f"{DEVICE}: holds {what[:80]}, not the ext4 of a state disk; nothing was formatted\n"
            "    fix: name the right disk as slurm:existingStateDisk, or an empty one"
        )
    return kind


def home(system: System, settings: Settings, served: str) -> None:
    """Mount /home: of the state disk, which is exported, or what another machine serves.

    Raises:
        SlurmError: it can't be mounted, or something else is there.
    """
    shared = exports.text(settings)
    if shared:
        if not system.mounted("/home"):
            system.run(["mount", "--bind", names.HOME_EXPORT, "/home"])
        system.write("/etc/exports", shared)
        system.start("nfs-server.service")
        system.run(["exportfs", "-ra"])
    else:
        mount(system, served)


class Exports:
    """Export of /home, repeated when a login node comes or has another address.

    exportfs leaves out a name that isn't in DNS yet, and succeeds: its machine would not be root there.
    """

    def __init__(
        self, system: System, settings: Settings, resolve: Callable[[str], str] = socket.gethostbyname
    ):
        self._system, self._resolve = system, resolve
        self._logins = exports.logins(settings) if exports.text(settings) else []
        self._exported: list[str] = []

    def apply(self, _: object) -> None:
        """Export anew if need be. Whatever fails is logged, and done again."""
        addresses = [self._address(name) for name in self._logins]
        if addresses == self._exported:
            return
        try:
            self._system.run(["exportfs", "-ra"])
            self._exported = addresses
        except SlurmError as error:
            _LOG.warning("/home isn't exported to the login nodes: %s", error)

    def _address(self, name: str) -> str:
        try:
            return self._resolve(name)
        except OSError:
            return ""


def mount(system: System, served: str) -> None:
    """Mount what another machine serves, SERVER:PATH, as /home. Raises SlurmError."""
    source = system.mounted("/home")
    if source == served:
        return
    if source:
        raise SlurmError(f"/home: {source} is mounted there, not {served}\n    fix: restart this machine")
    try:
        system.run(["mount", "-t", "nfs", "-o", "hard,nosuid,nodev", served, "/home"], timeout_s=120.0)
    except SlurmError as error:
        fix = "see whether the controller runs: tpu status, and its log; then start this machine again"
        raise SlurmError(f"/home isn't mounted: {served}: {error}\n    fix: {fix}") from None
