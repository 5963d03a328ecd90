"""Packet filters of machines, from the directory's firewalls and the nodes' tags."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable, Sequence

from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.services.tpu.node import Node
from rehearsal.hosts.firewall import ANYWHERE, Firewall, Rule, Vpc

# How often firewalls and tags are looked at, in real seconds: a change is in force within a second.
_EVERY_S = 0.2


async def enforce(world: World, nodes: Callable[[], Sequence[Node]], firewall: Firewall) -> None:
    """Keep the firewall as the directory has it, with the nodes that there are."""
    while True:
        await asyncio.to_thread(firewall.apply, networks(world, nodes()))
        await asyncio.sleep(_EVERY_S)


def networks(world: World, nodes: Sequence[Node]) -> list[Vpc]:
    """Each network that a node is in, with its machines and its firewall rules."""
    firewalls = [body for name, body in sorted(world.directory.items()) if "/global/firewalls/" in name]
    vpcs = []
    for network in sorted({node.place.network for node in nodes}):
        members = [node for node in nodes if node.place.network == network]
        own = [body for body in firewalls if body["network"].endswith(f"/{network}")]
        rules = (_rule(body, members) for body in own if not body.get("disabled"))
        vpcs.append(Vpc(tuple(_addresses(members)), tuple(rules)))
    return vpcs


def _rule(body: JsonObject, members: Sequence[Node]) -> Rule:
    """Return the rule with addresses for its tags and service accounts."""
    egress = body["direction"] == "EGRESS"
    target, peer = ("source", "destination") if egress else ("destination", "source")
    targets = _wearing(body, "target", members) if _wants(body, "target") else _addresses(members)
    within = [ipaddress.ip_network(cidr) for cidr in body.get(f"{target}Ranges", ANYWHERE)]
    peers = [cidr for cidr in body.get(f"{peer}Ranges", ()) if ":" not in cidr]  # machines have IPv4 alone
    if not egress and _wants(body, "source"):
        peers += _wearing(body, "source", members)
    elif f"{peer}Ranges" not in body:
        peers += ANYWHERE
    targets = [target for target in targets if any(ipaddress.ip_address(target) in net for net in within)]
    sources, destinations = (targets, peers) if egress else (peers, targets)
    allow, priority = bool(body.get("allowed")), int(body["priority"])
    entries = body["allowed" if allow else "denied"]
    traffic = [(entry["IPProtocol"], tuple(entry.get("ports", ()))) for entry in entries]
    return Rule(egress, allow, priority, tuple(sources), tuple(destinations), tuple(traffic))


def _wants(body: JsonObject, which: str) -> bool:
    return bool(body.get(f"{which}Tags") or body.get(f"{which}ServiceAccounts"))


def _wearing(body: JsonObject, which: str, members: Sequence[Node]) -> list[str]:
    """Addresses of the machines with one of the rule's tags or service accounts."""
    tags, accounts = (set(body.get(f"{which}{kind}", ())) for kind in ("Tags", "ServiceAccounts"))
    return _addresses(
        node
        for node in members
        if tags & set(node.body.get("tags", ())) or node.body["serviceAccount"]["email"] in accounts
    )


def _addresses(nodes: Iterable[Node]) -> list[str]:
    return [address for node in nodes for address in node.addresses]
