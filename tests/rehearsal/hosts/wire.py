"""A bridge with its firewall, and bare network namespaces for machines, each with a thread inside."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.machines.machines import Member
from rehearsal.cloud.services.compute.firewall import networks
from rehearsal.hosts.network import BRIDGE, Network
from tests.limits import HANG_S

T = TypeVar("T")
FRONT_DOOR, METADATA = "199.36.153.8", "169.254.169.254"
GATEWAYS = {"ours": "10.128.0.1", "theirs": "10.200.0.1"}
_CLONE_NEWNET = 0x40000000


class Namespace:
    """A network namespace and the thread that lives in it; what the thread opens or starts stays inside."""

    def __init__(self) -> None:
        self._inside = ThreadPoolExecutor(1, initializer=self._enter)
        self.thread = self(threading.get_native_id)

    def __call__(self, do: Callable[..., T], *words: Any, **named: Any) -> T:
        return self._inside.submit(do, *words, **named).result()

    def _enter(self) -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        ip("link", "set", "lo", "up")

    def close(self) -> None:
        self._inside.shutdown()


class Machine(Namespace):
    """A TPU host as the network has it: an address with a prefix of 32 bits, and a gateway."""

    def __init__(self, wire: Wire, address: str, network: str) -> None:
        super().__init__()
        self.address, gateway = address, GATEWAYS[network]
        port = f"vb-{self.thread}"
        wire(ip, "link", "add", port, "master", BRIDGE, "up", "type", "veth", "peer", "host0")
        wire(ip, "link", "set", "host0", "netns", str(self.thread))
        wire(wire.network.ensure_gateway, gateway, f"{address}/20")
        wire(wire.network.join, port)
        self(ip, "address", "add", f"{address}/32", "dev", "host0")
        self(ip, "link", "set", "host0", "mtu", "8896", "up")
        self(ip, "route", "add", "default", "via", gateway, "dev", "host0", "onlink")


class Wire(Namespace):
    """The bridge's namespace. `members` and `world` are what the rules are made from."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network((METADATA, FRONT_DOOR))
        self(self.network.open)
        self.world = World("p", "1", VirtualClock())
        self.members: dict[str, Member] = {}
        self.machines: dict[str, Namespace] = {"iap": self, "gateway": self}

    def add(self, name: str, address: str, network: str = "ours", account: str = "", *tags: str) -> None:
        """A machine."""
        self.members[name] = Member(
            f"projects/p/global/networks/{network}", [address], frozenset(tags), account
        )
        self.machines[name] = Machine(self, address, network)

    def enforce(self, *firewalls: JsonObject) -> None:
        """Let these firewalls of the network `ours` be all that there are."""
        self.world.directory = {
            f"projects/p/global/firewalls/f{number}": {
                "direction": "INGRESS",
                "priority": 1000,
                "network": "https://www.googleapis.com/compute/v1/projects/p/global/networks/ours",
                **body,
            }
            for number, body in enumerate(firewalls)
        }
        self(self.network.firewall.apply, networks(self.world, list(self.members.values())))

    def dropped(self, source: str, destination: str, port: int) -> int:
        """Packets of a flow that the firewall has dropped."""
        result = self(self.network.firewall.dropped)
        return sum(
            int(item["packets"])
            for item in result
            if (item["source"], item["destination"], item["port"]) == (source, destination, port)
        )

    def passes(self, source: str, destination: str, port: int) -> bool:
        """Return True if a TCP connection comes about; else the firewall has counted its packets."""
        address = {"front door": FRONT_DOOR, "metadata": METADATA}.get(destination)
        target = self.machines.get(destination, self)
        address = address or getattr(target, "address", "")
        origin = {"iap": "35.235.240.1", "gateway": GATEWAYS["ours"]}.get(source)
        origin = origin or getattr(self.machines[source], "address", "")
        with contextlib.ExitStack() as opened:
            opened.enter_context(target(socket.create_server, (address, port)))
            client = opened.enter_context(self.machines[source](socket.socket))
            before = self.dropped(origin, address, port)
            client.bind((origin, 0))
            client.setblocking(False)
            client.connect_ex((address, port))
            deadline = time.monotonic() + HANG_S
            while time.monotonic() < deadline:
                if select.select((), (client,), (), 0.01)[1]:
                    return client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
                if self.dropped(origin, address, port) > before:
                    return False
        raise TimeoutError(f"{source} to {destination}: neither connected nor dropped")

    def close(self) -> None:
        for machine in {*self.machines.values()} - {self}:
            machine.close()
        super().close()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def environment() -> dict[str, str]:
    """Of a program that a machine runs."""
    return {**os.environ, "JAX_PLATFORMS": "cpu"}
