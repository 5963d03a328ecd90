"""VPC firewall rules, enforced by nftables on what the bridge routes between machines, in and out.

Rules are evaluated as at Google (https://cloud.google.com/vpc/docs/firewalls): by priority, deny before
allow, with connections tracked, and behind them the implied rules: egress is allowed, ingress denied. The
metadata server is always reached. What is dropped is counted, by source, destination, protocol and port.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rehearsal.hosts.commands import run

METADATA = "169.254.169.254"
ANYWHERE = ("0.0.0.0/0",)
_PROTOCOLS = {"icmp": "1", "ipip": "4", "tcp": "6", "udp": "17", "esp": "50", "ah": "51", "sctp": "132"}
_FLOW = "ip saddr . ip daddr . meta l4proto"
# Counters outlive a change of the rules: the table is flushed of its rules, not of its set.
_TABLE = """\
add table inet vpc
flush table inet vpc
table inet vpc {{
  set dropped {{
    type ipv4_addr . ipv4_addr . inet_proto . inet_service
    flags dynamic
    size 65536
    counter
  }}
  chain refuse {{
    meta l4proto {{ tcp, udp }} update @dropped {{ {flow} . th dport counter }} drop
    meta nfproto ipv4 update @dropped {{ {flow} . 0 counter }} drop
    drop
  }}
{networks}
  chain forward {{
    type filter hook forward priority 0; policy drop;
    iifname != {bridge} oifname != {bridge} accept
    ct state established,related accept
{between}
    goto refuse
  }}
  chain input {{
    type filter hook input priority 0;
    iifname != {bridge} accept
    ct state established,related accept
    ip daddr {metadata} accept
{outward}
    goto refuse
  }}
  chain output {{
    type filter hook output priority 0;
    oifname != {bridge} accept
    ct state established,related accept
    ip daddr 224.0.0.0/4 accept
{inward}
    goto refuse
  }}
}}
"""


@dataclass(frozen=True)
class Rule:
    """A firewall rule with resolved tags.

    `sources` and `destinations` are addresses and ranges; `traffic` is pairs of a protocol's name or number,
    or `all`, and its ports (`22`, `8470-8475`), of which none means all.
    """

    egress: bool
    allow: bool
    priority: int
    sources: tuple[str, ...]
    destinations: tuple[str, ...]
    traffic: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Vpc:
    """A network's machines, by address, and its rules."""

    addresses: tuple[str, ...]
    rules: tuple[Rule, ...]


class Firewall:
    """The rules in force on one bridge. `services` are what machines reach besides each other."""

    def __init__(self, bridge: str, services: Iterable[str]) -> None:
        self._bridge = bridge
        self._services = _addresses(services)
        self._applied = ""

    def apply(self, networks: Sequence[Vpc]) -> None:
        """Put these rules in force, all at once. HostError where the kernel refuses."""
        script = self._script(networks)
        if script != self._applied:
            run(["nft", "-f", "-"], stdin=script)
            self._applied = script

    def close(self) -> None:
        """Let everything pass again."""
        run(["nft", "delete", "table", "inet", "vpc"])
        self._applied = ""

    def dropped(self) -> list[dict[str, str | int]]:
        """Return the dropped packets: `source`, `destination`, `protocol`, `port` (0 if it has none),
        `packets`.
        """
        listed = json.loads(run(["nft", "-j", "list", "set", "inet", "vpc", "dropped"]))
        (packets,) = (nftable["set"] for nftable in listed["nftables"] if "set" in nftable)
        names = ("source", "destination", "protocol", "port")
        elements = [nftable["elem"] for nftable in packets.get("elem", ())]
        return [
            dict(zip(names, element["val"]["concat"], strict=True))
            | {"packets": element["counter"]["packets"]}
            for element in elements
        ]

    def _script(self, networks: Sequence[Vpc]) -> str:
        lines: dict[str, list[str]] = {"networks": [], "between": [], "outward": [], "inward": []}
        for number, network in enumerate(networks):
            if not network.addresses:
                continue
            own, egress, ingress = _addresses(network.addresses), f"egress{number}", f"ingress{number}"
            outgoing = [rule for rule in network.rules if rule.egress]
            incoming = [rule for rule in network.rules if not rule.egress]
            lines["networks"] += _chain(egress, outgoing, "return", "return")
            lines["networks"] += _chain(ingress, incoming, "accept", "goto refuse")
            # Routes lead to the machines of the same network, and to nobody else's.
            for way in (f"jump {egress}", f"goto {ingress}"):
                lines["between"].append(f"ip saddr {own} ip daddr {own} {way}")
            for way in (f"jump {egress}", "accept"):
                lines["outward"].append(f"ip saddr {own} ip daddr {self._services} {way}")
            lines["inward"].append(f"ip daddr {own} goto {ingress}")
        texts = {name: "\n".join(f"    {line}" for line in rules) for name, rules in lines.items()}
        return _TABLE.format(**texts, bridge=self._bridge, metadata=METADATA, flow=_FLOW)


def _chain(name: str, rules: Iterable[Rule], allowed: str, implied: str) -> Iterator[str]:
    """Return a chain that ends in the implied rule."""
    yield f"chain {name} {{"
    for rule in sorted(rules, key=lambda rule: (rule.priority, rule.allow)):
        if not rule.sources or not rule.destinations:
            continue
        match = f"ip saddr {_addresses(rule.sources)} ip daddr {_addresses(rule.destinations)}"
        for protocol, ports in rule.traffic:
            for which in _matches(protocol, ports):
                yield f"  {match} {which}{allowed if rule.allow else 'goto refuse'}"
    yield f"  {implied}"
    yield "}"


def _matches(protocol: str, ports: tuple[str, ...]) -> Iterator[str]:
    if protocol == "all":
        yield ""
        return
    match = f"meta l4proto {_PROTOCOLS.get(protocol, protocol)} "
    yield from (f"{match}th dport {port} " for port in ports) if ports else (match,)


def _addresses(ranges: Iterable[str]) -> str:
    """Return an nft set without overlapping ranges."""
    collapsed = ipaddress.collapse_addresses(ipaddress.IPv4Network(range_) for range_ in ranges)
    return f"{{ {', '.join(map(str, collapsed))} }}"
