"""Network layer: a network with large packets, a subnet per region, and firewall rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from infra.core.layer import Layer, deferred
from infra.core.providers import GOOGLE
from infra.google.ids import of_compute
from infra.google.role import Role
from infra.layers.network import names as network_names
from infra.layers.network.names import IAP_RANGE, subnet_id
from infra.layers.network.outputs import NetworkOutputs
from infra.layers.network.rules import RULES
from infra.layers.network.settings import NetworkSettings
from infra.prices.row import PriceRow, Rate, rate, row
from infra.settings.schema import Settings
from infra.slices import nodes
from views.counts import counted

_MOST_BILLED = 32  # machines of a gateway; more cost no more: https://cloud.google.com/nat/pricing


def _services(settings: Settings) -> Iterator[str]:
    yield "compute.googleapis.com"
    if IAP_RANGE in settings[NetworkSettings].ssh_source_ranges:
        yield "iap.googleapis.com"


def _at_google(settings: Settings) -> dict[str, str]:
    if settings[NetworkSettings].existing_network:
        return {}
    subnets = (subnet_id(settings, region) for region in nodes.regions(settings))
    return of_compute([network_names.network_id(settings), *subnets])


def _prices(settings: Settings) -> Iterable[PriceRow]:
    if not settings[NetworkSettings].cloud_nat or settings[NetworkSettings].existing_network:
        return
    hosts: Counter[str] = Counter()
    for node in nodes.nodes(settings):
        hosts[node.region] += node.kind.hosts
    for region, count in sorted(hosts.items()):
        parts = (("nat.host", min(count, _MOST_BILLED)), ("address", 1))
        yield row(f"Cloud NAT, {counted(count, 'host')}", region, *parts, idle=False)


def _rates(settings: Settings) -> Iterable[Rate]:
    used = ["traffic.zones"]
    if not settings[NetworkSettings].existing_network:
        used.append("logging.network")
        used += ["nat.data", "traffic.internet"] if settings[NetworkSettings].cloud_nat else []
    return [rate(id_, region) for region in nodes.regions(settings) for id_ in used]


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
    prices=_prices,
    rates=_rates,
    at_google=_at_google,
    program=deferred(f"{__package__}.program"),
)
