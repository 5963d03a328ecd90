"""Rules between the Slurm layer's settings, and with those of the layers that it stands on."""

import ipaddress
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from google_facts.machines import cpu_family
from infra.catalog import CATALOG, region_of
from infra.errors import Problem
from infra.layers.network.names import subnet_ranges
from infra.layers.network.settings import NetworkSettings
from infra.layers.slurm import names, slices
from infra.layers.slurm.conf import nodes as conf
from infra.layers.slurm.facts import FILESTORE_GIB, MOST_NAMES
from infra.layers.slurm.settings import (
    DISKS,
    FILESTORE,
    NodesetSettings,
    SlurmSettings,
)
from infra.settings import commands
from infra.settings.schema import ADDED_SLICES, Relation, Settings
from infra.slices import nodes, sizes
from infra.slices.paths import HOSTS
from infra.slices.settings import TpuSettings

_ADDRESSES_KEPT = 4
_LETTERS = "abcdef"  # zones with CPU machines end in one; an AI zone has accelerators
_SIZE_KEYS = (
    "acceleratorType",
    "topology",
    "node_type",
    "nodeType",
    "accelerator_config",
    "acceleratorConfig",
)
_MOST = slices.Reached("255.255.255.255", "255.255.255.255:/home")


def checked(
    path: str, nodeset: NodesetSettings, raw: dict[str, Any], broken: set[str]
) -> tuple[NodesetSettings, list[Problem]]:
    """Check a nodeset; return it with a name, a size and hosts, for other rules, and its problems."""
    problems = list(_within(path, nodeset, broken))
    broken.update(problem.path for problem in problems if problem.path != path)
    if sizes.kind_of(nodeset.accelerator_type, nodeset.topology) is None:
        broken.add(f"{path}.acceleratorType")
        nodeset = replace(nodeset, accelerator_type=CATALOG.types[0].name)
    if not max(nodeset.node_count_static, nodeset.node_count_dynamic_max):
        broken.add(f"{path}.nodeCountStatic")
    return replace(nodeset, name=nodeset.name or path), problems


def _within(path: str, nodeset: NodesetSettings, broken: set[str]) -> Iterator[Problem]:
    def fine(*keys: str) -> bool:
        return not any(f"{path}.{key}" in broken for key in keys)

    if fine(*_SIZE_KEYS):
        yield from sizes.problems(path, nodeset.accelerator_type, nodeset.topology, type_known=True)
    if fine("nodeCountStatic", "nodeCountDynamicMax"):
        yield from _counts(path, nodeset)
    if nodeset.spot and nodeset.reserved:
        rule, fix = "a slice is spot, reserved or neither (on demand)", "remove one of the two"
        yield Problem(f"{path}.reserved", "true beside spot: true", rule, fix)
    if nodeset.reserved and nodeset.fallback_zones:
        rule, fix = "a reservation is of one zone", "remove one of the two"
        yield Problem(
            f"{path}.fallbackZones", f"{len(nodeset.fallback_zones)} beside reserved: true", rule, fix
        )
    if nodeset.zone in nodeset.fallback_zones:
        rule, fix = "zones besides the slices' own", "write another zone, or remove it"
        yield Problem(f"{path}.fallbackZones", f'"{nodeset.zone}"', rule, fix)
    for number, mount in enumerate(nodeset.network_storage):
        at = f"{path}.networkStorage[{number}]"
        if (mount.server is None) == (mount.type == "nfs") and not any(bad.startswith(at) for bad in broken):
            rule = "an NFS mount names its server, and a bucket has none"
            fix = "add server" if mount.type == "nfs" else "remove it"
            yield Problem(f"{at}.server", mount.server or "nothing", rule, fix)
    for local, times in Counter(mount.local for mount in nodeset.network_storage).items():
        if times > 1:
            rule = "one file system is mounted at a place"
            yield Problem(
                f"{path}.networkStorage", f"{times} at {local}", rule, "write another local for one"
            )


def _counts(path: str, nodeset: NodesetSettings) -> Iterator[Problem]:
    """Yield counts that are no whole slices, none at all, or static hosts beyond the most."""
    static, most = nodeset.node_count_static, nodeset.node_count_dynamic_max
    if not static and not most:
        rule = "a nodeset has hosts, static ones or some that come for jobs"
        yield Problem(
            path, "neither nodeCountStatic nor nodeCountDynamicMax", rule, "add nodeCountDynamicMax: 8"
        )
        return
    if most and static > most:
        rule = f"that is the most of all hosts, and {static} are static (cluster-toolkit adds the two up)"
        yield Problem(
            f"{path}.nodeCountDynamicMax", str(most), rule, f"write {static} or more; or 0 for none beside"
        )
    kind = sizes.kind_of(nodeset.accelerator_type, nodeset.topology)
    for key, count in (("nodeCountStatic", static), ("nodeCountDynamicMax", most)):
        if kind and count % kind.hosts:
            less = count - count % kind.hosts
            fix = f"write {f'{less} or ' if less else ''}{less + kind.hosts}"
            rule = f"it counts hosts, and a slice of {kind.name} has {kind.hosts}: whole slices come and go"
            yield Problem(f"{path}.{key}", str(count), rule, fix)


def _desired(settings: Settings) -> SlurmSettings | None:
    """Return the section if it has nodesets, which other problems name where it hasn't."""
    desired = settings.get(SlurmSettings)
    return desired if desired and desired.nodesets else None


def _nodesets(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if (desired := settings.get(SlurmSettings)) and not desired.nodesets:
        fix = "add {name: tpu, acceleratorType: v6e-16, zone: us-east5-b, nodeCountDynamicMax: 4}"
        yield Problem("slurm:nodesets", "[]", "a cluster has nodes", fix)


def _names(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if (desired := _desired(settings)) is None:
        return
    for path, listed in (("nodesets", desired.nodesets), ("partitions", desired.partitions),
                         ("accounts", desired.accounts), ("qos", desired.qos)):  # fmt: skip
        for name, times in Counter(item.name for item in listed).items():
            if times > 1:
                rule = f"each of slurm:{path} has its own name"
                yield Problem(f"slurm:{path}", f'{times} called "{name}"', rule, "rename one")
    own = {nodeset.name for nodeset in desired.nodesets}
    for nodeset in desired.nodesets:
        parsed = slices.of_record(nodeset.name)
        if parsed and parsed.nodeset in own:
            rule = f"slices of the nodeset {parsed.nodeset} are called so, and Slurm has one switch of a name"
            yield Problem("slurm:nodesets", f'"{nodeset.name}"', rule, "rename one")
    if desired.name is None and not _fits(settings.environment):
        rule = f"the cluster is called {names.name(settings)}, unless given, and that is no name of machines"
        yield Problem("slurm:name", "nothing", rule, "write one of 4 to 19 letters, digits and hyphens")


def _fits(environment: str) -> bool:
    return len(environment) <= 13 and environment.replace("-", "").isalnum() and not environment.endswith("-")


def _slice_names(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield slices of the file that are called as a nodeset's: commands couldn't tell them apart."""
    if (desired := _desired(settings)) is None or ADDED_SLICES in given:
        return
    own = {nodeset.name for nodeset in desired.nodesets}
    for slice_ in settings[TpuSettings].slices:
        parsed = slices.of_record(slice_.name)
        if parsed and parsed.nodeset in own:
            rule = f"slices of the nodeset {parsed.nodeset} are called {parsed.nodeset}-0 and so on"
            yield Problem("tpu:slices", f'"{slice_.name}"', rule, "rename it, or the nodeset")


def _partitions(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if (desired := _desired(settings)) is None:
        return
    kinds = {nodeset.name: nodeset for nodeset in slices.nodesets(settings)}
    used: set[str] = set()
    for number, partition in enumerate(desired.partitions):
        path = f"slurm:partitions[{number}]"
        used |= {*partition.nodesets}
        if unknown := [name for name in partition.nodesets if name not in kinds]:
            rule = f"one of slurm:nodesets: {', '.join(kinds)}"
            yield Problem(f"{path}.nodesets", ", ".join(unknown), rule, "write one of these")
        elif not partition.nodesets:
            yield Problem(f"{path}.nodesets", "[]", "a partition has nodes", f"write [{next(iter(kinds))}]")
        elif len(sizes_ := {kinds[name].kind.name for name in partition.nodesets}) > 1:
            rule = "slices of a partition are of one size: -N counts them, and a job's mesh is made of them"
            fix = "make a partition of each; sbatch -p takes one"
            yield Problem(f"{path}.nodesets", " and ".join(sorted(sizes_)), rule, fix)
    defaults = [partition.name for partition in desired.partitions if partition.default]
    if len(defaults) > 1:
        rule = "one partition is that of jobs that name none"
        yield Problem("slurm:partitions", f"default: {', '.join(defaults)}", rule, "keep one default: true")
    if desired.partitions and (idle := sorted(kinds.keys() - used)):
        rule = "jobs reach a nodeset by a partition"
        yield Problem("slurm:partitions", f"none with {', '.join(idle)}", rule, "add it to one, or remove it")


def _sizes(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield a partition with more hosts than Slurm's lists hold."""
    if _desired(settings) is None:
        return
    for partition in conf.partitions(settings):
        hosts = sum(nodeset.count * nodeset.hosts for nodeset in conf.nodesets_of(settings, partition))
        if hosts > MOST_NAMES:
            rule = f"a list of Slurm's holds {MOST_NAMES:,} names"
            yield Problem(
                "slurm:nodesets", f"{hosts:,} hosts in {partition.name}", rule, "lower nodeCountDynamicMax"
            )


def _zones(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield zones without v6e or a subnet, and a controller's without CPU machines."""
    if (desired := _desired(settings)) is None:
        return
    known, covered = nodes.known_zones(settings), nodes.zones(settings)
    add = f"add it to tpu:zones, then tpu up {settings.environment} network"
    for number, nodeset in enumerate(desired.nodesets):
        places = (("zone", nodeset.zone), *(("fallbackZones", zone) for zone in nodeset.fallback_zones))
        for key, zone in places:
            path = f"slurm:nodesets[{number}].{key}"
            if zone not in known:
                yield nodes.unknown_zone(path, zone)
            elif zone not in covered:
                yield Problem(path, f'"{zone}"', _subnets(covered), add)
    zone, path = names.zone(settings), "slurm:zone"
    value = f'"{zone}"' if desired.zone else f"nothing, so {zone}"
    if zone.rpartition("-")[2] not in (*_LETTERS,):
        rule = "the controller is in a zone with CPU machines, and an AI zone has accelerators alone"
        yield Problem(path, value, rule, f"write another zone of {region_of(zone)}, e.g. {region_of(zone)}-b")
    elif desired.zone and region_of(zone) not in nodes.regions(settings):
        yield Problem(path, value, _subnets(covered), f"write one of their regions; or {add}")


def _subnets(covered: Sequence[str]) -> str:
    return f"network makes subnets for {', '.join(covered) or 'no zone yet'}"


def _room(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield a subnet that doesn't hold all hosts, the controller and the login nodes."""
    if (desired := _desired(settings)) is None or settings[NetworkSettings].existing_network:
        return
    needed: Counter[str] = Counter({names.region(settings): 1 + desired.login_count})
    for nodeset in slices.nodesets(settings):
        for region in {region_of(zone) for zone in nodeset.places}:
            needed[region] += nodeset.count * nodeset.hosts
    if ADDED_SLICES not in given:  # its slices are among these
        for node in nodes.nodes(settings):
            for region in {region_of(zone) for zone in node.places}:
                needed[region] += node.kind.hosts
    for region, text in sorted(subnet_ranges(settings, needed).items()):
        room = ipaddress.IPv4Network(text).num_addresses - _ADDRESSES_KEPT
        if needed[region] > room:
            length = 32 - (needed[region] + _ADDRESSES_KEPT - 1).bit_length()
            rule = f"each host and machine has an address, and {room} are left in {region}"
            fix = f"lower nodeCountDynamicMax, or give network:subnetRanges.{region} a range of /{length}"
            yield Problem("slurm:nodesets", f"{needed[region]:,} addresses of {text}", rule, fix)


def _state_disk(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if (desired := _desired(settings)) is None:
        return
    disk, zone = desired.existing_state_disk, names.zone(settings)
    if disk and disk.split("/")[3] != zone:
        rule = f"a machine attaches disks of its own zone, and the controller is in {zone}"
        fix = f"write slurm:zone: {disk.split('/')[3]}, or move the disk by a snapshot"
        yield Problem("slurm:existingStateDisk", f'"{disk}"', rule, fix)
    elif disk and disk.split("/")[1] != settings.project:
        rule, fix = f"the disk is in the machine's project, {settings.project}", "copy it by a snapshot"
        yield Problem("slurm:existingStateDisk", f'"{disk}"', rule, fix)
    for key in ("stateDiskGib", "stateDiskType"):
        if disk and f"slurm:{key}" in given:
            rule = "an existing disk is used as it is"
            yield Problem(f"slurm:{key}", "a value beside existingStateDisk", rule, "remove it")
    family = cpu_family(desired.controller_machine_type)
    if not disk and family and desired.state_disk_type.partition("-")[0] not in family.disks:
        able = ", ".join(kind for kind in DISKS if kind.partition("-")[0] in family.disks)
        rule = f"{desired.controller_machine_type} takes disks of {' and '.join(family.disks)}"
        yield Problem("slurm:stateDiskType", f'"{desired.state_disk_type}"', rule, f"write one of {able}")


def _filestore(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield a size that no instance of the tier has, and a network where none can be."""
    if (desired := _desired(settings)) is None or desired.home_storage != FILESTORE:
        return
    size, tier = desired.filestore_gib, desired.filestore_tier
    if not any(size in sizes_ for sizes_ in FILESTORE_GIB[tier]):
        value = str(size) if "slurm:filestoreGib" in given else f"nothing, so {size}"
        listed = [f"{sizes_[0]} to {sizes_[-1]} GiB" + (f" by {sizes_.step}" if sizes_.step > 1 else "")
                  for sizes_ in FILESTORE_GIB[tier]]  # fmt: skip
        larger = next((other for sizes_ in FILESTORE_GIB[tier] for other in sizes_ if other > size), None)
        fix = f"write {larger or FILESTORE_GIB[tier][-1][-1]}, or another filestoreTier"
        yield Problem("slurm:filestoreGib", value, f"{tier} has {' or '.join(listed)}", fix)
    network = settings[NetworkSettings].existing_network
    if network and network.split("/")[1] != settings.project:
        # https://cloud.google.com/filestore/docs/architecture: shared VPC
        rule = "an instance is peered with a network of its own project alone"
        fix = "write homeStorage: nfs, or mount an instance of that project by networkStorage"
        yield Problem("slurm:homeStorage", f"filestore beside {network}", rule, fix)


def _unused(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield values that nothing reads: their author expects that they do something."""
    if (desired := _desired(settings)) is None:
        return
    if desired.accounts and not desired.accounting:
        rule = "limits and shares are kept by slurmdbd"
        yield Problem(
            "slurm:accounts",
            f"{len(desired.accounts)} without accounting",
            rule,
            "add slurm:accounting: true",
        )
    known = {qos.name for qos in desired.qos}
    for number, team in enumerate(desired.accounts):
        if unknown := [name for name in team.qos if name not in known]:
            rule = f"one of slurm:qos: {', '.join(sorted(known)) or 'there is none'}"
            yield Problem(f"slurm:accounts[{number}].qos", ", ".join(unknown), rule, "add it there")
    if desired.qos and not desired.accounts:
        rule = "limits hold where there are accounts"
        yield Problem("slurm:qos", f"{len(desired.qos)} without accounts", rule, "add slurm:accounts")
    for key in ("filestoreTier", "filestoreGib"):
        if f"slurm:{key}" in given and desired.home_storage != FILESTORE:
            rule = "it is read with homeStorage: filestore alone"
            yield Problem(
                f"slurm:{key}", "a value without filestore", rule, "remove it, or add homeStorage: filestore"
            )
    if not settings[TpuSettings].os_login:
        rule = "a user has one number on login node and hosts, which OS Login gives"
        yield Problem("tpu:osLogin", "false beside slurm", rule, "remove it")


def _run(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield a nodeset whose hosts would be told more than a service takes."""
    if (desired := _desired(settings)) is None:
        return
    bundled = replace(desired, bundle="0" * 64)
    longest = replace(settings, sections={**settings.sections, SlurmSettings: bundled})
    for number, nodeset in enumerate(slices.nodesets(longest)):
        text = slices.run(longest, nodeset.slices[-1], _MOST)
        if len(text) > commands.MAX_CHARACTERS:
            rule = f"what a host starts has {commands.MAX_CHARACTERS} characters at most"
            fix = "mount fewer file systems, or by shorter paths; the start-up script may mount more"
            yield Problem(f"slurm:nodesets[{number}].networkStorage", f"{len(text)} characters", rule, fix)


_SETS = "slurm:nodesets"
_COUNTS = (f"{_SETS}[].nodeCountStatic", f"{_SETS}[].nodeCountDynamicMax")
_SIZES = (f"{_SETS}[].acceleratorType", f"{_SETS}[].topology", *_COUNTS)
_PLACES = (f"{_SETS}[].zone", f"{_SETS}[].fallbackZones", "slurm:zone", "tpu:zones", "tpu:additionalZones")
RULES: tuple[Relation, ...] = (
    ((_SETS,), _nodesets),
    (
        (
            f"{_SETS}[].name",
            "slurm:partitions[].name",
            "slurm:accounts[].name",
            "slurm:qos[].name",
            "slurm:name",
        ),
        _names,
    ),
    ((f"{_SETS}[].name", "tpu:slices[].name"), _slice_names),
    ((f"{_SETS}[].name", *_SIZES, "slurm:partitions"), _partitions),
    ((f"{_SETS}[].name", *_SIZES, "slurm:partitions"), _sizes),
    (_PLACES, _zones),
    ((*_SIZES, *_PLACES, *HOSTS, "slurm:loginCount", "network:subnetRanges"), _room),
    (
        ("slurm:existingStateDisk", "slurm:stateDiskType", "slurm:controllerMachineType", *_PLACES),
        _state_disk,
    ),
    (
        ("slurm:homeStorage", "slurm:filestoreTier", "slurm:filestoreGib", "network:existingNetwork"),
        _filestore,
    ),
    (("slurm:accounts", "slurm:qos", "slurm:accounting", "slurm:homeStorage", "tpu:osLogin"), _unused),
    ((f"{_SETS}[].name", f"{_SETS}[].networkStorage", f"{_SETS}[].startupScript", *_SIZES), _run),
)
