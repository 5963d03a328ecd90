"""Places of machines in networks, and the addresses that are taken there."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from rehearsal.cloud.collections.references import full_name
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.world import World


@dataclass(frozen=True)
class Place:
    """The network of machines: full names, and facts of the subnet."""

    network: str
    subnetwork: str
    mtu: int
    gateway: str
    cidr: ipaddress.IPv4Network


def place(world: World, subnetwork: str) -> Place:
    """Return the place of a subnet, by its full name; ApiError 404 if it or its network doesn't exist."""
    body = world.require(subnetwork)
    network = full_name(world, body["network"])
    mtu = int(world.require(network).get("mtu", 1460))
    return Place(network, subnetwork, mtu, body["gatewayAddress"], ipaddress.IPv4Network(body["ipCidrRange"]))


def held(body: JsonObject) -> set[str]:
    """Return the addresses of an instance, or of a TPU node's machines."""
    cards = body.get("networkInterfaces", ())
    external = {access.get("natIP", "") for card in cards for access in card.get("accessConfigs", ())}
    nodes = {endpoint.get("ipAddress", "") for endpoint in body.get("networkEndpoints", ())}
    return {card.get("networkIP", "") for card in cards} | external | nodes


def taken(world: World) -> set[str]:
    """Return every address in use in the project, reserved ones included."""
    bodies = world.directory.values()
    return {body.get("address", "") for body in bodies}.union(*(held(body) for body in bodies))
