"""Machines that boot behind Compute Engine's instances: those with a boot disk of Google's Debian 12 image.

A machine lives as its instance does: off while that is TERMINATED, gone with it. The attached disks are
image files that outlive it. After a loss of power Google starts an instance again by itself, unless
`automaticRestart` is off (https://cloud.google.com/compute/docs/instances/host-maintenance-overview).
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rehearsal.cloud.collections.references import full_name
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError
from rehearsal.cloud.core.world import World
from rehearsal.cloud.machines.guestattributes import DISABLED, ENABLE, GuestAttributes
from rehearsal.cloud.machines.machines import Machines, Member
from rehearsal.cloud.machines.metadata import Guest
from rehearsal.cloud.services.places import Place, place
from rehearsal.hosts.network import mac_address
from rehearsal.hosts.spec import AttachedDisk, HostSpec

DEBIAN = re.compile(r"projects/debian-cloud/global/images/(family/)?debian-12(-bookworm-v\d+)?")
# From a loss of power to the next boot, in virtual seconds: this project's choice.
_RESTART_S = 120.0
_GIB = 1 << 30


@dataclass
class _Machine:
    """An instance's machine. `host` is its name among the machines."""

    name: str
    host: str
    place: Place
    guest_attributes: GuestAttributes
    # One change of the machine's power at a time.
    power: asyncio.Lock = field(default_factory=asyncio.Lock)


class Instances:
    """The machines of instances, by the instances' full names; `folder` keeps the disks' image files."""

    def __init__(self, world: World, machines: Machines, folder: Path) -> None:
        self._world = world
        self._machines = machines
        self.folder = folder
        self._instances: dict[str, _Machine] = {}
        machines.owners.append(self)

    # Work of operations

    async def create(self, name: str) -> None:
        """Boot a new instance's machine; ApiError leaves none."""
        host, body = name.rpartition("/")[2], self._world.directory[name]
        if any(machine.host == host for machine in self._instances.values()):
            raise NotEmulatedError(f"A second instance with the machine name {host}")
        subnet = full_name(self._world, body["networkInterfaces"][0]["subnetwork"])
        machine = _Machine(name, host, place(self._world, subnet), GuestAttributes(host))
        self._instances[name] = machine
        try:
            await self._boot(machine)
        except BaseException:
            await self.remove(name)
            raise
        machine.guest_attributes.agent_writes("deviceInfo", "hostname", host)

    async def start(self, name: str) -> None:
        """Boot a machine that is off, with the boot disk that it had."""
        if (machine := self._instances.get(name)) is not None:
            await self._boot(machine)

    async def stop(self, name: str) -> None:
        """Switch a machine off in order."""
        if (machine := self._instances.get(name)) is not None:
            async with machine.power:
                await self._machines.switch_off([machine.host])

    async def reset(self, name: str) -> None:
        """Cut the power and boot again."""
        if (machine := self._instances.get(name)) is not None:
            await self._machines.cut([machine.host])
            await self._boot(machine)

    async def remove(self, name: str) -> None:
        """Switch a machine off in order and erase its boot disk."""
        await self.stop(name)
        if (machine := self._instances.pop(name, None)) is not None:
            await self._machines.discard([machine.host])

    def announce(self) -> None:
        """Wake those that wait for a change of metadata."""
        self._machines.announce()

    def guest_attributes(self, name: str, path: str) -> JsonObject:
        """Return a machine's guest attributes at a path; ApiError where they are disabled."""
        machine = self._instances.get(name)
        if machine is None:
            raise NotEmulatedError("Guest attributes of an instance without a machine")
        if (own := self._attributes(machine)) is None:
            raise ApiError(400, "FAILED_PRECONDITION", DISABLED)
        return own.entry(path)

    def is_on(self, name: str) -> bool | None:
        """Return True if the instance's machine runs, None if it has none."""
        machine = self._instances.get(name)
        return None if machine is None else self._machines.hosts.running(machine.host)

    async def _boot(self, machine: _Machine) -> None:
        async with machine.power:
            if not self._machines.hosts.running(machine.host):
                await self._machines.boot([await asyncio.to_thread(self._spec, machine)])

    async def cut_power(self, host: str) -> bool:
        """See Owners; the machine starts again later, by itself, unless its instance says otherwise."""
        machine = next((machine for machine in self._instances.values() if machine.host == host), None)
        if machine is None:
            return False
        await self._machines.cut([host])
        body = self._world.directory[machine.name]
        if body["status"] == "RUNNING":
            restarts = (body.get("scheduling") or {}).get("automaticRestart", not _revocable(body))
            body["status"] = "REPAIRING" if restarts else "TERMINATED"
            if restarts:
                self._world.spawn(self._restart(machine))
        return True

    async def _restart(self, machine: _Machine) -> None:
        await self._world.clock.sleep(_RESTART_S)
        if self._status(machine) == "REPAIRING":
            await self._boot(machine)
        if self._status(machine) == "REPAIRING":
            self._world.directory[machine.name]["status"] = "RUNNING"

    def _status(self, machine: _Machine) -> str:
        gone = self._instances.get(machine.name) is not machine
        return "" if gone else str(self._world.directory[machine.name]["status"])

    # Disks

    def _spec(self, machine: _Machine) -> HostSpec:
        body, where = self._world.directory[machine.name], machine.place
        disks = tuple(self._attached(disk) for disk in body["disks"] if not disk.get("boot"))
        address = f"{body['networkInterfaces'][0]['networkIP']}/{where.cidr.prefixlen}"
        return HostSpec(machine.host, machine.host, 0, address, where.gateway, where.mtu, disks)

    def _attached(self, disk: JsonObject) -> AttachedDisk:
        """Return a disk's image file, which gets the disk's size; a writer has a file of its own."""
        name, read_only = full_name(self._world, disk["source"]), disk.get("mode") == "READ_ONLY"
        body, image = self._world.directory[name], self._world.images.get(name)
        if image is None or not (read_only or image.parent == self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            own = self.folder / f"{body['id']}.img"
            if image is not None:
                shutil.copyfile(image, own)
            image = self._world.images[name] = own
            self._world.private.setdefault(name, {})["written"] = True
        if image.parent == self.folder:
            size = int(body["sizeGb"]) * _GIB
            with image.open("ab") as file:
                file.truncate(max(size, image.stat().st_size))
        return AttachedDisk(image, disk["deviceName"], read_only)

    # Look-ups

    def guest(self, address: str) -> Guest | None:
        """Return the instance with this internal address, for its metadata server."""
        for machine, body in self._present():
            if body["networkInterfaces"][0]["networkIP"] == address:
                return self._guest(machine, body)
        return None

    def members(self) -> Iterable[Member]:
        """See Owners."""
        for machine, body in self._present():
            address = body["networkInterfaces"][0]["networkIP"]
            account, _ = _account(body)
            yield Member(machine.place.network, [address], frozenset(_tags(body)), account)

    def status(self) -> list[JsonObject]:
        """Return every instance with a machine, as GET /status of the control socket has them."""
        return [
            {
                "name": machine.host,
                "resource": machine.name,
                "account": _account(body)[0],
                "state": body["status"],
                "address": body["networkInterfaces"][0]["networkIP"],
                "running": self._machines.hosts.running(machine.host),
            }
            for machine, body in self._present()
        ]

    def _present(self) -> list[tuple[_Machine, JsonObject]]:
        """Return the machines with their instances; one that goes may have none any more."""
        bodies = [(machine, self._world.directory.get(machine.name)) for machine in self._instances.values()]
        return [(machine, body) for machine, body in bodies if body is not None]

    def _attributes(self, machine: _Machine) -> GuestAttributes | None:
        enabled = _metadata(self._world.directory[machine.name]).get(ENABLE, "").upper() == "TRUE"
        return machine.guest_attributes if enabled else None

    def _guest(self, machine: _Machine, body: JsonObject) -> Guest:
        (card, *_), where = body["networkInterfaces"], machine.place
        account, scopes = _account(body)
        scheduling = body.get("scheduling") or {}
        return Guest(
            name=machine.host,
            instance_id=int(body["id"]),
            zone=machine.name.split("/")[3],
            machine_type=body["machineType"].rpartition("/")[2],
            address=card["networkIP"],
            external_address=next((a["natIP"] for a in card.get("accessConfigs", ())), ""),
            gateway=where.gateway,
            netmask=str(where.cidr.netmask),
            mac=mac_address(card["networkIP"]),
            mtu=where.mtu,
            network=where.network.rpartition("/")[2],
            attributes=_metadata(body),
            tags=_tags(body),
            preempted=False,
            maintenance={},
            revocable=_revocable(body),
            service_account=account,
            scopes=scopes,
            guest_attributes=self._attributes(machine),
            restarts=bool(scheduling.get("automaticRestart", not _revocable(body))),
            on_maintenance=str(scheduling.get("onHostMaintenance", "MIGRATE")),
        )


def _metadata(body: JsonObject) -> dict[str, str]:
    items = (body.get("metadata") or {}).get("items") or ()
    return {item["key"]: item.get("value", "") for item in items}


def _tags(body: JsonObject) -> tuple[str, ...]:
    return tuple((body.get("tags") or {}).get("items") or ())


def _account(body: JsonObject) -> tuple[str, tuple[str, ...]]:
    """Return the instance's service account and its scopes; "" for none."""
    first: JsonObject = next(iter(body.get("serviceAccounts") or ()), {})
    return first.get("email", ""), tuple(first.get("scopes") or ())


def _revocable(body: JsonObject) -> bool:
    scheduling = body.get("scheduling") or {}
    return bool(scheduling.get("preemptible") or scheduling.get("provisioningModel") == "SPOT")
