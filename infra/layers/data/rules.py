"""Rules between the data layer's settings, and with the hosts that read its disks."""

import math
from collections.abc import Iterator

from infra.catalog import CATALOG
from infra.errors import Problem
from infra.layers.data.settings import DataSettings
from infra.settings.schema import Relation, Settings
from infra.slices import nodes
from infra.slices.paths import HOSTS
from views.counts import counted


def _throughput(settings: Settings, given: set[str]) -> Iterator[Problem]:
    disk, size_gib = CATALOG.data_disk, settings[DataSettings].size_gib
    least = max(disk.min_throughput_mibps, math.ceil(disk.min_throughput_mibps_per_gib * size_gib))
    most = min(disk.max_throughput_mibps, int(disk.max_throughput_mibps_per_gib * size_gib))
    if not least <= settings[DataSettings].throughput_mibps <= most:
        yield Problem(
            "data:throughputMibps",
            f"{settings[DataSettings].throughput_mibps} for {size_gib} GiB",
            f"a Hyperdisk ML of this size has {least} to {most} MiB/s",
            "write a number in that range, or change data:sizeGib",
        )


def _hosts(settings: Settings) -> dict[str, int]:
    """Return zone → hosts that read its data disk, including slices that may be moved there."""
    if settings[DataSettings].snapshot is None:
        return {}
    all_nodes = nodes.nodes(settings)
    return {
        zone: sum(node.kind.hosts for node in all_nodes if zone in node.places)
        for zone in nodes.zones(settings)
    }


def _throughput_each(settings: Settings, given: set[str]) -> Iterator[Problem]:
    disk, throughput = CATALOG.data_disk, settings[DataSettings].throughput_mibps
    for zone, hosts in _hosts(settings).items():
        least = disk.min_throughput_mibps_per_reader * hosts
        if disk.readers_at_any_throughput < hosts <= disk.max_readers and throughput < least:
            yield Problem(
                "data:throughputMibps",
                f"{throughput} for {counted(hosts, 'host')} in {zone}",
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


RULES: tuple[Relation, ...] = (
    (("data:sizeGib", "data:throughputMibps"), _throughput),
    (("data:throughputMibps", "data:snapshot", *HOSTS), _throughput_each),
    (("data:snapshot", *HOSTS), _readers),
)
