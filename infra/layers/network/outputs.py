"""Outputs of the network layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.core.outputs import Outputs, output
from infra.layers.network import names as network_names
from infra.layers.network.names import subnet_id
from infra.layers.network.settings import NetworkSettings
from infra.settings.schema import Settings
from infra.slices import nodes

if TYPE_CHECKING:
    from pulumi import Output


class NetworkOutputs(Outputs, layer="network"):
    """The network, for resources in it."""

    network_id: Output[str] = output("`projects/P/global/networks/N`")
    subnet_ids: Mapping[str, Output[str]] = output("`projects/P/regions/R/subnetworks/S`", key="region")
    mtu: Output[int] = output("8896")

    @staticmethod
    def planned(settings: Settings) -> Mapping[str, Any]:
        """Return the outputs that the settings determine, for previews of layers that read them."""
        return {
            "network_id": network_names.network_id(settings),
            "subnet_ids": {region: subnet_id(settings, region) for region in nodes.regions(settings)},
            "mtu": settings[NetworkSettings].mtu,
        }
