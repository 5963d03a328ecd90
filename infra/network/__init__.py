"""Network layer: a network with large packets, one subnet per region, and who may reach a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from infra import google_ids, names, nodes
from infra.layers import Layer, deferred
from infra.network.rules import RULES
from infra.network.settings import NetworkSettings
from infra.outputs import Outputs, output
from infra.providers import GOOGLE
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from pulumi import Output


class NetworkOutputs(Outputs):
    """What stands in a network needs of it."""

    network_id: Output[str] = output("`projects/P/global/networks/N`")
    subnet_ids: Mapping[str, Output[str]] = output("`projects/P/regions/R/subnetworks/S`", key="region")
    mtu: Output[int] = output("8896")


def _planned(settings: Settings) -> dict[str, Any]:
    return {
        "network_id": names.network_id(settings),
        "subnet_ids": {region: names.subnet_id(settings, region) for region in nodes.regions(settings)},
        "mtu": settings[NetworkSettings].mtu,
    }


def _services(settings: Settings) -> Iterator[str]:
    yield "compute.googleapis.com"
    if names.IAP_RANGE in settings[NetworkSettings].ssh_source_ranges:
        yield "iap.googleapis.com"


def _at_google(settings: Settings) -> dict[str, str]:
    if settings[NetworkSettings].existing_network:
        return {}
    subnets = (names.subnet_id(settings, region) for region in nodes.regions(settings))
    return google_ids.of_compute([names.network_id(settings), *subnets])


LAYER = Layer(
    name="network",
    reads=("storage",),
    always_on=True,
    settings=NetworkSettings,
    rules=RULES,
    services=_services,
    providers=GOOGLE,
    outputs=NetworkOutputs,
    planned=_planned,
    at_google=_at_google,
    program=deferred(f"{__name__}.program"),
)
