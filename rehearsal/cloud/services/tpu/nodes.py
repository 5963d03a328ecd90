"""The nodes that exist, and the power of their machines."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from rehearsal.cloud.core.clock import rfc3339
from rehearsal.cloud.core.errors import ApiError, JsonObject, not_found
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.audit import Audit
from rehearsal.cloud.machines.machines import NOTICE_S, Machines, Member
from rehearsal.cloud.machines.metadata import Guest
from rehearsal.cloud.services.tpu.node import LATE_KEYS, Node

# https://cloud.google.com/tpu/docs/view-maintenance-notifications: seven days of notice if scheduled.
_NOTIFIED_S, _WINDOW_S = 7 * 86_400.0, 4 * 3600.0


@dataclass(frozen=True)
class Durations:
    """Virtual seconds that operations take besides the machines' own time: this project's choice.

    Attributes:
        create: to create a node; each takes so long times a number drawn from `spread`.
        delete: to delete one.
        change: to stop one, or to change what it is.
        spread: the least and the most.
        repair: from a machine's end for maintenance to the next boot, or to its end for good.
        late: at most so long after its machines' inits run a node is READY. Others wait up to an hour
            (https://github.com/marin-community/marin/pull/6122); here it is less than a boot takes.
        attributes: the longest time after the inits until a machine's agent writes a key of LATE_KEYS, drawn
            for each: start-up scripts have to wait for some.
    """

    create: float = 60.0
    delete: float = 20.0
    change: float = 5.0
    repair: float = 120.0
    spread: tuple[float, float] = (1.0, 1.0)
    late: float = 40.0
    attributes: float = 120.0


class Nodes:
    """The fleet of one project."""

    def __init__(
        self, world: World, machines: Machines, audit: Audit, durations: Durations, seed: int
    ) -> None:
        self.deleted: Counter[str] = Counter()  # by the state in which a request for it found the node
        self._rng = random.Random(0)
        self._late_rng = random.Random(seed)
        self._world = world
        self._machines = machines
        machines.owners.append(self)
        self._audit = audit
        self._durations = durations
        self._nodes: dict[str, Node] = {}

    def all(self) -> list[Node]:
        """Every node, oldest first."""
        return list(self._nodes.values())

    def get(self, name: str) -> Node:
        """By full name; ApiError 404."""
        node = self._nodes.get(name)
        if node is None:
            raise not_found(name)
        return node

    def render(self, node: Node) -> JsonObject:
        """Return the resource as it is read now."""
        return node.render(self._machines.hosts)

    def add(self, node: Node) -> None:
        """Enter a new node; its disks and its network are in use from here on."""
        self._nodes[node.name] = node
        self._world.directory[node.name] = node.body

    def use_disks(self, node: Node, disks: list[JsonObject]) -> None:
        """Make these the node's disks; the `users` of a disk are read from that."""
        for disk in disks:
            self._world.require(disk["sourceDisk"])
        node.body["dataDisks"] = disks
        if not disks:
            del node.body["dataDisks"]

    def announce(self) -> None:
        """Wake those that wait for a change of metadata."""
        self._machines.announce()

    def guest(self, address: str) -> Guest | None:
        """Return the worker with this address."""
        for node in self._nodes.values():
            if address in node.addresses:
                return node.guest(self._world, node.addresses.index(address))
        return None

    def members(self) -> list[Member]:
        """Return the machines of each node."""
        return [
            Member(
                node.place.network,
                node.addresses,
                frozenset(node.body.get("tags", ())),
                node.body["serviceAccount"]["email"],
            )
            for node in self.all()
        ]

    # Work of operations

    async def bring_up(self, node: Node, state: str = "CREATING") -> JsonObject:
        """READY some time after every machine's init runs; ApiError if the node is deleted meanwhile."""
        await self._world.clock.sleep(self._durations.create * self._rng.uniform(*self._durations.spread))
        async with node.power:
            still(node, state)
            node.unwritten = {(worker, key) for worker in range(node.slice.hosts) for key in LATE_KEYS}
            await self._machines.boot(node.specs(self._world))
            still(node, state)  # deleted while it booted: the deletion, which waits for us, has it now
        for unwritten in sorted(node.unwritten):
            self._world.spawn(
                self._write_attribute(
                    node, unwritten, self._late_rng.uniform(0.0, self._durations.attributes)
                )
            )
        await self._world.clock.sleep(self._late_rng.uniform(0.0, self._durations.late))
        still(node, state)
        for (name, _), own in zip(node.instances, node.guest_attributes, strict=True):
            # `gcloud compute tpus tpu-vm ssh --tunnel-through-iap` looks for it.
            own.agent_writes("deviceInfo", "hostname", name)
        node.body["state"] = "READY"
        return self.render(node)

    async def _write_attribute(self, node: Node, unwritten: tuple[int, str], after_s: float) -> None:
        """Let a machine's agent write a key of its metadata, later."""
        await self._world.clock.sleep(after_s)
        node.unwritten.discard(unwritten)
        self.announce()

    def abandon(self, node: Node) -> None:
        """Remove a node whose creation failed, with its machines."""
        if self._nodes.get(node.name) is node and node.state == "CREATING":
            self._remove(node)
            self._world.spawn(self._machines.discard(node.host_names))

    async def take_down(self, node: Node) -> None:
        """Switch off in order, then remove node and boot disks."""
        await self._world.clock.sleep(self._durations.delete)
        async with node.power:
            await self._machines.switch_off(node.host_names)
        await self._machines.discard(node.host_names)
        self._remove(node)

    async def stop(self, node: Node) -> JsonObject:
        """Stop a node and keep its boot disks."""
        await self._world.clock.sleep(self._durations.change)
        async with node.power:
            await self._machines.switch_off(node.host_names)
            still(node, "STOPPING")
            node.body["state"] = "STOPPED"
        return self.render(node)

    # Actions of scenarios

    async def preempt(self, node_id: str, notice: bool) -> None:
        """Preempt a spot node; with notice its machines are told and have 30 real seconds.

        Returns once that has begun. The node is PREEMPTED when the last machine is off, and stays.
        """
        node = self._by_id(node_id)
        if not node.revocable or node.state != "READY" or node.preempted:
            why = "is neither spot nor preemptible" if not node.revocable else f"is {node.state}"
            text = f"The node {node.id} {why}{' and being preempted' if node.preempted else ''}."
            raise ApiError(400, "FAILED_PRECONDITION", text)
        node.preempted = True
        self.announce()
        if notice:
            await self._machines.press(node.host_names)
        self._world.spawn(self._finish_preemption(node, NOTICE_S if notice else 0.0))

    async def cut_power(self, host: str) -> bool:
        """Cut one host's power; return False if no host has this name."""
        known = any(host in node.host_names for node in self.all())
        if known:
            await self._machines.cut([host])
        return known

    def status(self) -> list[JsonObject]:
        """Every node with its hosts, as GET /status of the control socket has them."""
        return [
            {
                "name": node.id,
                "zone": node.zone,
                "state": node.state,
                "labels": node.body.get("labels", {}),
                "hosts": [
                    {"name": name, "address": address, "running": self._machines.hosts.running(name)}
                    for name, address in zip(node.host_names, node.addresses, strict=True)
                ],
            }
            for node in self.all()
        ]

    def _by_id(self, node_id: str) -> Node:
        match = next((node for node in self.all() if node.id == node_id), None)
        if match is None:
            raise not_found(node_id)
        return match

    async def _finish_preemption(self, node: Node, notice_s: float) -> None:
        async with node.power:
            await self._machines.finish(node.host_names, notice_s)
            if node.state == "READY":
                node.body["state"] = "PREEMPTED"
                self._audit.terminated(node.name)

    async def maintain(self, node_id: str, ends: str) -> None:
        """Start maintenance, which `ends` in READY, TERMINATED or UNKNOWN (a failed repair).

        PENDING only announces it. Machines are switched off in order after this has returned.
        """
        node = self._by_id(node_id)
        if ends not in ("PENDING", "READY", "TERMINATED", "UNKNOWN"):
            raise ApiError(400, "INVALID_ARGUMENT", f"Maintenance doesn't end in {ends}.")
        if node.state != "READY" or node.preempted:
            raise ApiError(400, "FAILED_PRECONDITION", f"The node {node.id} is {node.state}.")
        pending = ends == "PENDING"
        start_s = self._world.clock.now() + (_NOTIFIED_S if pending else 0.0)
        node.body["upcomingMaintenance"] = {
            "canReschedule": pending,
            "maintenanceStatus": "PENDING" if pending else "ONGOING",
            "type": "SCHEDULED" if pending else "UNSCHEDULED",
            "windowStartTime": rfc3339(start_s),
            "windowEndTime": rfc3339(start_s + _WINDOW_S),
            "latestWindowStartTime": rfc3339(start_s),
        }
        self.announce()
        if not pending:
            node.body["state"] = "REPAIRING"
            self._world.spawn(self._repair(node, ends))

    async def _repair(self, node: Node, ends: str) -> None:
        async with node.power:
            if node.state == "REPAIRING":
                await self._machines.switch_off(node.host_names)
        await self._world.clock.sleep(self._durations.repair)
        if node.state != "REPAIRING":
            return  # it was deleted meanwhile
        del node.body["upcomingMaintenance"]
        self.announce()
        try:
            if ends == "READY":
                await self.bring_up(node, "REPAIRING")
            else:
                node.body["state"] = ends
        except ApiError:
            if node.state == "REPAIRING":
                raise

    def _remove(self, node: Node) -> None:
        self._nodes.pop(node.name, None)
        self._world.directory.pop(node.name, None)


def still(node: Node, state: str) -> None:
    """ApiError 409 if another operation has taken the node into another state meanwhile."""
    if node.state != state:
        raise ApiError(409, "ABORTED", f"The node {node.name} is {node.state}.", reason="aborted")
