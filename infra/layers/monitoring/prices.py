"""Prices of a chip hour in each zone of an environment, for the alert on spending."""

from infra.catalog import CATALOG
from infra.settings.schema import Settings
from infra.slices.nodes import nodes, zones


def dollars_per_chip_hour(settings: Settings) -> dict[str, float]:
    """Zone → US dollars; of several ways to pay in one zone the dearest. Zones without a price are left out.

    Reserved chips count as on demand, and so do those that `tpu run` may create in `tpu:zones`.
    """
    ways = {zone: set[bool]() for zone in zones(settings)}
    for node in nodes(settings):
        for zone in node.places:
            ways.setdefault(zone, set()).add(node.spot)
    dollars = {}
    for zone, spot in ways.items():
        price = CATALOG.price(zone)
        chip_price = price.spot if spot == {True} and price.spot is not None else price.on_demand
        if chip_price is not None:
            dollars[zone] = chip_price
    return dict(sorted(dollars.items()))


def unpriced(settings: Settings) -> list[str]:
    """Zones of the environment whose price the catalog lacks."""
    return sorted(set(zones(settings)) - dollars_per_chip_hour(settings).keys())
