"""Names and ids that the data layer owns and other layers read."""

from __future__ import annotations

from infra.core.names import fitted
from infra.layers.data.settings import DataSettings
from infra.settings.schema import Settings
from infra.slices import nodes


def snapshot_id(settings: Settings) -> str | None:
    """Return the full id of the data snapshot, which the settings may abbreviate; None without a snapshot."""
    data = settings.get(DataSettings)
    snapshot = data.snapshot if data else None
    if snapshot is None or "/" in snapshot:
        return snapshot
    return f"projects/{settings.project}/global/snapshots/{snapshot}"


def disk_name(settings: Settings, zone: str) -> str | None:
    """Return the name of a zone's data disk. It has the snapshot's name: new data is a new disk."""
    snapshot = snapshot_id(settings)
    if not snapshot:
        return None
    parts = (settings[DataSettings].disk_prefix, snapshot.rpartition("/")[2], zone)
    return fitted("-".join(filter(None, parts)))


def disk_id(settings: Settings, zone: str) -> str | None:
    """Return the full id of a zone's data disk; None without data."""
    disk = disk_name(settings, zone)
    return disk and f"projects/{settings.project}/zones/{zone}/disks/{disk}"


def disk_ids(settings: Settings) -> dict[str, str]:
    """Return the full id of each zone's data disk, by zone; empty where there is no data."""
    ids = {zone: disk_id(settings, zone) for zone in nodes.zones(settings)}
    return {zone: disk for zone, disk in ids.items() if disk}
