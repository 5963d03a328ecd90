"""Data disks: image files, and the loop devices through which machines see them as block devices."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

from rehearsal.hosts.commands import run
from rehearsal.hosts.errors import HostError

# linux/loop.h
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LO_FLAGS_READ_ONLY = 1
_LO_FLAGS_AUTOCLEAR = 4
_LOOP_MAJOR = 7
# struct loop_config: fd, block_size, struct loop_info64 (device, inode, rdevice, offset, sizelimit; number,
# encrypt_type, encrypt_key_size, flags; file_name, crypt_name, encrypt_key; init[2]), reserved[8].
_LOOP_CONFIG = struct.Struct("=II 5Q 4I 64s 64s 32s 2Q 8Q")
_ATTEMPTS = 20

_MIB = 1 << 20


@dataclass
class _Loop:
    """An attached image. The descriptor keeps the device: once it is closed everywhere, the kernel detaches
    it.
    """

    device: Path
    descriptor: int
    read_only: bool
    users: int = 0


class LoopDevices:
    """Image files attached as block devices: one device for all readers of an image.

    The kernel's autoclear flag frees a device with its last user, so none outlives the processes here and the
    machines, however they end. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._loops: dict[Path, _Loop] = {}
        self._changing = threading.Lock()

    def attach(self, image: Path, *, read_only: bool) -> Path:
        """Return the block device of the image; call `release` once for each call.

        HostError where a writer would share the image with anybody.
        """
        image = image.resolve()
        with self._changing:
            loop = self._loops.get(image)
            if loop is not None and not (loop.read_only and read_only):
                raise HostError(f"disk image {image} is in use, and a writer can't share it")
            if loop is None:
                loop = self._loops[image] = _attach(image, read_only)
            loop.users += 1
            return loop.device

    def release(self, image: Path) -> None:
        """Undo one `attach`."""
        image = image.resolve()
        with self._changing:
            loop = self._loops[image]
            loop.users -= 1
            if loop.users == 0:
                os.close(loop.descriptor)
                del self._loops[image]


def _attach(image: Path, read_only: bool) -> _Loop:
    access = os.O_RDONLY if read_only else os.O_RDWR
    try:
        backing = os.open(image, access | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(f"disk image {image}: {error.strerror}") from None
    try:
        for _ in range(_ATTEMPTS):
            device = _free_device()
            descriptor = os.open(device, access | os.O_CLOEXEC)
            try:
                fcntl.ioctl(descriptor, _LOOP_CONFIGURE, _configuration(image, backing, read_only))
            except OSError as error:
                os.close(descriptor)
                if error.errno == errno.EBUSY:  # another process took it between the two calls
                    continue
                raise
            return _Loop(device, descriptor, read_only)
    except OSError as error:
        raise HostError(
            f"loop device for {image}: {error.strerror}", "losetup --find must work here"
        ) from None
    finally:
        os.close(backing)
    raise HostError(f"no free loop device for {image}", "losetup --all shows who has them")


def _free_device() -> Path:
    with open("/dev/loop-control", "rb") as control:
        number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
    device = Path(f"/dev/loop{number}")
    if not device.exists():  # a container's /dev has no kernel behind it to make the node
        os.mknod(device, 0o600 | stat.S_IFBLK, os.makedev(_LOOP_MAJOR, number))
    return device


def _configuration(image: Path, backing: int, read_only: bool) -> bytes:
    flags = _LO_FLAGS_AUTOCLEAR | (_LO_FLAGS_READ_ONLY if read_only else 0)
    name = os.fsencode(image)[:63]
    return _LOOP_CONFIG.pack(backing, 0, *(0,) * 5, 0, 0, 0, flags, name, b"", b"", *(0,) * 10)


def image_from_folder(folder: Path, image: Path, *, label: str = "data") -> None:
    """Write an ext4 file system that holds the folder's content, as a disk would that was filled by a VM.

    It appears whole or not at all. The size is what the content needs.
    """
    content = sum(path.lstat().st_size for path in folder.rglob("*"))
    files = sum(1 for _ in folder.rglob("*"))
    # Block padding and inodes per file, a tenth for ext4's own, and a journal.
    size = int(content * 1.1) + files * 8192 + 32 * _MIB
    partial = image.with_name(f"{image.name}.partial")
    partial.unlink(missing_ok=True)
    run(["mkfs.ext4", "-q", "-L", label, "-E", "root_owner=0:0", "-d", folder, partial, f"{size // 1024}k"])
    partial.rename(image)
