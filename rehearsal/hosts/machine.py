"""Machines that boot: systemd as init, on a disk of their own, in systemd-nspawn.

To be used inside private mount, network and pid namespaces, which `rehearsal.world` makes: whatever happens
to this process, the kernel then takes machines, mounts and network away with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

from rehearsal.hosts.bootdisk import Access, BootDisk
from rehearsal.hosts.disks import LoopDevices
from rehearsal.hosts.errors import HostError
from rehearsal.hosts.groups import ControlGroup
from rehearsal.hosts.image import claim
from rehearsal.hosts.network import BRIDGE, Network
from rehearsal.hosts.spec import HostSpec

# Exit status of systemd-nspawn --keep-unit for a machine that reboots.
_REBOOT = 133
# systemd's signal for poweroff.target (systemd(1), "Signals"): the ACPI power button.
_POWER_BUTTON = signal.SIGRTMIN + 4
BOOT_TIMEOUT_S = 60.0
# Concurrent boots that unpack their disk: more would only share the same cores.
_BOOTS_AT_ONCE = 8
# Each systemd needs a few inotify instances of root's, of which the kernel grants 128 in all by default.
_INOTIFY_INSTANCES = 8192


class Hosts(Protocol):
    """Machines, by name."""

    async def boot(self, spec: HostSpec) -> None:
        """Switch on; returns when the machine's init runs. A known machine keeps its boot disk."""

    async def power_off(self, name: str) -> None:
        """Press the ACPI power button and return at once; no effect on a machine that is off."""

    async def cut_power(self, name: str) -> None:
        """Power loss: SIGKILL; returns when the machine is dead. Nothing where it is off."""

    async def discard(self, name: str) -> None:
        """Pull and erase the boot disk: the next machine of this name starts from the image."""

    def running(self, name: str) -> bool:
        """Return True while the machine is on, reboots included."""


class NoHosts:
    """A cloud without machines, for clients of the other APIs."""

    async def boot(self, spec: HostSpec) -> None:
        """Raise HostError, always."""
        raise HostError(f"{spec.name} can't boot: the cloud's configuration names no machine image")

    async def power_off(self, name: str) -> None:
        """Do nothing: no machine runs."""

    async def cut_power(self, name: str) -> None:
        """Do nothing: no machine runs."""

    async def discard(self, name: str) -> None:
        """Do nothing: there are no machines."""

    def running(self, name: str) -> bool:
        """Return False: no machine runs."""
        return False


@dataclass
class _Machine:
    """A machine that exists, on or off. `pidfd` refers to its init while one runs, under `nspawn`."""

    disk: BootDisk
    group: ControlGroup
    number: int
    spec: HostSpec
    pidfd: int | None = None
    nspawn: asyncio.subprocess.Process | None = None
    power_lost: bool = False
    booted: asyncio.Event = field(default_factory=asyncio.Event)
    supervisor: asyncio.Task[None] | None = None

    @property
    def on(self) -> bool:
        return self.supervisor is not None and not self.supervisor.done()


class NspawnHosts:
    """`Hosts` on this computer. Each machine's console is the file `<name>.console` in `directory`."""

    def __init__(self, directory: Path, image: Path, access: Access, network: Network) -> None:
        self._directory = directory
        self._image = image
        self._access = access
        self._network = network
        self._machines: dict[str, _Machine] = {}
        self._numbers = count()
        self._loops = LoopDevices()
        self._boots = asyncio.Semaphore(_BOOTS_AT_ONCE)
        self._claim: int | None = None
        self._closing = False

    async def open(self) -> None:
        """Claim the image; raise this computer's limit on inotify instances where many machines need more."""
        limit = Path("/proc/sys/fs/inotify/max_user_instances")
        if int(limit.read_text()) < _INOTIFY_INSTANCES:
            limit.write_text(str(_INOTIFY_INSTANCES))
        self._claim = claim(self._image)
        (self._directory / "disks").mkdir(parents=True, exist_ok=True)

    async def close(self) -> None:
        """Cut the power of every host and erase every boot disk; nothing boots any more."""
        self._closing = True
        await asyncio.gather(*(self.discard(name) for name in list(self._machines)))
        for _ in range(_BOOTS_AT_ONCE):  # boots that were on their way
            await self._boots.acquire()
        await asyncio.gather(*(self.discard(name) for name in list(self._machines)))
        if self._claim is not None:
            os.close(self._claim)

    async def boot(self, spec: HostSpec) -> None:
        """See Hosts. HostError, with the end of the console, where init doesn't come up."""
        async with self._boots:
            if self._closing:
                raise HostError(f"{spec.name}: the world is ending")
            machine = self._machines.get(spec.name)
            if machine is not None and machine.on:
                raise HostError(f"{spec.name} is on already")
            if machine is None:
                machine = await asyncio.to_thread(self._make, spec)
                self._machines[spec.name] = machine
            machine.spec, machine.power_lost = spec, False
            started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # Its failure is nobody's where the wait below was cancelled, as at a world's end.
            started.add_done_callback(lambda future: future.exception())
            machine.supervisor = asyncio.create_task(self._supervise(machine, started))
            try:
                await asyncio.wait_for(asyncio.shield(started), BOOT_TIMEOUT_S)
            except TimeoutError:
                if machine.pidfd is None and machine.nspawn is not None:  # stuck before there was an init
                    with contextlib.suppress(ProcessLookupError):
                        machine.nspawn.kill()
                await self.cut_power(spec.name)
                why = f"{spec.name}: no init within {BOOT_TIMEOUT_S:.0f} s"
                raise HostError(why, f"read {self.console(spec.name)}") from None

    async def power_off(self, name: str) -> None:
        """Press the ACPI power button and return at once; no effect on a machine that is off."""
        self._signal(name, _POWER_BUTTON)

    async def cut_power(self, name: str) -> None:
        """See Hosts."""
        machine = self._machines.get(name)
        if machine is None or machine.supervisor is None:
            return
        machine.power_lost = True
        self._signal(name, signal.SIGKILL)
        await asyncio.wait([machine.supervisor])

    async def discard(self, name: str) -> None:
        """See Hosts."""
        await self.cut_power(name)
        machine = self._machines.pop(name, None)
        if machine is not None:
            await asyncio.to_thread(machine.disk.close)
            machine.group.close()

    def running(self, name: str) -> bool:
        """Return True while the machine is on, reboots included."""
        return name in self._machines and self._machines[name].on

    async def wait_booted(self, name: str) -> None:
        """Return when the machine's newest boot reached multi-user.target, the start-up script included."""
        await self._machines[name].booted.wait()

    async def wait_off(self, name: str) -> None:
        """Return when the machine is off."""
        machine = self._machines.get(name)
        if machine is not None and machine.supervisor is not None:
            await asyncio.wait([machine.supervisor])

    def console(self, name: str) -> Path:
        """File with the output of the machine's serial console and journal."""
        return self._directory / f"{name}.console"

    def _make(self, spec: HostSpec) -> _Machine:
        disk = BootDisk(self._directory / "disks" / spec.name, self._image, self._loops)
        group = ControlGroup(f"host-{spec.name}")
        group.open()
        try:
            disk.open()
        except HostError:
            group.close()
            raise
        return _Machine(disk, group, next(self._numbers), spec)

    def _signal(self, name: str, number: int) -> None:
        machine = self._machines.get(name)
        if machine is not None and machine.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(machine.pidfd, number)

    async def _supervise(self, machine: _Machine, started: asyncio.Future[None]) -> None:
        """Run the machine from power-on to power-off, through any number of reboots."""
        spec = machine.spec
        attached: list[Path] = []
        try:
            devices: dict[str, Path] = {}
            for disk in spec.disks:
                device = await asyncio.to_thread(self._loops.attach, disk.image, read_only=disk.read_only)
                attached.append(disk.image)
                devices[disk.device_name] = device
            await asyncio.to_thread(self._network.ensure_gateway, spec.gateway, spec.address_cidr)
            while await self._run_once(machine, devices, started) == _REBOOT and not machine.power_lost:
                pass
        except Exception as error:
            if started.done():
                raise
            started.set_exception(
                error if isinstance(error, HostError) else HostError(f"{spec.name}: {error}")
            )
        finally:
            for image in attached:
                self._loops.release(image)

    async def _run_once(
        self, machine: _Machine, devices: dict[str, Path], started: asyncio.Future[None]
    ) -> int:
        """Run one boot to its end; return systemd-nspawn's exit status."""
        await asyncio.to_thread(machine.disk.furnish, machine.spec, self._access)
        machine.booted.clear()
        name = machine.spec.name
        with contextlib.ExitStack() as opened:
            notices = opened.enter_context(
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            )
            notices.bind(f"\0rehearsal-{os.getpid()}-{machine.number}")
            console = opened.enter_context(self.console(name).open("ab"))
            process = machine.nspawn = await asyncio.create_subprocess_exec(
                *machine.group.enter(),
                *_uptime_from_now(),
                *nspawn_command(machine, devices),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=_environment(machine),
            )
            listener = asyncio.create_task(self._listen(machine, notices, started))
            try:
                status = await process.wait()
            finally:
                listener.cancel()
                if machine.pidfd is not None:
                    os.close(machine.pidfd)
                    machine.pidfd = None
        if not started.done():
            tail = self.console(name).read_text(errors="replace")[-800:].strip()
            raise HostError(f"{name} did not boot (systemd-nspawn ended with status {status}): {tail}")
        return status

    async def _listen(self, machine: _Machine, notices: socket.socket, started: asyncio.Future[None]) -> None:
        """Follow systemd-nspawn's messages of sd_notify(3): the init's pid, then the end of its boot."""
        loop = asyncio.get_running_loop()
        while True:
            lines = (await loop.sock_recv(notices, 4096)).decode().splitlines()
            facts = dict(line.split("=", 1) for line in lines if "=" in line)
            if leader := facts.get("X_NSPAWN_LEADER_PID"):
                machine.pidfd = os.pidfd_open(int(leader))
                if machine.power_lost:
                    self._signal(machine.spec.name, signal.SIGKILL)
                await _until_listening(int(leader))
                await asyncio.to_thread(self._network.join, f"vb-{_nspawn_name(machine)}")
                if not started.done():
                    started.set_result(None)
            if facts.get("READY") == "1":
                machine.booted.set()


def _nspawn_name(machine: _Machine) -> str:
    """Short, because systemd-nspawn names the network interface after it (15 bytes with its prefix)."""
    return f"m{machine.number}"


def nspawn_command(machine: _Machine, devices: dict[str, Path]) -> list[str]:
    """Return the command line that boots a machine with these disks, by their names in it."""
    binds = [f"--bind={device}:/dev/disk/by-id/google-{name}" for name, device in devices.items()]
    return [
        "systemd-nspawn",
        "--quiet",
        "--boot",
        f"--directory={machine.disk.root}",
        f"--machine={_nspawn_name(machine)}",
        f"--network-bridge={BRIDGE}",
        # Nobody's registry and nobody's unit: this computer's own systemd need not even run.
        "--register=no",
        "--keep-unit",
        "--notify-ready=yes",
        "--console=read-only",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
        "--bind=/dev/fuse",
        *binds,
    ]


def _uptime_from_now() -> list[str]:
    """Return the start of a command line whose processes count uptime from now, as on a kernel of their own.

    slurmctld sees a reboot under a job by it. time_namespaces(7)
    """
    passed_s = f"-{int(time.clock_gettime(time.CLOCK_BOOTTIME))}"
    return ["unshare", "--time", "--boottime", passed_s, "--monotonic", passed_s]


def _environment(machine: _Machine) -> dict[str, str]:
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "NOTIFY_SOCKET": f"@rehearsal-{os.getpid()}-{machine.number}",
        # /tmp on the boot disk, as on a TPU VM, and network settings that root may change.
        "SYSTEMD_NSPAWN_TMPFS_TMP": "0",
        "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",
    }


async def _until_listening(pid: int) -> None:
    """Wait until systemd handles the signal of the power button (it reads signals that it has blocked)."""
    button = 1 << (_POWER_BUTTON - 1)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it died: see its exit status
        while True:
            status = dict(
                line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            )
            if status["Name"] == "systemd" and int(status["SigBlk"], 16) & button:
                return
            await asyncio.sleep(0.01)
