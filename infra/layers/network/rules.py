"""Rules between the network layer's settings, and with the regions of the slices."""

import ipaddress
from collections import Counter
from collections.abc import Iterator

from infra.catalog import region_of
from infra.errors import Problem
from infra.layers.network.names import DEFAULT_RANGES, subnet_ranges
from infra.layers.network.settings import NetworkSettings
from infra.settings.schema import Relation, Settings
from infra.settings.unread import ReadWith, unread
from infra.slices import nodes
from infra.slices.paths import HOSTS, ZONES
from views.counts import counted

# https://cloud.google.com/vpc/docs/subnets#unusable-ip-addresses-in-every-subnet
_ADDRESSES_KEPT = 4


def _ranges(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings[NetworkSettings].existing_network:
        return
    ranges = subnet_ranges(settings, nodes.regions(settings))
    networks = [(region, ipaddress.IPv4Network(text)) for region, text in sorted(ranges.items())]
    for i, (region, network) in enumerate(networks):
        for neighbor, second in networks[:i]:
            if network.overlaps(second):
                yield Problem(
                    f"network:subnetRanges.{region}",
                    f'"{network}"',
                    f"ranges of one network don't overlap; {neighbor} has {second}",
                    "choose another range",
                )


def _room(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings[NetworkSettings].existing_network:
        return
    hosts: Counter[str] = Counter()
    for node in nodes.nodes(settings):
        for region in {region_of(zone) for zone in node.places}:
            hosts[region] += node.kind.hosts
    for region, text in sorted(subnet_ranges(settings, nodes.regions(settings)).items()):
        room = ipaddress.IPv4Network(text).num_addresses - _ADDRESSES_KEPT
        if hosts[region] > room:
            bits = (hosts[region] + _ADDRESSES_KEPT - 1).bit_length()
            yield Problem(
                f"network:subnetRanges.{region}",
                f'"{text}" for {counted(hosts[region], "host")}',
                f"each host has an address, and Google keeps {_ADDRESSES_KEPT} of a subnet: {room} are left",
                f"write a range of /{32 - bits} or larger",
            )


def _range_regions(settings: Settings, given: set[str]) -> Iterator[Problem]:
    used = nodes.regions(settings)
    for name, regions in (
        ("subnetRanges", settings[NetworkSettings].subnet_ranges),
        ("existingSubnets", settings[NetworkSettings].existing_subnets),
    ):
        for region in sorted(set(regions) - set(used)):
            yield Problem(
                f"network:{name}.{region}",
                f'"{regions[region]}"',
                f"no slice is in this region (in use: {', '.join(used) or 'none'})",
                "remove it, or correct the region",
            )


def _no_range(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings[NetworkSettings].existing_network:
        return
    known = nodes.known_zones(settings)  # unknown zones are tpu's problem (_known_zones)
    for region in sorted({region_of(zone) for zone in nodes.zones(settings) if zone in known}):
        if region not in DEFAULT_RANGES and region not in settings[NetworkSettings].subnet_ranges:
            yield Problem(
                f"network:subnetRanges.{region}",
                "nothing",
                "this region has no default range",
                f"add {region}: and a range, such as 10.127.0.0/20",
            )


def _existing(settings: Settings, given: set[str]) -> Iterator[Problem]:
    network = settings[NetworkSettings]
    if network.existing_network is None:
        if network.existing_subnets:
            yield Problem(
                "network:existingSubnets",
                f"{len(network.existing_subnets)} without a network",
                "subnets that exist belong to a network that exists",
                "add network:existingNetwork, or remove it",
            )
        if not network.manage_firewall:
            yield Problem(
                "network:manageFirewall",
                "false",
                "a created network has no other rules; without rules, no host reaches another",
                "remove it",
            )
        return
    for key in ("subnetRanges", "cloudNat", "flowLogSampling"):
        if f"network:{key}" in given:
            yield Problem(
                f"network:{key}",
                "a value beside existingNetwork",
                "an existing network is used as it is",
                "remove it, or remove network:existingNetwork",
            )
    for region in nodes.regions(settings):
        if region not in network.existing_subnets:
            yield Problem(
                f"network:existingSubnets.{region}",
                "nothing",
                "every region in use needs a subnet of the existing network",
                f"add {region}: projects/P/regions/{region}/subnetworks/S",
            )


def _subnet_ids(settings: Settings, given: set[str]) -> Iterator[Problem]:
    for region, subnet in settings[NetworkSettings].existing_subnets.items():
        if subnet.split("/")[3] != region:
            yield Problem(
                f"network:existingSubnets.{region}",
                f'"{subnet}"',
                "a subnet serves its own region",
                f"write a subnet of {region}",
            )


def _host_project(settings: Settings, given: set[str]) -> Iterator[Problem]:
    network = settings[NetworkSettings].existing_network
    for region, subnet in settings[NetworkSettings].existing_subnets.items() if network else ():
        if network and subnet.split("/")[1] != network.split("/")[1]:
            yield Problem(
                f"network:existingSubnets.{region}",
                f'"{subnet}"',
                f"a subnet is in its network's project, {network.split('/')[1]}",
                "write a subnet of that network",
            )


def _ssh_ranges(settings: Settings, given: set[str]) -> Iterator[Problem]:
    ranges = ipaddress.collapse_addresses(
        map(ipaddress.IPv4Network, settings[NetworkSettings].ssh_source_ranges)
    )
    if (number := sum(block.num_addresses for block in ranges)) > 1 << 24:
        yield Problem(
            "network:sshSourceRanges",
            f"{number:,} addresses",
            "together as many as a /8 at most; SSH is never open to the world",
            "write 35.235.240.0/20 (Identity-Aware Proxy) or your office's range",
        )


RULES: tuple[Relation, ...] = (
    (("network:subnetRanges", "network:existingNetwork"), _ranges),
    (("network:subnetRanges", "network:existingNetwork"), _no_range),
    (("network:subnetRanges", "network:existingNetwork", *HOSTS), _room),
    (("network:subnetRanges", "network:existingSubnets", *ZONES), _range_regions),
    (("network:existingNetwork", "network:existingSubnets"), _existing),
    (("network:existingSubnets",), _subnet_ids),
    (("network:existingSubnets", "network:existingNetwork"), _host_project),
    (("network:sshSourceRanges",), _ssh_ranges),
    unread(
        "network",
        NetworkSettings,
        ReadWith(("sshSourceRanges",), "manageFirewall: true", lambda item: item.manage_firewall),
    ),
)
