"""Part of the tests inside private namespaces: boot machines, print observations as JSON.

python tests/rehearsal/hosts/inside.py FOLDER IMAGE scenario|hang

`scenario` is two machines' life, told in order; `hang` boots one and waits to be killed.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rehearsal.hosts.bootdisk import Access
from rehearsal.hosts.disks import image_from_folder
from rehearsal.hosts.firewall import ANYWHERE, Rule, Vpc
from rehearsal.hosts.machine import NspawnHosts
from rehearsal.hosts.network import Network
from rehearsal.hosts.spec import AttachedDisk, HostSpec
from rehearsal.world.sweep import loop_devices
from tests.infra.layers.tpu.boot.metadata import Metadata
from tests.limits import HANG_S
from tests.served import serving

METADATA = "169.254.169.254"
DISK = "/dev/disk/by-id/google-persistent-disk-1"
STARTUP = """#!/bin/bash
echo "hello from $(hostname)"
echo "boot $(cat /proc/sys/kernel/random/boot_id)" >> /var/lib/boots
exit 3
"""


class Stage:
    """A network, a metadata server, a disk with data, and machines."""

    def __init__(self, folder: Path, image: Path) -> None:
        self.folder = folder
        bundle = Path("/etc/ssl/certs/ca-certificates.crt")
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{METADATA} metadata.google.internal\n")
        self.key = folder / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        (folder / "data").mkdir()
        (folder / "data" / "tokens").write_text("real data\n")
        self.disk = folder / "data.img"
        image_from_folder(folder / "data", self.disk)
        self.network = Network((METADATA,))
        self.network.open()
        everything = Rule(False, True, 1000, ANYWHERE, ANYWHERE, (("all", ()),))
        self.network.firewall.apply([Vpc(("10.128.0.2", "10.128.0.3"), (everything,))])
        metadata = Metadata({"instance/attributes/startup-script": STARTUP})
        self.servers = ExitStack()  # open while this process lives
        self.servers.enter_context(serving(metadata.answer, socket.create_server((METADATA, 80))))
        access = Access(folder / "hosts", bundle, bundle, self.key.with_suffix(".pub"))
        self.hosts = NspawnHosts(folder / "hosts.d", image, access, self.network)

    def spec(self, worker: int) -> HostSpec:
        disks = (AttachedDisk(self.disk, "persistent-disk-1", read_only=True),)
        address = f"10.128.0.{2 + worker}/20"
        return HostSpec(f"tpu-dev-w{worker}", "tpu-dev", worker, address, "10.128.0.1", 8896, disks)

    async def boot(self, *workers: int) -> None:
        await asyncio.gather(*(self.hosts.boot(self.spec(worker)) for worker in workers))
        for worker in workers:
            async with asyncio.timeout(HANG_S):
                await self.hosts.wait_booted(f"tpu-dev-w{worker}")

    async def ssh(self, worker: int, command: str) -> str:
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        options += ["ConnectTimeout=5"]
        flags = [word for option in options for word in ("-o", option)]
        target = f"engineer@10.128.0.{2 + worker}"
        process = await asyncio.create_subprocess_exec(
            *("ssh", *flags, "-i", self.key, target, command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(HANG_S):
            output, _ = await process.communicate()
        return output.decode().strip()


def loops_of(disk: Path) -> str:
    """Loop devices that hold this image."""
    command = ["losetup", "--noheadings", "--output", "NAME", "--associated", disk]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def gateway_mac() -> str:
    """Return the address to which machines send frames for their gateway."""
    command = ["ip", "-json", "link", "show", "dev", "tpu0"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return str(json.loads(shown)[0]["address"])


async def scenario(stage: Stage) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    await stage.hosts.open()
    await stage.boot(0, 1)
    for worker in (0, 1):
        seen[f"hostname {worker}"] = await stage.ssh(worker, "hostname")
    seen["sudo"] = await stage.ssh(0, "sudo id --user")
    seen["mtu"] = await stage.ssh(0, "cat /sys/class/net/host0/mtu")
    seen["mac"] = await stage.ssh(0, "cat /sys/class/net/host0/address")
    seen["full-size packet"] = await stage.ssh(0, "ping -c1 -W2 -M do -s 8868 10.128.0.3 | grep -c ttl=")
    seen["state"] = await stage.ssh(0, "systemctl is-system-running --wait")
    seen["fuse"] = await stage.ssh(0, "sudo sh -c 'exec 3<>/dev/fuse && echo open'")
    seen["console"] = stage.hosts.console("tpu-dev-w1").read_text(errors="replace")
    seen["read"] = await stage.ssh(0, f"sudo mount -o ro,noload {DISK} /mnt && cat /mnt/tokens")
    seen["write to file"] = await stage.ssh(0, "sudo touch /mnt/mine")
    seen["write to device"] = await stage.ssh(0, f"sudo dd if=/dev/zero of={DISK} bs=4096 count=1 conv=fsync")
    seen["other reader"] = await stage.ssh(1, f"sudo mount -o ro,noload {DISK} /mnt && cat /mnt/tokens")
    seen["loops"] = loops_of(stage.disk).split()

    await stage.ssh(0, "sudo touch /var/lib/mine; sudo reboot")
    while len((await stage.ssh(0, "cat /var/lib/boots")).splitlines()) != 2:
        await asyncio.sleep(0.1)
    seen["running after reboot"] = stage.hosts.running("tpu-dev-w0")
    seen["kept by reboot"] = await stage.ssh(0, "ls /var/lib/mine")

    await stage.hosts.power_off("tpu-dev-w0")
    await stage.hosts.wait_off("tpu-dev-w0")
    seen["running after power-off"] = stage.hosts.running("tpu-dev-w0")
    seen["orderly"] = "Reached target poweroff.target" in stage.hosts.console("tpu-dev-w0").read_text()
    await stage.boot(0)
    seen["kept by power-off"] = await stage.ssh(0, "ls /var/lib/mine")

    seen["size"] = await stage.ssh(1, "df --output=size --block-size=1G / | tail -1")
    fill = "sudo fallocate --length 1T /var/filled; echo more | sudo tee /var/more"
    seen["filled"] = await stage.ssh(1, fill)
    disk = stage.folder / "hosts.d/disks/tpu-dev-w1/disk.img"
    seen["room taken"] = disk.stat().st_blocks * 512
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = await stage.ssh(1, boot)
    await stage.ssh(1, "sudo reboot")
    while len(after := await stage.ssh(1, boot)) != len(before) or after == before:
        await asyncio.sleep(0.1)
    seen["booted full"] = await stage.ssh(1, "hostname")
    seen["still full"] = await stage.ssh(1, "echo more | sudo tee /var/more")

    gateway = gateway_mac()
    await stage.hosts.cut_power("tpu-dev-w0")
    seen["gateway is the same"] = gateway_mac() == gateway
    seen["running after pull"] = stage.hosts.running("tpu-dev-w0")
    seen["other still runs"] = stage.hosts.running("tpu-dev-w1")
    await stage.hosts.discard("tpu-dev-w0")
    await stage.boot(0)
    await stage.hosts.cut_power(
        "tpu-dev-w1"
    )  # of two ports one is the lowest: one of them has gone now, either way
    seen["gateway is still the same"] = gateway_mac() == gateway
    seen["kept by discard"] = await stage.ssh(0, "ls /var/lib/mine")

    await stage.hosts.close()
    stage.network.close()
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    seen["mounts left"] = [line for line in mounts if str(stage.folder) in line]
    seen["loops left"] = [str(device) for device in loop_devices(stage.folder)]
    seen["links left"] = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True).stdout
    seen["files left"] = sorted(path.name for path in (stage.folder / "hosts.d" / "disks").iterdir())
    seen["processes left"] = [
        path.read_text().strip()
        for path in Path("/proc").glob("[0-9]*/comm")
        if path.read_text().startswith("systemd")
    ]
    return seen


async def hang(stage: Stage) -> None:
    await stage.hosts.open()
    await stage.boot(0)
    await stage.ssh(0, f"sudo mount -o ro,noload {DISK} /mnt")
    print(*loop_devices(stage.folder), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    stage = Stage(Path(sys.argv[1]), Path(sys.argv[2]))
    if sys.argv[3] == "hang":
        asyncio.run(hang(stage))
    print(json.dumps(asyncio.run(scenario(stage))))


if __name__ == "__main__":
    main()
