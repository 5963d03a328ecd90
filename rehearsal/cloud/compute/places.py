"""What is there before anyone builds: the project, its regions and zones, and disk types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rehearsal.cloud.compute.registry import Registry
from rehearsal.cloud.operations import Operations, compute_link
from rehearsal.cloud.service import Call, JsonObject, Method, World

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


def found(world: World, zones: Iterable[str]) -> None:
    """Enter the project, the zones, their regions and disk types into the directory."""
    project = f"projects/{world.project}"
    by_region: dict[str, list[str]] = {}
    for zone in zones:
        by_region.setdefault(zone.rpartition("-")[0], []).append(zone)
    now = world.clock.rfc3339()
    for region, members in by_region.items():
        name = f"{project}/regions/{region}"
        world.directory[name] = {
            "kind": "compute#region",
            "name": region,
            "description": region,
            "status": "UP",
            "creationTimestamp": now,
            "zones": [compute_link(f"{project}/zones/{zone}") for zone in members],
            "selfLink": compute_link(name),
        }
        for zone in members:
            _found_zone(world, f"{project}/zones/{zone}", name, now)
    world.directory[project] = {
        "kind": "compute#project",
        "id": world.number,
        "name": world.project,
        "creationTimestamp": now,
        "defaultServiceAccount": f"{world.number}-compute@developer.gserviceaccount.com",
        "selfLink": compute_link(project),
    }


def _found_zone(world: World, name: str, region: str, now: str) -> None:
    zone = name.rsplit("/", 1)[-1]
    world.directory[name] = {
        "kind": "compute#zone",
        "name": zone,
        "description": zone,
        "status": "UP",
        "region": compute_link(region),
        "creationTimestamp": now,
        "selfLink": compute_link(name),
    }
    for kind, limits in DISK_TYPES.items():
        world.directory[f"{name}/diskTypes/{kind}"] = {
            "kind": "compute#diskType",
            "name": kind,
            "description": kind,
            "validDiskSize": f"{limits.smallest_gib}GB-{limits.largest_gib}GB",
            "defaultDiskSizeGb": str(limits.default_gib),
            "zone": compute_link(name),
            "creationTimestamp": now,
            "selfLink": compute_link(f"{name}/diskTypes/{kind}"),
        }


class Places:
    """compute.projects, regions, zones, diskTypes and the three kinds of operations."""

    def __init__(self, registry: Registry, operations: Operations) -> None:
        self._registry = registry
        self._operations = operations

    def methods(self) -> Mapping[str, Method]:
        """By method id."""
        methods = {
            "compute.projects.get": Method(self._get_project, "compute.projects.get"),
            "compute.regions.get": Method(self._get, "compute.regions.get"),
            "compute.regions.list": Method(self._list, "compute.regions.list"),
            "compute.zones.get": Method(self._get, "compute.zones.get"),
            "compute.zones.list": Method(self._list, "compute.zones.list"),
            "compute.diskTypes.get": Method(self._get, "compute.diskTypes.get"),
            "compute.diskTypes.list": Method(self._list, "compute.diskTypes.list"),
        }
        for scope in ("global", "region", "zone"):
            collection = f"compute.{scope}Operations"
            methods[f"{collection}.get"] = Method(self._operation, f"{collection}.get")
            methods[f"{collection}.wait"] = Method(self._wait, f"{collection}.get")
            methods[f"{collection}.list"] = Method(self._list_operations, f"{collection}.list")
        return methods

    async def _get_project(self, call: Call) -> JsonObject:
        return self._registry.render(call, self._registry.find(self._registry.path(call)))

    async def _get(self, call: Call) -> JsonObject:
        return self._registry.render(call, self._registry.find(self._name(call)))

    async def _list(self, call: Call) -> JsonObject:
        kind = call.method_id.split(".")[1]
        return self._registry.listing(call, f"compute#{kind[:-1]}List", self._name(call))

    def _name(self, call: Call) -> str:
        """The full name of the place, or of the collection where the path names none."""
        kind = call.method_id.split(".")[1]
        names = {"regions": ("region",), "zones": ("zone",), "diskTypes": ("zone", "diskType")}[kind]
        parts: list[str] = []
        for parameter in names:
            parts += [f"{parameter}s", *([call.path[parameter]] if parameter in call.path else [])]
        return self._registry.path(call, *parts)

    def _scope(self, call: Call) -> str:
        if "zone" in call.path:
            return self._registry.path(call, "zones", call.path["zone"])
        if "region" in call.path:
            return self._registry.path(call, "regions", call.path["region"])
        return self._registry.path(call, "global")

    async def _operation(self, call: Call) -> JsonObject:
        name = f"{self._scope(call)}/operations/{call.path['operation']}"
        return self._registry.render(call, self._operations.get(name))

    async def _wait(self, call: Call) -> JsonObject:
        name = f"{self._scope(call)}/operations/{call.path['operation']}"
        return self._registry.render(call, await self._operations.wait(name))

    async def _list_operations(self, call: Call) -> JsonObject:
        items = [self._operations.get(name) for name in self._operations.names(self._scope(call))]
        return self._registry.render(call, {"kind": "compute#operationList", "items": items})
