"""Outputs of the data layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.core.outputs import Outputs, output
from infra.layers.data.names import disk_id
from infra.settings.schema import Settings
from infra.slices import nodes

if TYPE_CHECKING:
    from pulumi import Output


class DataOutputs(Outputs):
    """What hosts that read the data need of it."""

    disk_ids: Mapping[str, Output[str]] = output("`projects/P/zones/Z/disks/D`", key="zone")


def _disks(settings: Settings) -> dict[str, str]:
    found = {zone: disk_id(settings, zone) for zone in nodes.zones(settings)}
    return {zone: disk for zone, disk in found.items() if disk}


def planned(settings: Settings) -> dict[str, Any]:
    """Return the outputs that the settings determine, for previews of layers that read them."""
    return {"disk_ids": _disks(settings)}
