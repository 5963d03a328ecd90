"""Resources that exist from the start: the project, its regions and zones, and disk types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rehearsal.cloud.collections import Collection
from rehearsal.cloud.core.operations import compute_link
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import compute_account

_GIB_PER_TIB = 1024


@dataclass(frozen=True)
class DiskType:
    """Limits of a disk type; throughput is None where it cannot be provisioned.

    Source: https://cloud.google.com/compute/docs/disks/hyperdisks and …/persistent-disks.
    """

    smallest_gib: int
    largest_gib: int
    default_gib: int
    throughput_mib_s: tuple[int, int] | None = None
    access_modes: tuple[str, ...] = ()


DISK_TYPES = {
    "hyperdisk-ml": DiskType(
        4, 64 * _GIB_PER_TIB, 100, (400, 1_200_000), ("READ_WRITE_SINGLE", "READ_ONLY_MANY")
    ),
    "hyperdisk-balanced": DiskType(
        4, 64 * _GIB_PER_TIB, 100, (140, 2_400), ("READ_WRITE_SINGLE", "READ_WRITE_MANY")
    ),
    "pd-balanced": DiskType(10, 64 * _GIB_PER_TIB, 100),
    "pd-ssd": DiskType(10, 64 * _GIB_PER_TIB, 100),
    "pd-standard": DiskType(10, 64 * _GIB_PER_TIB, 500),
}


def add_places(world: World, zones: Iterable[str]) -> None:
    """Enter the project, the zones, their regions and disk types into the directory."""
    project = f"projects/{world.project}"
    by_region: dict[str, list[str]] = {}
    for zone in zones:
        by_region.setdefault(zone.rpartition("-")[0], []).append(f"{project}/zones/{zone}")
    for short, members in by_region.items():
        region = f"{project}/regions/{short}"
        links = [compute_link(zone) for zone in members]
        _enter(world, "region", region, description=short, status="UP", zones=links)
        for zone in members:
            name = zone.rpartition("/")[2]
            _enter(world, "zone", zone, description=name, status="UP", region=compute_link(region))
            for kind, limits in DISK_TYPES.items():
                _enter(
                    world,
                    "diskType",
                    f"{zone}/diskTypes/{kind}",
                    description=kind,
                    validDiskSize=f"{limits.smallest_gib}GB-{limits.largest_gib}GB",
                    defaultDiskSizeGb=str(limits.default_gib),
                    zone=compute_link(zone),
                )
    _enter(world, "project", project, id=world.number, defaultServiceAccount=compute_account(world))


def _enter(world: World, kind: str, name: str, **more: object) -> None:
    world.directory[name] = {
        "kind": f"compute#{kind}",
        "name": name.rpartition("/")[2],
        "creationTimestamp": world.clock.rfc3339(),
        "selfLink": compute_link(name),
        **more,
    }


COLLECTIONS = tuple(Collection(f"compute.{name}") for name in ("projects", "regions", "zones", "diskTypes"))
