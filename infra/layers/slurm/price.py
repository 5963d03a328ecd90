"""Prices: machines with their disks, /home, and the chips of static and of dynamic slices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from google_facts.machines import cpu_family, cpus_of
from infra.catalog import CATALOG
from infra.layers.slurm import names
from infra.layers.slurm.settings import FILESTORE, SlurmSettings
from infra.layers.slurm.slices import Nodeset, SlurmSlice, nodesets
from infra.prices.row import PriceRow, Rate, rate, row
from infra.settings.schema import Settings
from infra.slices.price import of_chips
from infra.slices.settings import TpuSettings

BOOT_GIB = 20


def boot_disk(machine_type: str) -> str:
    """Return the type of a machine's boot disk."""
    family = cpu_family(machine_type)
    return "hyperdisk-balanced" if family and "pd" not in family.disks else "pd-balanced"


def _machine(kind: str, count: int) -> tuple[str, float]:
    """Return the entry of the price book for machines, and its quantity.

    vCPUs and memory are what is billed, and n2-standard has them in one ratio:
    https://cloud.google.com/compute/vm-instance-pricing
    """
    known, cpus = "n2-standard-4", cpus_of(kind)
    if kind == f"n2-standard-{cpus}":
        return f"machine.{known}", count * cpus / cpus_of(known)
    return f"machine.{kind}", count


def rows(settings: Settings) -> Iterator[PriceRow]:
    """Yield the rows billed by the hour; slices that the fleet has records of are rows of the tpu layer's."""
    desired, region, zone = settings[SlurmSettings], names.region(settings), names.zone(settings)
    for what, count, kind in (
        (names.controller(settings), 1, desired.controller_machine_type),
        (f"{desired.login_count} login nodes", desired.login_count, desired.login_machine_type),
    ):
        disk = f"disk.{boot_disk(kind)}"
        yield row(what, region, _machine(kind, count), (disk, count * BOOT_GIB), zone=zone)
    if not desired.existing_state_disk:
        parts = (f"disk.{desired.state_disk_type}", desired.state_disk_gib)
        yield row(names.state_disk(settings), region, parts, zone=zone)
    if desired.home_storage == FILESTORE:
        tier = desired.filestore_tier.lower().replace("_", "-")
        parts = (f"filestore.{tier}", desired.filestore_gib)
        yield row(names.filestore(settings), region, parts, zone=zone)
    yield row("secret of munge's key", region, ("secret", 1))
    recorded = {item.name for item in settings[TpuSettings].slices}
    for nodeset in nodesets(settings):
        for static in (True, False):
            part = nodeset.slices[: nodeset.static] if static else nodeset.slices[nodeset.static :]
            if left := [slice_ for slice_ in part if slice_.name not in recorded]:
                yield _slices(nodeset, left, static=static)


def _slices(nodeset: Nodeset, slices: list[SlurmSlice], *, static: bool) -> PriceRow:
    """Return the row of slices where they cost most; dynamic ones cost nothing while no job runs."""
    desired = nodeset.settings

    def price(zone: str) -> float | None:
        prices = CATALOG.price(zone)
        if desired.reserved:
            return None  # a contract's
        return prices.spot if desired.spot else prices.on_demand

    def dearest(zone: str) -> float:
        known = price(zone)
        return math.inf if known is None else known

    zone = max(nodeset.places, key=dearest)
    chip = price(zone)
    return of_chips(
        f"{nodeset.name}, {'static' if static else 'dynamic at most'}",
        tuple(slice_.name for slice_ in slices),
        nodeset.kind,
        zone,
        paid="reserved" if desired.reserved else "spot" if desired.spot else "on demand",
        hourly=None if chip is None else chip * nodeset.kind.chips,
        idle=static,
    )


def rates(settings: Settings) -> Iterable[Rate]:
    """Return the prices by use."""
    region = names.region(settings)
    return [rate(id_, region) for id_ in ("logging", "traffic.zones")]
