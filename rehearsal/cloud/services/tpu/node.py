"""A TPU node: its API resource, its machines, and their metadata."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from functools import cached_property

from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.machines.guestattributes import ENABLE, GuestAttributes
from rehearsal.cloud.machines.metadata import Guest
from rehearsal.cloud.services.places import Place
from rehearsal.cloud.services.tpu.catalog import Slice
from rehearsal.hosts.machine import Hosts
from rehearsal.hosts.network import mac_address
from rehearsal.hosts.spec import AttachedDisk, HostSpec

# The port that every network endpoint of a node names.
ENDPOINT_PORT = 8470
# Keys that the TPU's own agent adds to a machine's metadata, some time after its boot began.
LATE_KEYS = ("agent-worker-number", "worker-network-endpoints")


@dataclass
class Node:
    """A node that exists. `body` is the resource as stored, its `state` included."""

    name: str  # projects/P/locations/Z/nodes/N
    body: JsonObject
    slice: Slice
    place: Place
    addresses: list[str]
    preempted: bool = False
    changing: bool = False  # a nodes.patch is under way
    unwritten: set[tuple[int, str]] = field(
        default_factory=set
    )  # workers and keys that their agent is to write yet
    # One change of the machines' power at a time.
    power: asyncio.Lock = field(default_factory=asyncio.Lock)
    # As Google's: machines are not called after their node, and nothing of it is in their ids.
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    @cached_property
    def id(self) -> str:
        """The short name."""
        return self.name.rsplit("/", 1)[-1]

    @cached_property
    def zone(self) -> str:
        """Such as us-east5-b."""
        return self.name.split("/")[3]

    @property
    def state(self) -> str:
        """Node.State."""
        return str(self.body["state"])

    @cached_property
    def host_names(self) -> list[str]:
        """Names of the machines, in worker order."""
        return [f"{self.id}-w{worker}" for worker in range(self.slice.hosts)]

    @cached_property
    def instances(self) -> list[tuple[str, int]]:
        """Names and ids of the machines in Compute Engine, in worker order; new with each node."""
        return [
            (f"t1v-n-{self.token}-w-{worker}", 10**18 + secrets.randbelow(8 * 10**18))
            for worker in range(self.slice.hosts)
        ]

    @cached_property
    def guest_attributes(self) -> list[GuestAttributes]:
        """Guest attributes of the machines, in worker order."""
        return [GuestAttributes(name) for name in self.host_names]

    @property
    def has_guest_attributes(self) -> bool:
        """True if its metadata enable them."""
        return str(self.body.get("metadata", {}).get(ENABLE, "")).upper() == "TRUE"

    @property
    def revocable(self) -> bool:
        """True if Google may take it away."""
        scheduling = self.body["schedulingConfig"]
        model = scheduling.get("provisioningModel")
        return bool(scheduling.get("spot") or scheduling.get("preemptible") or model == "SPOT")

    def specs(self, world: World) -> list[HostSpec]:
        """Return the machines to boot, with the disks that are attached now."""
        disks = tuple(
            AttachedDisk(world.images[disk["sourceDisk"]], f"persistent-disk-{number}", read_only=True)
            for number, disk in enumerate(self.body.get("dataDisks", ()), start=1)
        )
        length = self.place.cidr.prefixlen
        return [
            HostSpec(name, self.id, worker, f"{address}/{length}", self.place.gateway, self.place.mtu, disks)
            for worker, (name, address) in enumerate(zip(self.host_names, self.addresses, strict=True))
        ]

    def render(self, hosts: Hosts) -> JsonObject:
        """Return the resource as it is read, with the health that its machines are in."""
        body = dict(self.body)
        if self.state == "REPAIRING":
            body["health"] = "UNHEALTHY_MAINTENANCE"
        elif self.state == "READY":
            silent = [str(k) for k, name in enumerate(self.host_names) if not hosts.running(name)]
            body["health"] = "TIMEOUT" if silent else "HEALTHY"
            if silent:
                body["healthDescription"] = f"Workers that do not respond: {', '.join(silent)}."
        return body

    def guest(self, world: World, worker: int) -> Guest:
        """Return a worker for its metadata server."""
        address = self.addresses[worker]
        own = {
            "accelerator-type": self.slice.accelerator_type,
            "agent-worker-number": str(worker),
            "instance-id": self.id,
            "tpu-env": self._tpu_env(world, worker),
            "worker-network-endpoints": ",".join(f"unknown:unknown:{address}" for address in self.addresses),
        }
        account = self.body["serviceAccount"]
        name, instance_id = self.instances[worker]
        return Guest(
            name=name,
            instance_id=instance_id,
            zone=self.zone,
            machine_type=self.slice.machine_type,
            address=address,
            external_address=self.body["networkEndpoints"][worker]["accessConfig"].get("externalIp", ""),
            gateway=self.place.gateway,
            netmask=str(self.place.cidr.netmask),
            mac=mac_address(address),
            mtu=self.place.mtu,
            network=self.place.network.rsplit("/", 1)[-1],
            attributes={
                **self.body.get("metadata", {}),
                **{key: value for key, value in own.items() if (worker, key) not in self.unwritten},
            },
            tags=tuple(self.body.get("tags", ())),
            preempted=self.preempted,
            maintenance=self.body.get("upcomingMaintenance", {}),
            revocable=self.revocable,
            service_account=account["email"],
            scopes=tuple(account["scope"]),
            guest_attributes=self.guest_attributes[worker] if self.has_guest_attributes else None,
        )

    def _tpu_env(self, world: World, worker: int) -> str:
        """Return the lines that jax and libtpu read, in their form: `KEY: 'value'`."""
        values = {
            "ACCELERATOR_TYPE": self.slice.accelerator_type,
            "CONSUMER_PROJECT_ID": world.project,
            "CONSUMER_PROJECT_NUMBER": world.number,
            "NODE_ID": self.id,
            "RUNTIME_VERSION": self.body["runtimeVersion"],
            "TOPOLOGY": self.slice.topology,
            "TYPE": "V6E",
            "WORKER_ID": str(worker),
            "ZONE": self.zone,
        }
        return "".join(f"{key}: '{value}'\n" for key, value in values.items())
