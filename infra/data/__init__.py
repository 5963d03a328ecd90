"""Data layer: the training data as read-only disks, one per zone in use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from infra import google_ids, names, nodes
from infra.catalog import region_of
from infra.data.rules import RULES
from infra.data.settings import DataSettings
from infra.gcp.roles import Role
from infra.layers import Layer, deferred
from infra.outputs import Outputs, output
from infra.providers import GOOGLE
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from pulumi import Output

    from infra.prices import Row


class DataOutputs(Outputs):
    """What hosts that read the data need of it."""

    disk_ids: Mapping[str, Output[str]] = output("`projects/P/zones/Z/disks/D`", key="zone")


def _disks(settings: Settings) -> dict[str, str]:
    found = {zone: names.disk_id(settings, zone) for zone in nodes.zones(settings)}
    return {zone: disk for zone, disk in found.items() if disk}


def _planned(settings: Settings) -> dict[str, Any]:
    return {"disk_ids": _disks(settings)}


def _prices(settings: Settings) -> Iterable[Row]:
    from infra import prices  # here, because it imports the layers

    desired = settings[DataSettings]
    for zone, disk in _disks(settings).items():
        name = disk.rpartition("/")[2]
        parts = (
            ("disk.hyperdisk-ml", desired.size_gib),
            ("disk.hyperdisk-ml.throughput", desired.throughput_mibps),
        )
        yield prices.row(name, region_of(zone), *parts, zone=zone)


_ROLES = (
    Role(
        "roles/compute.storageAdmin", "create the disks out of the snapshot",
        ("compute.disks.create", "compute.disks.delete", "compute.disks.get", "compute.disks.setLabels",
         "compute.disks.update", "compute.disks.resize", "compute.snapshots.useReadOnly"),
    ),
)  # fmt: skip

LAYER = Layer(
    name="data",
    reads=("storage",),
    settings=DataSettings,
    rules=RULES,
    roles=_ROLES,
    services=lambda _: ("compute.googleapis.com",),
    providers=GOOGLE,
    outputs=DataOutputs,
    planned=_planned,
    prices=_prices,
    at_google=lambda settings: google_ids.of_compute(_disks(settings).values()),
    program=deferred(f"{__name__}.program"),
)
