"""Network layer: a network with large packets, one subnet per region, and who may reach a host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from infra import google_ids, names, nodes
from infra.gcp.roles import Role
from infra.layers import Layer, deferred
from infra.network.rules import RULES
from infra.network.settings import NetworkSettings
from infra.outputs import Outputs, output
from infra.providers import GOOGLE
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from pulumi import Output

    from infra.prices import Rate, Row

_MOST_BILLED = 32  # machines of a gateway; more cost no more: https://cloud.google.com/nat/pricing


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


def _prices(settings: Settings) -> Iterable[Row]:
    from infra import prices  # here, because it imports the layers

    if not settings[NetworkSettings].cloud_nat or settings[NetworkSettings].existing_network:
        return
    hosts: Counter[str] = Counter()
    for node in nodes.nodes(settings):
        hosts[node.region] += node.kind.hosts
    for region, count in sorted(hosts.items()):
        parts = (("nat.host", min(count, _MOST_BILLED)), ("address", 1))
        yield prices.row(f"Cloud NAT, {count} hosts", region, *parts, idle=False)


def _rates(settings: Settings) -> Iterable[Rate]:
    from infra import prices

    used = ["traffic.zones"]
    if not settings[NetworkSettings].existing_network:
        used.append("logging.network")
        used += ["nat.data", "traffic.internet"] if settings[NetworkSettings].cloud_nat else []
    return [prices.rate(id_, region) for region in nodes.regions(settings) for id_ in used]


_ROLES = (
    Role(
        "roles/compute.networkAdmin", "create network, subnets, router and NAT",
        ("compute.networks.create", "compute.networks.delete", "compute.networks.get",
         "compute.networks.update", "compute.subnetworks.create", "compute.subnetworks.delete",
         "compute.subnetworks.get",
         "compute.routers.create", "compute.routers.delete", "compute.routers.get", "compute.routers.update"),
    ),
    Role(
        "roles/compute.securityAdmin", "create firewall rules",
        ("compute.firewalls.create", "compute.firewalls.delete", "compute.firewalls.update"),
    ),
)  # fmt: skip

LAYER = Layer(
    name="network",
    reads=("storage",),
    always_on=True,
    settings=NetworkSettings,
    rules=RULES,
    roles=_ROLES,
    services=_services,
    providers=GOOGLE,
    outputs=NetworkOutputs,
    planned=_planned,
    prices=_prices,
    rates=_rates,
    at_google=_at_google,
    program=deferred(f"{__name__}.program"),
)
