"""Rules between the network layer's settings, and with the regions of the slices."""

import ipaddress
from collections.abc import Iterator

from infra import names, nodes
from infra.catalog import region_of
from infra.errors import Problem
from infra.network.settings import NetworkSettings
from infra.settings.schema import Relation, Settings


def _ranges(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings[NetworkSettings].existing_network:
        return
    ranges = names.subnet_ranges(settings, nodes.regions(settings))
    networks = [(region, ipaddress.IPv4Network(text)) for region, text in sorted(ranges.items())]
    for i, (region, network) in enumerate(networks):
        for other, another in networks[:i]:
            if network.overlaps(another):
                yield Problem(
                    f"network:subnetRanges.{region}",
                    f'"{network}"',
                    f"ranges of one network don't overlap; {other} has {another}",
                    "choose another range",
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
                f"no slice stands in this region (in use: {', '.join(used) or 'none'})",
                "remove it, or correct the region",
            )


def _no_range(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings[NetworkSettings].existing_network:
        return
    known = nodes.known_zones(settings)  # of other zones _known_zones speaks
    for region in sorted({region_of(zone) for zone in nodes.zones(settings) if zone in known}):
        if region not in names.DEFAULT_RANGES and region not in settings[NetworkSettings].subnet_ranges:
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
                "nobody else writes rules for a network of our own; without any, no host reaches another",
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


RULES: tuple[Relation, ...] = (
    (("network:subnetRanges", "network:existingNetwork"), _ranges),
    (("network:subnetRanges", "network:existingNetwork"), _no_range),
    (("network:subnetRanges", "network:existingSubnets", "tpu:slices"), _range_regions),
    (("network:existingNetwork", "network:existingSubnets"), _existing),
    (("network:existingSubnets",), _subnet_ids),
)
