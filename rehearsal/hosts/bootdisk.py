"""A machine's boot disk: a file system of its own, the writable layer over the image that all of them share.

It has a size, so a machine can fill its disk and this computer's isn't touched: the file behind it takes
the room of what was written. It lasts as long as the machine's incarnation: over reboots and power-offs, not
over deletion. What a cut of power would lose on a real disk, the data that was not synced yet, is kept here.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from rehearsal.hosts.commands import run
from rehearsal.hosts.disks import LoopDevices
from rehearsal.hosts.image import LOGIN, SECOND_LOGIN
from rehearsal.hosts.network import mac_address

if TYPE_CHECKING:
    from rehearsal.hosts.spec import HostSpec

# A TPU VM's has 100 GiB; less, so that a machine that fills it with bytes doesn't fill this computer's disk.
SIZE_GIB = 16
# No journal and no reserve: it need not survive this computer's own crash, and full is full for root too.
_MAKE = ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard")


@dataclass(frozen=True)
class Access:
    """The files of the world that every machine gets a copy of."""

    hosts_file: Path  # names and addresses, for /etc/hosts
    ca_certificate: Path  # PEM of the CA behind Google's names here
    ca_bundle: Path  # the system's trusted CAs and that one
    authorized_key: Path  # the engineer's public ssh key


class BootDisk:
    """The disk; `root` is the mounted file system while it is open."""

    def __init__(self, folder: Path, image: Path, loops: LoopDevices) -> None:
        self._folder = folder
        self._image = image
        self._loops = loops
        self._disk = folder / "disk.img"
        self._layer = folder / "layer"
        self.root = folder / "root"

    def open(self) -> None:
        """Make an empty disk and mount it over the image; HostError leaves nothing behind."""
        self._layer.mkdir(parents=True)
        self.root.mkdir()
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self._folder)
            with self._disk.open("wb") as file:
                file.truncate(SIZE_GIB << 30)
            run([*_MAKE, self._disk])
            device = self._loops.attach(self._disk, read_only=False)
            undo.callback(self._loops.release, self._disk)
            # Nothing would be gained by zeroing the inodes' tables of a disk that lives for minutes.
            run(["mount", "-t", "ext4", "-o", "noatime,noinit_itable", device, self._layer])
            undo.callback(run, ["umount", self._layer])
            for part in ("upper", "work"):
                (self._layer / part).mkdir()
            layers = f"lowerdir={self._image},upperdir={self._layer}/upper,workdir={self._layer}/work"
            # volatile: nothing waits for this computer's disk.
            run(["mount", "-t", "overlay", "-o", f"{layers},volatile", "overlay", self.root])
            undo.pop_all()

    def close(self) -> None:
        """Unmount and erase."""
        run(["umount", self.root])
        run(["umount", self._layer])
        self._loops.release(self._disk)
        shutil.rmtree(self._folder)

    def furnish(self, spec: HostSpec, access: Access) -> None:
        """Write what makes the copy this machine: name, address, keys, trusted CA. Run before each boot."""
        address = spec.address_cidr.split("/")[0]
        self._write("etc/hostname", f"{spec.name}\n")
        self._write("etc/hosts", f"{access.hosts_file.read_text()}{address} {spec.name}\n")
        self._write("etc/systemd/network/10-host0.network", _network_unit(spec, address))
        self._write("usr/local/share/ca-certificates/rehearsal.crt", access.ca_certificate.read_text())
        self._write("etc/ssl/certs/ca-certificates.crt", access.ca_bundle.read_text())
        for login in (LOGIN, SECOND_LOGIN):  # not in their homes, as OS Login: those may be elsewhere
            self._write(f"etc/ssh/authorized_keys.d/{login}", access.authorized_key.read_text())
        if not (self.root / "etc/ssh/ssh_host_ed25519_key").exists():
            self._write("etc/machine-id", f"{uuid.uuid4().hex}\n")
            self._write_host_key()

    def _write_host_key(self) -> None:
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        self._write("etc/ssh/ssh_host_ed25519_key", private.decode(), 0o600)
        self._write("etc/ssh/ssh_host_ed25519_key.pub", f"{public.decode()}\n")

    def _write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.root / name
        if path.exists() and path.read_text() == text:
            return path  # nothing is written to a disk that may be full
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path


def _network_unit(spec: HostSpec, address: str) -> str:
    return f"""[Match]
Name=host0

[Link]
MTUBytes={spec.mtu}
MACAddress={mac_address(address)}

[Network]
Address={address}/32
LinkLocalAddressing=no
IPv6AcceptRA=no

[Route]
Gateway={spec.gateway}
GatewayOnLink=yes
"""
