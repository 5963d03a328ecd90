"""Data layer: the training data as read-only disks, one per zone in use."""

from __future__ import annotations

from collections.abc import Iterable

from infra.catalog import region_of
from infra.core.layer import Layer, deferred
from infra.core.providers import GOOGLE
from infra.google.ids import of_compute
from infra.google.role import Role
from infra.layers.data.names import disk_ids
from infra.layers.data.outputs import DataOutputs
from infra.layers.data.rules import RULES
from infra.layers.data.settings import DataSettings
from infra.prices.row import PriceRow, row
from infra.settings.schema import Settings


def _prices(settings: Settings) -> Iterable[PriceRow]:
    desired = settings[DataSettings]
    for zone, disk in disk_ids(settings).items():
        name = disk.rpartition("/")[2]
        parts = (
            ("disk.hyperdisk-ml", desired.size_gib),
            ("disk.hyperdisk-ml.throughput", desired.throughput_mibps),
        )
        yield row(name, region_of(zone), *parts, zone=zone)


_ROLES = (
    Role(
        "roles/compute.storageAdmin", "create the disks from the snapshot",
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
    prices=_prices,
    at_google=lambda settings: of_compute(disk_ids(settings).values()),
    program=deferred(f"{__package__}.program"),
)
