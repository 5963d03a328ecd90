"""Specification of an emulated host and of its disks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AttachedDisk:
    """A data disk: its image file and the name by which the guest finds it below /dev/disk/by-id/google-."""

    image: Path
    device_name: str
    read_only: bool


@dataclass(frozen=True)
class HostSpec:
    """Specification of a machine. `address_cidr`: its address with the subnet's prefix length; `mtu` in
    bytes.
    """

    name: str
    node: str
    worker: int
    address_cidr: str
    gateway: str
    mtu: int
    disks: tuple[AttachedDisk, ...] = ()
