"""Rules between the GKE layer's settings, and with those of what the cluster stands on."""

import ipaddress
from collections import Counter
from collections.abc import Iterator

from google_facts import gke_pools
from google_facts.machines import cpu_family
from infra.catalog import region_of
from infra.errors import Problem
from infra.layers.gke.facts import CHANNELS, CHANNELS_READ
from infra.layers.gke.pools import PODS_PER_CPU_NODE, addresses, block, cpu_zones, region
from infra.layers.gke.settings import GkeSettings, of_the_cluster
from infra.layers.network.names import subnet_ranges
from infra.layers.network.settings import NetworkSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import PRODUCTION, Relation, Settings
from infra.slices import nodes

_SHORTEST = 28  # https://cloud.google.com/kubernetes-engine/docs/concepts/alias-ips
_KEPT = 4  # https://cloud.google.com/vpc/docs/subnets#unusable-ip-addresses-in-every-subnet
_LETTERS = tuple("abcdef")
_OF_OUR_CLUSTER = frozenset(
    f"gke:{key}"
    for key in (
        "description", "channel", "version", "excludeUpgrades", "maintenanceStart", "deletionProtection",
        "existingSubnet", "subnetRange", "podsRange", "servicesRange", "podsRangeName", "servicesRangeName",
        "cpuPoolZones", "cpuPoolNodes", "cpuPoolMachineType", "cpuPoolDiskType", "cpuPoolDiskGib",
        "securityGroup",
    )
)  # fmt: skip
_SIZES = (
    "gke:tpuPools[].acceleratorType", "gke:tpuPools[].topology", "gke:tpuPools[].machineType",
    "gke:tpuPools[].count", "gke:cpuPoolNodes", "gke:cpuPoolZones", "gke:podsPerTpuNode",
)  # fmt: skip


def _zones(settings: Settings, given: set[str]) -> Iterator[Problem]:
    known, home = nodes.known_zones(settings), region(settings)
    for number, pool in enumerate(settings[GkeSettings].tpu_pools):
        path = f"gke:tpuPools[{number}].zone"
        if pool.zone not in known:
            yield nodes.unknown_zone(path, pool.zone)
        elif region_of(pool.zone) != home:
            yield Problem(
                path, f'"{pool.zone}"', f"a cluster's nodes are in its region, {home}",
                f"write gke:region: {region_of(pool.zone)}, or a zone of {home}",
            )  # fmt: skip
        elif pool.is_flex_start and pool.zone not in gke_pools.FLEX_START_ZONES:
            zones = ", ".join(gke_pools.FLEX_START_ZONES)
            near = [zone for zone in gke_pools.FLEX_START_ZONES if region_of(zone) == home]
            yield Problem(
                path, f'"{pool.zone}"', f"by flex-start, GKE has v6e in {zones}",
                f"write {near[0]}, or spot: true in its place" if near else "write spot: true in its place",
            )  # fmt: skip


def _region(settings: Settings, given: set[str]) -> Iterator[Problem]:
    home, location = region(settings), settings[StorageSettings].location
    if home != location and not settings[StorageSettings].allow_cross_region:
        yield Problem(
            "gke:region", f'"{home}"',
            f"the bucket is in {location}, and every byte between regions is slow and is billed",
            f"write {location}, or storage:allowCrossRegion: true",
        )  # fmt: skip


def _cpu_zones(settings: Settings, given: set[str]) -> Iterator[Problem]:
    zones, home = cpu_zones(settings), region(settings)
    if not zones:
        yield Problem(
            "gke:cpuPoolZones", "nothing", "without a TPU pool nothing says where the CPU nodes are",
            f"add e.g. gke:cpuPoolZones: [{home}-b]",
        )  # fmt: skip
    for zone in zones:
        if region_of(zone) != home:
            if settings[GkeSettings].cpu_pool_zones:  # else the TPU pool's zone is at fault, and is named
                yield Problem(
                    "gke:cpuPoolZones", f'"{zone}"', f"a cluster's nodes are in its region, {home}",
                    f"write zones of {home}",
                )  # fmt: skip
        elif zone.rpartition("-")[2] not in _LETTERS:
            rule = "zones with CPU nodes end in a letter from a to f"
            if zone.rpartition("-")[2].startswith("ai"):
                rule = "an AI zone has accelerators and no CPU nodes"
            yield Problem(
                "gke:cpuPoolZones", f'"{zone}"', rule,
                f"add another zone of the region, e.g. gke:cpuPoolZones: [{home}-b]",
            )  # fmt: skip


def _names(settings: Settings, given: set[str]) -> Iterator[Problem]:
    times = Counter(pool.name for pool in settings[GkeSettings].tpu_pools)
    for name in sorted(name for name in times if times[name] > 1):
        yield Problem(
            "gke:tpuPools", f'{times[name]} pools called "{name}"', "each pool has its own name", "rename one"
        )
    fixed = [pool.name for pool in settings[GkeSettings].tpu_pools]
    for pool in settings[GkeSettings].tpu_pools:
        stem, _, number = pool.name.rpartition("-")
        if stem in fixed and number.isdigit():
            yield Problem(
                "gke:tpuPools", f'"{pool.name}" beside "{stem}"',
                f"the node pools of {stem} are called {stem}-0, {stem}-1 and so on", "rename one",
            )  # fmt: skip


def _existing_cluster(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if not settings[GkeSettings].existing_cluster:
        return
    for key in sorted(_OF_OUR_CLUSTER & given):
        yield Problem(
            key, "a value beside existingCluster", "an existing cluster is used as it is",
            "remove it, or remove gke:existingCluster",
        )  # fmt: skip
    if "gke:clusterName" not in given:
        rule = "an existing cluster is named"
        yield Problem("gke:clusterName", "nothing", rule, "add gke:clusterName: NAME")


def _own(rule: Relation) -> Relation:
    """Return a rule on a cluster of ours, which an existing one isn't asked."""
    reads, check = rule

    def unless_existing(settings: Settings, given: set[str]) -> Iterator[Problem]:
        if not settings[GkeSettings].existing_cluster:
            yield from check(settings, given)

    return (*reads, "gke:existingCluster"), unless_existing


def _ranges(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired = settings[GkeSettings]
    if desired.existing_subnet:
        for key in ("subnetRange", "podsRange", "servicesRange"):
            if f"gke:{key}" in given:
                yield Problem(
                    f"gke:{key}", "a value beside existingSubnet", "an existing subnet is used as it is",
                    "remove it, or remove gke:existingSubnet",
                )  # fmt: skip
        return
    if ipaddress.IPv4Network(desired.services_range).prefixlen > _SHORTEST:
        rule = f"Google takes a /{_SHORTEST} or larger for services"
        yield Problem("gke:servicesRange", f'"{desired.services_range}"', rule, "write a larger range")
    own = {
        "gke:subnetRange": desired.subnet_range,
        "gke:podsRange": desired.pods_range,
        "gke:servicesRange": desired.services_range,
    }
    networks = {}
    if not settings[NetworkSettings].existing_network:
        ranges = subnet_ranges(settings, nodes.regions(settings))
        networks = {f"network:subnetRanges.{where}": text for where, text in ranges.items()}
    taken = dict(networks)
    for path, text in own.items():
        for owner, second in taken.items():
            if ipaddress.IPv4Network(text).overlaps(ipaddress.IPv4Network(second)):
                yield Problem(
                    path, f'"{text}"', f"ranges of one network don't overlap; {owner} is {second}",
                    "choose another range",
                )  # fmt: skip
        taken[path] = text


def _room(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired = settings[GkeSettings]
    if desired.existing_subnet:
        return
    need = addresses(settings)
    nodes_room = ipaddress.IPv4Network(desired.subnet_range).num_addresses - _KEPT
    if need.nodes > nodes_room:
        yield Problem(
            "gke:subnetRange", f'"{desired.subnet_range}" for {need.nodes} nodes',
            f"each node has an address, and Google keeps {_KEPT} of a subnet: {nodes_room} are left",
            f"write a range of /{_length(need.nodes + _KEPT)} or larger",
        )  # fmt: skip
    room = ipaddress.IPv4Network(desired.pods_range).num_addresses
    if need.pods > room:
        fitting = max(0, room - need.cpu_nodes * block(PODS_PER_CPU_NODE)) // need.tpu_block
        fewer = ", or gke:podsPerTpuNode: 15" if need.tpu_block > block(15) else ""
        yield Problem(
            "gke:podsRange",
            f'"{desired.pods_range}" for {need.tpu_nodes} TPU and {need.cpu_nodes} CPU nodes',
            f"a node with up to {desired.pods_per_tpu_node} pods takes a /{_length(need.tpu_block)} of it, "
            f"one with {PODS_PER_CPU_NODE} a /24: beside the CPU nodes, {fitting} TPU nodes have room",
            f"write a range of /{_length(need.pods)} or larger{fewer}",
        )  # fmt: skip


def _length(addresses_: int) -> int:
    return 32 - (addresses_ - 1).bit_length()


def _existing_subnet(settings: Settings, given: set[str]) -> Iterator[Problem]:
    subnet, home = settings[GkeSettings].existing_subnet, region(settings)
    host = (settings[NetworkSettings].existing_network or f"projects/{settings.project}").split("/")[1]
    if subnet and subnet.split("/")[1] != host:
        rule = f"a subnet is in its network's project, {host}"
        yield Problem("gke:existingSubnet", f'"{subnet}"', rule, "write a subnet of that network")
    elif subnet and subnet.split("/")[3] != home:
        yield Problem(
            "gke:existingSubnet", f'"{subnet}"',
            f"the nodes of a cluster in {home} are in a subnet of that region",
            f"write a subnet of {home}",
        )  # fmt: skip
    elif not subnet and (network := settings[NetworkSettings].existing_network):
        yield Problem(
            "gke:existingSubnet", "nothing",
            f"a network that exists ({network}) gets no subnets from here",
            f"add a subnet of it with two secondary ranges: projects/P/regions/{home}/subnetworks/S",
        )  # fmt: skip


def _range_names(settings: Settings, given: set[str]) -> Iterator[Problem]:
    name = settings[GkeSettings].services_range_name
    if name == settings[GkeSettings].pods_range_name:
        rule = "that is the pods' range; the two of a subnet have names of their own"
        yield Problem("gke:servicesRangeName", f'"{name}"', rule, "rename one")


def _disk(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired = settings[GkeSettings]
    machine, disk = desired.cpu_pool_machine_type, desired.cpu_pool_disk_type
    if (family := cpu_family(machine)) and disk.partition("-")[0] not in family.disks:
        kinds = " and ".join(family.disks)
        rule, fix = f"{machine} boots from disks of {kinds}", f"write one of {kinds}, or another machine"
        yield Problem("gke:cpuPoolDiskType", f'"{disk}"', rule, fix)


def _version(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired = settings[GkeSettings]
    channel, minor = CHANNELS[desired.channel], int(desired.version.split(".")[1])
    if not channel.first <= minor <= channel.last:
        able = [name for name, channel in CHANNELS.items() if channel.first <= minor <= channel.last]
        alternative = f", or gke:channel: {able[0]}" if able else ""
        yield Problem(
            "gke:version", f'"{desired.version}" of channel {desired.channel}',
            f"{desired.channel} offers 1.{channel.first} to 1.{channel.last} (read {CHANNELS_READ})",
            f"write 1.{channel.last}{alternative}",
        )  # fmt: skip
    elif minor < gke_pools.FLEX_START_MINOR:
        for number, pool in enumerate(desired.tpu_pools):
            if pool.is_flex_start:
                yield Problem(
                    f"gke:tpuPools[{number}]", f"flex-start with GKE {desired.version}",
                    f"TPUs come by flex-start from 1.{gke_pools.FLEX_START_MINOR} on",
                    f"write gke:version: 1.{gke_pools.FLEX_START_MINOR}, or spot: true",
                )  # fmt: skip


def _given_up(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired = settings[GkeSettings]
    if desired.force_destroy and settings.environment == PRODUCTION:
        yield Problem(
            "gke:forceDestroy",
            "true in prod",
            "a bucket of prod is never deleted with what it holds",
            "remove it",
        )
    if desired.force_destroy and not desired.artifact_bucket:
        yield Problem(
            "gke:forceDestroy", "true without a bucket", "it is about the artifact bucket",
            "add gke:artifactBucket, or remove it",
        )  # fmt: skip


def _namespaces(settings: Settings, given: set[str]) -> Iterator[Problem]:
    for name in settings[GkeSettings].namespaces:
        if of_the_cluster(name):
            rule = "this namespace belongs to Kubernetes or a controller"
            yield Problem("gke:namespaces", f'"{name}"', rule, "write one of your own")


RULES: tuple[Relation, ...] = (
    (
        (
            "gke:tpuPools[].zone",
            "gke:tpuPools[].flexStart",
            "gke:tpuPools[].queued",
            "gke:region",
            "storage:location",
            "tpu:additionalZones",
        ),
        _zones,
    ),
    (("gke:region", "storage:location", "storage:allowCrossRegion"), _region),
    (("gke:existingCluster", *_OF_OUR_CLUSTER), _existing_cluster),
    _own((("gke:cpuPoolZones", "gke:region", "storage:location", "gke:tpuPools[].zone"), _cpu_zones)),
    (("gke:tpuPools[].name",), _names),
    _own((("gke:subnetRange", "gke:podsRange", "gke:servicesRange", "network:subnetRanges"), _ranges)),
    _own((("gke:subnetRange", "gke:podsRange", *_SIZES), _room)),
    _own(
        (
            ("gke:existingSubnet", "gke:region", "storage:location", "network:existingNetwork"),
            _existing_subnet,
        )
    ),
    (("gke:version", "gke:channel", "gke:tpuPools"), _version),
    (("gke:forceDestroy", "gke:artifactBucket"), _given_up),
    (("gke:namespaces",), _namespaces),
    (("gke:podsRangeName", "gke:servicesRangeName"), _range_names),
    (("gke:cpuPoolMachineType", "gke:cpuPoolDiskType"), _disk),
)
