"""Rules between settings of different slices and layers.

A rule whose inputs are broken already is silent: it would only repeat what is known.
"""

import ipaddress
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches

from infra import names, nodes
from infra.catalog import CATALOG, region_of
from infra.errors import Problem
from infra.settings import commands
from infra.settings.one_slice import OURS, set_by_us
from infra.settings.schema import Settings

_SHORTEST_WAIT_S = 180  # systemd gives a job up that starts more than 20 times an hour
_MOST_WORKERS = 4096  # workload.cluster
_MOST_LABELS = 64
# https://cloud.google.com/vpc/docs/subnets#unusable-ip-addresses-in-every-subnet
_ADDRESSES_KEPT = 4

Rule = Callable[[Settings, set[str]], Iterator[Problem]]


def between_sections(settings: Settings, broken: set[str], given: set[str]) -> Iterator[Problem]:
    """What is wrong between fields of different slices and layers."""
    anywhere = {re.sub(r"\[\d+\]", "[]", path) for path in broken}
    for reads, rule in RULES:
        if not any(_within(path, read) or _within(read, path) for path in anywhere for read in reads):
            yield from rule(settings, given)


def _within(path: str, other: str) -> bool:
    """Whether `path` is `other`, or a part of it."""
    return path == other or path.startswith((f"{other}.", f"{other}["))


def _versioning(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings.storage.versioning and settings.storage.hierarchical_namespace:
        yield Problem(
            "storage:hierarchicalNamespace",
            "true beside versioning",
            "Cloud Storage keeps no versions in a bucket with real folders",
            "write storage:versioning: false beside it (soft delete still protects), or remove it",
        )


def _location(settings: Settings, given: set[str]) -> Iterator[Problem]:
    location = settings.storage.location
    if settings.storage.allow_cross_region:
        return
    homes = {region_of(zone) for one in settings.tpu.slices for zone in one.zones}
    for region in nodes.regions(settings):
        if region != location:
            stand, fix = "stand in", f"write storage:location: {region}, or storage:allowCrossRegion: true"
            if region not in homes:
                stand, fix = "may be moved to", "take it out of otherZones, or storage:allowCrossRegion: true"
            yield Problem(
                "storage:location",
                f'"{location}"',
                f"slices {stand} {region}, and every byte between regions is slow and is billed",
                fix,
            )


def _kms_location(settings: Settings, given: set[str]) -> Iterator[Problem]:
    key = settings.storage.kms_key
    if key and key.split("/")[3] != settings.storage.location:
        yield Problem(
            "storage:kmsKey",
            f'"{key}"',
            f"a bucket's key is in the bucket's location, {settings.storage.location}",
            "create a key ring there",
        )


def _state_bucket(settings: Settings, given: set[str]) -> Iterator[Problem]:
    others = {
        names.controller_bucket(settings): "the bucket of that name is the fleet controller's",
        names.steps_bucket(settings): "the bucket of that name is where running jobs save",
    }
    if rule := others.get(settings.storage.state_bucket_name or ""):
        yield Problem(
            "storage:stateBucketName",
            f'"{settings.storage.state_bucket_name}"',
            rule,
            "give it another name",
        )
    if settings.storage.state_bucket_name == settings.storage.bucket_name:
        yield Problem(
            "storage:stateBucketName",
            f'"{settings.storage.state_bucket_name}"',
            "who may write checkpoints must not read Pulumi's state: two buckets",
            "give it another name",
        )


def _controller_account(settings: Settings, given: set[str]) -> Iterator[Problem]:
    storage = settings.storage
    if storage.controller_account_id == storage.service_account_id:
        yield Problem(
            "storage:controllerAccountId",
            f'"{storage.controller_account_id}"',
            "hosts must not decide over slices: two accounts",
            "give it another name",
        )
    if storage.controller_account_users and not storage.controller_account_id:
        yield Problem(
            "storage:controllerAccountUsers",
            f"{len(storage.controller_account_users)} without an account",
            "who may run as the controller's account needs one",
            "add storage:controllerAccountId: tpu-fleet, or remove it",
        )


def _ranges(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings.network.existing_network:
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


def _room(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings.network.existing_network:
        return
    hosts: Counter[str] = Counter()
    for node in nodes.nodes(settings):
        for region in {region_of(zone) for zone in node.places}:
            hosts[region] += node.kind.hosts
    for region, text in sorted(names.subnet_ranges(settings, nodes.regions(settings)).items()):
        room = ipaddress.IPv4Network(text).num_addresses - _ADDRESSES_KEPT
        if hosts[region] > room:
            bits = (hosts[region] + _ADDRESSES_KEPT - 1).bit_length()
            yield Problem(
                f"network:subnetRanges.{region}",
                f'"{text}" for {hosts[region]} hosts',
                f"each host has an address, and Google keeps {_ADDRESSES_KEPT} of a subnet: {room} are left",
                f"write a range of /{32 - bits} or larger",
            )


def _ssh_ranges(settings: Settings, given: set[str]) -> Iterator[Problem]:
    ranges = ipaddress.collapse_addresses(map(ipaddress.IPv4Network, settings.network.ssh_source_ranges))
    if (number := sum(one.num_addresses for one in ranges)) > 1 << 24:
        yield Problem(
            "network:sshSourceRanges",
            f"{number:,} addresses",
            "together as many as a /8 at most; SSH is never open to the world",
            "write 35.235.240.0/20 (Identity-Aware Proxy) or your office's range",
        )


def _range_regions(settings: Settings, given: set[str]) -> Iterator[Problem]:
    used = nodes.regions(settings)
    for name, regions in (
        ("subnetRanges", settings.network.subnet_ranges),
        ("existingSubnets", settings.network.existing_subnets),
    ):
        for region in sorted(set(regions) - set(used)):
            yield Problem(
                f"network:{name}.{region}",
                f'"{regions[region]}"',
                f"no slice stands in this region (in use: {', '.join(used) or 'none'})",
                "remove it, or correct the region",
            )


def _no_range(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings.network.existing_network:
        return
    known = {*CATALOG.zones, *settings.tpu.additional_zones}  # of other zones _known_zones speaks
    for region in sorted({region_of(zone) for zone in nodes.zones(settings) if zone in known}):
        if region not in names.DEFAULT_RANGES and region not in settings.network.subnet_ranges:
            yield Problem(
                f"network:subnetRanges.{region}",
                "nothing",
                "this region has no default range",
                f"add {region}: and a range, such as 10.127.0.0/20",
            )


def _existing(settings: Settings, given: set[str]) -> Iterator[Problem]:
    network = settings.network
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
    for region, subnet in settings.network.existing_subnets.items():
        if subnet.split("/")[3] != region:
            yield Problem(
                f"network:existingSubnets.{region}",
                f'"{subnet}"',
                "a subnet serves its own region",
                f"write a subnet of {region}",
            )


def _host_project(settings: Settings, given: set[str]) -> Iterator[Problem]:
    network = settings.network.existing_network
    for region, subnet in settings.network.existing_subnets.items() if network else ():
        if network and subnet.split("/")[1] != network.split("/")[1]:
            yield Problem(
                f"network:existingSubnets.{region}",
                f'"{subnet}"',
                f"a subnet is in its network's project, {network.split('/')[1]}",
                "write a subnet of that network",
            )


def _known_zones(settings: Settings, given: set[str]) -> Iterator[Problem]:
    known = (*CATALOG.zones, *settings.tpu.additional_zones)
    for zone in nodes.zones(settings):
        if zone not in known:
            yield Problem(
                "tpu:slices",
                f'zone "{zone}"',
                f"v6e is offered in {', '.join(CATALOG.zones)} (read {CATALOG.zones_read})",
                f"choose one of these; if Google offers it there to you, add {zone} to tpu:additionalZones",
            )


def _unique_names(settings: Settings, given: set[str]) -> Iterator[Problem]:
    times = Counter(one.name for one in settings.tpu.slices)
    for name in sorted(name for name in times if times[name] > 1):
        yield Problem(
            "tpu:slices",
            f'{times[name]} slices called "{name}"',
            "each slice has its own name",
            "rename one",
        )


def _unique_nodes(settings: Settings, given: set[str]) -> Iterator[Problem]:
    owners: dict[str, set[str]] = defaultdict(set)
    fixed = set()  # another fleet's member gets the next free id
    for node in nodes.nodes(settings):
        owners[node.name].add(node.slice)
        if node.member is None or node.together:
            fixed.add(node.name)
    clashes: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, slices in sorted(owners.items()):
        if len(slices) > 1 and name in fixed:
            clashes[tuple(sorted(slices))].append(name)
    for clashing, shared in clashes.items():
        yield Problem(
            "tpu:slices",
            f"{', '.join(shared)} in {' and '.join(clashing)}",
            "a node has its id in its zone for itself",
            "rename the slice, or set a fleet's firstWorkerId past the other's ids",
        )


def _one_writer(settings: Settings, given: set[str]) -> Iterator[Problem]:
    writers: dict[str, list[nodes.Node]] = defaultdict(list)
    for node in nodes.nodes(settings):
        asked = commands.training(node.run or "")
        if asked and not asked.folder:
            writers[asked.name].append(node)
    for run, several in writers.items():
        if len({node.slice if node.together else node.name for node in several}) > 1:
            slices = sorted({node.slice for node in several})
            yield Problem(
                "tpu:slices",
                f'run "{run}" on {len(several)} nodes of {" and ".join(slices)}',
                "one node trains a run: a second would overwrite and remove its checkpoints",
                "add --name to the run of one of the slices; members of a fleet can't train, unless"
                " multislice: true makes one job of them",
            )


def _barrier(settings: Settings, given: set[str]) -> Iterator[Problem]:
    several = [one for one in settings.tpu.slices if one.multislice]
    if several and settings.tpu.barrier_timeout_s < _SHORTEST_WAIT_S:
        yield Problem(
            "tpu:barrierTimeoutS",
            f"{settings.tpu.barrier_timeout_s} beside {several[0].name}, a multislice job",
            "a slice that waits for another to come back is started at most 20 times an hour",
            f"write {_SHORTEST_WAIT_S} or more",
        )


def _together(settings: Settings, given: set[str]) -> Iterator[Problem]:
    for one in (one for one in settings.tpu.slices if one.multislice):
        hosts = sum(node.kind.hosts for node in nodes.nodes(settings) if node.slice == one.name)
        if hosts > _MOST_WORKERS:
            yield Problem(
                "tpu:slices",
                f"{hosts} hosts in {one.name}",
                f"the trainer takes a job of at most {_MOST_WORKERS} hosts",
                "lower count",
            )


def _own_code(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings.tpu.code:
        return
    for number, one in enumerate(settings.tpu.slices):
        if one.run and (file := commands.own_file(one.run)):
            packaged = commands.PACKAGED.get(commands.split(one.run)[0], [])
            near = get_close_matches(file, packaged, 1)
            yield Problem(
                f"tpu:slices[{number}].run",
                f'"{one.run}" without tpu:code',
                f"nothing brings {file} to the hosts, whose disks are new after every preemption",
                f"perhaps {near[0]} was meant"
                if near
                else f"write tpu:code: and the folder that holds it, then make publish; or name "
                f"{'one of ' + ', '.join(packaged) if packaged else 'a program by its absolute path'}",
            )


def _silence(settings: Settings, given: set[str]) -> Iterator[Problem]:
    silence_s, barrier_s = settings.fleet.silence_s, settings.tpu.barrier_timeout_s
    if silence_s <= barrier_s:
        yield Problem(
            "fleet:silenceS",
            f"{silence_s} beside tpu:barrierTimeoutS {barrier_s}",
            "a host says nothing while it waits for the others, and isn't to be taken for dead",
            f"write more than {barrier_s}, or lower tpu:barrierTimeoutS",
        )


def _throughput(settings: Settings, given: set[str]) -> Iterator[Problem]:
    disk, size_gib = CATALOG.data_disk, settings.data.size_gib
    least = max(disk.min_throughput_mibps, math.ceil(disk.min_throughput_mibps_per_gib * size_gib))
    most = min(disk.max_throughput_mibps, int(disk.max_throughput_mibps_per_gib * size_gib))
    if not least <= settings.data.throughput_mibps <= most:
        yield Problem(
            "data:throughputMibps",
            f"{settings.data.throughput_mibps} for {size_gib} GiB",
            f"a Hyperdisk ML of this size has {least} to {most} MiB/s",
            "write a number in that range, or change data:sizeGib",
        )


def _hosts(settings: Settings) -> dict[str, int]:
    """Zone → hosts that read its data disk, those of slices included that may be moved there."""
    if settings.data.snapshot is None:
        return {}
    found = nodes.nodes(settings)
    return {
        zone: sum(node.kind.hosts for node in found if zone in node.places) for zone in nodes.zones(settings)
    }


def _throughput_each(settings: Settings, given: set[str]) -> Iterator[Problem]:
    disk, found = CATALOG.data_disk, settings.data.throughput_mibps
    for zone, hosts in _hosts(settings).items():
        least = disk.min_throughput_mibps_per_reader * hosts
        if disk.readers_at_any_throughput < hosts <= disk.max_readers and found < least:
            yield Problem(
                "data:throughputMibps",
                f"{found} for {hosts} hosts in {zone}",
                f"more than {disk.readers_at_any_throughput} hosts of one Hyperdisk ML have at least"
                f" {disk.min_throughput_mibps_per_reader} MiB/s each",
                f"write {least} or more, or spread the slices over more zones",
            )


def _readers(settings: Settings, given: set[str]) -> Iterator[Problem]:
    limit = CATALOG.data_disk.max_readers
    for zone, hosts in _hosts(settings).items():
        if hosts > limit:
            yield Problem(
                "tpu:slices",
                f"{hosts} hosts in {zone}",
                f"at most {limit} hosts read one Hyperdisk ML",
                "move slices to another zone, or lower count",
            )


def _label_counts(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """By "Requirements for labels", https://cloud.google.com/resource-manager/docs/labels-overview."""
    default, of_stacks = settings.gcp.default_labels, {"environment", "layer"}
    places: list[tuple[str, Mapping[str, str], Collection[str]]] = [
        ("gcp:defaultLabels", {}, OURS),
        ("storage:labels", settings.storage.labels, of_stacks),
        ("data:labels", settings.data.labels, of_stacks),
        *((f"tpu:slices[{i}].labels", one.labels, OURS) for i, one in enumerate(settings.tpu.slices)),
    ]
    for path, labels, ours in places:
        most = _MOST_LABELS - len(ours) - 1  # and the one by which Pulumi's provider marks what it makes
        if (number := len({*default, *labels})) > most and (labels or path == "gcp:defaultLabels"):
            yield Problem(
                path,
                f"{number} labels" + (" with gcp:defaultLabels" if labels and default else ""),
                f"a resource has at most {_MOST_LABELS} labels, {_MOST_LABELS - most} of them the program's",
                f"keep {most}",
            )


def _own_labels(settings: Settings, given: set[str]) -> Iterator[Problem]:
    places: list[tuple[str, Mapping[str, str], Collection[str]]] = [
        ("gcp:defaultLabels", settings.gcp.default_labels, OURS),
        ("storage:labels", settings.storage.labels, {"environment", "layer"}),
        ("data:labels", settings.data.labels, {"environment", "layer"}),
    ]
    for path, labels, ours in places:
        yield from set_by_us(path, labels, ours)


_ZONES = ("tpu:slices[].zones", "tpu:slices[].otherZones")
_HOSTS = (*_ZONES, "tpu:slices[].acceleratorType", "tpu:slices[].topology", "tpu:slices[].count")
"""What says how many hosts there are, and where."""

RULES: tuple[tuple[tuple[str, ...], Rule], ...] = (
    (("storage:versioning", "storage:hierarchicalNamespace"), _versioning),
    (("storage:location", "storage:allowCrossRegion"), _location),
    (("storage:location", "storage:kmsKey"), _kms_location),
    (("storage:bucketName", "storage:stateBucketName"), _state_bucket),
    (
        ("storage:serviceAccountId", "storage:controllerAccountId", "storage:controllerAccountUsers"),
        _controller_account,
    ),
    (("network:subnetRanges", "network:existingNetwork"), _ranges),
    (("network:subnetRanges", "network:existingNetwork"), _no_range),
    (("network:subnetRanges", "network:existingNetwork", *_HOSTS), _room),
    (("network:subnetRanges", "network:existingSubnets", *_ZONES), _range_regions),
    (("network:existingNetwork", "network:existingSubnets"), _existing),
    (("network:existingSubnets",), _subnet_ids),
    (("network:existingSubnets", "network:existingNetwork"), _host_project),
    (("network:sshSourceRanges",), _ssh_ranges),
    (("tpu:additionalZones",), _known_zones),
    (("tpu:slices[].name",), _unique_names),
    (("tpu:slices[].count", "tpu:slices[].firstWorkerId"), _unique_nodes),
    (("tpu:slices[].count", "tpu:slices[].multislice", "tpu:slices[].run"), _one_writer),
    (("tpu:barrierTimeoutS",), _barrier),
    (_HOSTS, _together),
    (("tpu:code",), _own_code),
    (("fleet:silenceS", "tpu:barrierTimeoutS"), _silence),
    (("data:sizeGib", "data:throughputMibps"), _throughput),
    (("data:throughputMibps", "data:snapshot", *_HOSTS), _throughput_each),
    (("data:snapshot", *_HOSTS), _readers),
    ((), _own_labels),
    (("gcp:defaultLabels",), _label_counts),
)
