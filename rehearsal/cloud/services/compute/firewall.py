"""Packet filters of machines, from the directory's firewalls and the machines' tags."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable, Sequence

from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.machines.machines import Member
from rehearsal.hosts.firewall import ANYWHERE, Firewall, Rule, Vpc

# How often firewalls and tags are looked at, in real seconds: a change is in force within a second.
_EVERY_S = 0.2


async def enforce(world: World, members: Callable[[], Sequence[Member]], firewall: Firewall) -> None:
    """Keep the firewall as the directory has it, with the machines that there are."""
    while True:
        await asyncio.to_thread(firewall.apply, networks(world, members()))
        await asyncio.sleep(_EVERY_S)


def networks(world: World, machines: Sequence[Member]) -> list[Vpc]:
    """Return each network that a machine is in, with its machines and its firewall rules."""
    firewalls = [body for name, body in sorted(world.directory.items()) if "/global/firewalls/" in name]
    vpcs = []
    for network in sorted({machine.network for machine in machines}):
        members = [machine for machine in machines if machine.network == network]
        own = [body for body in firewalls if body["network"].endswith(f"/{network}")]
        rules = (_rule(body, members) for body in own if not body.get("disabled"))
        vpcs.append(Vpc(tuple(_addresses(members)), tuple(rules)))
    return vpcs


def _rule(body: JsonObject, members: Sequence[Member]) -> Rule:
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


def _wearing(body: JsonObject, which: str, members: Sequence[Member]) -> list[str]:
    """Addresses of the machines with one of the rule's tags or service accounts."""
    tags, accounts = (set(body.get(f"{which}{kind}", ())) for kind in ("Tags", "ServiceAccounts"))
    return _addresses(member for member in members if tags & member.tags or member.account in accounts)


def _addresses(members: Iterable[Member]) -> list[str]:
    return [address for member in members for address in member.addresses]
