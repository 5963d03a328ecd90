"""The wire between machines: one bridge with the gateways of all subnets and Google's own addresses on it.

It lives in the network namespace of the calling process and has no way out. As at Google, a machine's
address has a prefix of 32 bits: every packet goes to the gateway, also between two machines of a subnet. So
all of them are routed, and the firewall sees them; the bridge passes no frame from one machine to another.
"""

from __future__ import annotations

import ipaddress
import threading
from pathlib import Path

from rehearsal.hosts.commands import run
from rehearsal.hosts.firewall import Firewall

BRIDGE = "tpu0"
# The largest MTU of a VPC network (https://cloud.google.com/vpc/docs/mtu). The wire carries it whatever a
# network's own is; that one is set inside its machines.
WIRE_MTU = 8896
# Its own: a bridge that is given none takes the lowest of its ports', another one when that machine goes, and
# the others then send to nobody for as long as they remember it (half a minute).
_BRIDGE_MAC = "42:01:00:00:00:01"
# Whence people's connections come: Identity-Aware Proxy forwards them from 35.235.240.0/20
# (https://cloud.google.com/iap/docs/using-tcp-forwarding#create-firewall-rule).
IAP_ADDRESS = "35.235.240.1"


class Network:
    """The bridge; `close` takes it away again."""

    def __init__(self, services: tuple[str, ...]) -> None:
        """`services` are addresses that machines reach outside of every subnet, such as 169.254.169.254."""
        self._services = services
        self.firewall = Firewall(BRIDGE, services)
        self._addresses: set[str] = set()
        self._adding = threading.Lock()

    def open(self) -> None:
        """Make the bridge."""
        run(["ip", "link", "add", BRIDGE, "address", _BRIDGE_MAC, "type", "bridge", "forward_delay", "0"])
        run(["ip", "link", "set", BRIDGE, "mtu", str(WIRE_MTU), "up"])
        # Of this network namespace alone: VPC networks route between their subnets.
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for interface in ("all", BRIDGE):  # the gateway stays the route of every host
            Path(f"/proc/sys/net/ipv4/conf/{interface}/send_redirects").write_text("0")
        self.firewall.apply([])
        for address in (*self._services, IAP_ADDRESS):
            self._add(f"{address}/32")

    def ensure_gateway(self, gateway: str, address_cidr: str) -> None:
        """Answer as the gateway of the subnet that the machine's address (`10.0.0.2/20`) is in."""
        length = ipaddress.ip_interface(address_cidr).network.prefixlen
        self._add(f"{gateway}/{length}")

    def join(self, port: str) -> None:
        """Let one machine's end at the bridge carry full-size packets, to and from the gateway alone."""
        run(["ip", "link", "set", port, "mtu", str(WIRE_MTU), "type", "bridge_slave", "isolated", "on"])

    def close(self) -> None:
        """Remove the bridge with its addresses."""
        run(["ip", "link", "delete", BRIDGE])
        self.firewall.close()
        self._addresses.clear()

    def _add(self, address: str) -> None:
        with self._adding:
            if address not in self._addresses:
                run(["ip", "address", "add", address, "dev", BRIDGE])
                self._addresses.add(address)


def mac_address(address: str) -> str:
    """Return the MAC address that Compute Engine derives from an internal IPv4 address: 42:01 and its
    bytes.
    """
    return "42:01:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(address).packed)
