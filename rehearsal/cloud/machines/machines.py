"""The machines of every service: their power, and what the metadata server and the firewall look up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rehearsal.cloud.core.errors import ApiError, not_found
from rehearsal.cloud.machines.metadata import Guest
from rehearsal.hosts.errors import HostError
from rehearsal.hosts.machine import Hosts
from rehearsal.hosts.spec import HostSpec

# https://cloud.google.com/compute/docs/instances/spot#preemption-process: up to 30 s after the notice.
NOTICE_S = 30.0
# Pause between looks at a machine that is switching off.
_LOOK_S = 0.1


@dataclass(frozen=True)
class Member:
    """Machines as firewall rules see them: `network` by its full name."""

    network: str
    addresses: Sequence[str]
    tags: frozenset[str]
    account: str


class Owners(Protocol):
    """A service's resources that have machines."""

    def guest(self, address: str) -> Guest | None:
        """Return the machine with this internal address."""

    def members(self) -> Iterable[Member]:
        """Return the machines of each resource."""

    async def cut_power(self, host: str) -> bool:
        """Cut the power of one machine; return False if no machine of theirs has this name."""


class Machines:
    """All machines, of whatever service; each service adds its own to `owners`."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.owners: list[Owners] = []
        self._changed = asyncio.Event()

    # Look-ups

    def guest(self, address: str) -> Guest | None:
        """Return the machine with this internal address."""
        guests = (owner.guest(address) for owner in self.owners)
        return next((guest for guest in guests if guest is not None), None)

    def members(self) -> list[Member]:
        """Return every machine, for the firewall."""
        return [member for owner in self.owners for member in owner.members()]

    def announce(self) -> None:
        """Wake those that wait for a change of metadata."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changed(self) -> None:
        """Wait for the next announcement."""
        await self._changed.wait()

    # Power

    async def boot(self, specs: Iterable[HostSpec]) -> None:
        """Boot machines side by side; ApiError if one doesn't come up."""
        boots = [self.hosts.boot(spec) for spec in specs]
        for outcome in await asyncio.gather(*boots, return_exceptions=True):
            if isinstance(outcome, HostError):
                raise ApiError(500, "INTERNAL", f"a machine did not boot: {outcome}") from outcome
            if isinstance(outcome, BaseException):
                raise outcome

    async def press(self, names: Sequence[str]) -> None:
        """Press the power buttons."""
        await asyncio.gather(*(self.hosts.power_off(name) for name in names))

    async def finish(self, names: Sequence[str], limit_s: float) -> None:
        """Wait until machines are off, `limit_s` real seconds at most, then cut the power of the rest."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        while loop.time() < end and any(self.hosts.running(name) for name in names):
            await asyncio.sleep(_LOOK_S)
        await self.cut(names)

    async def switch_off(self, names: Sequence[str]) -> None:
        """Switch machines off in order."""
        await self.press(names)
        await self.finish(names, NOTICE_S)

    async def cut(self, names: Sequence[str]) -> None:
        """Cut the power of machines."""
        await asyncio.gather(*(self.hosts.cut_power(name) for name in names))

    async def discard(self, names: Sequence[str]) -> None:
        """Erase the boot disks of machines."""
        await asyncio.gather(*(self.hosts.discard(name) for name in names))

    async def pull(self, host: str) -> None:
        """Pull one machine's plug, as a scenario's action; ApiError 404 if none has this name."""
        for owner in self.owners:
            if await owner.cut_power(host):
                return
        raise not_found(host)
