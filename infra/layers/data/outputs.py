"""Outputs of the data layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.core.outputs import Outputs, output
from infra.layers.data.names import disk_ids
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from pulumi import Output


class DataOutputs(Outputs, layer="data"):
    """The data disks, for hosts that read them."""

    disk_ids: Mapping[str, Output[str]] = output("`projects/P/zones/Z/disks/D`", key="zone")

    @staticmethod
    def planned(settings: Settings) -> Mapping[str, Any]:
        """Return the outputs that the settings determine, for previews of layers that read them."""
        return {"disk_ids": disk_ids(settings)}
