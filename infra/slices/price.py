"""Hourly prices of slices, by zone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from infra.catalog import CATALOG, SliceType
from infra.core.environment import layers_on
from infra.prices.row import PriceRow
from infra.settings.schema import Settings
from infra.slices.nodes import Node, nodes


def at_most(settings: Settings) -> list[PriceRow]:
    """Return the rows of all chips that the settings may rent, each slice in its dearest zone."""
    billed = rows([at_dearest(node) for node in nodes(settings)])
    # Slices of other layers stay where they are, at their dearest: with all nodes that may come.
    fixed = (layer for layer in layers_on(settings) if layer.name != "tpu")
    return billed + [row for layer in fixed for row in layer.prices(settings) if row.chips]


def rows(nodes: Sequence[Node]) -> list[PriceRow]:
    """Return one row for each slice and zone, in their order."""
    alike: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in nodes:
        alike[node.slice, node.zone].append(node)
    return [_row(same) for same in alike.values()]


def at_dearest(node: Node) -> Node:
    """Move a node to its dearest zone; a zone of unknown price counts as dearest."""

    def price(zone: str) -> float:
        prices = CATALOG.price(zone)
        dollars = prices.spot if node.spot else prices.on_demand
        return math.inf if dollars is None else dollars

    return replace(node, zone=max(node.places, key=price))


def _row(same: Sequence[Node]) -> PriceRow:
    node = same[0]
    price = CATALOG.price(node.zone)
    chips = node.kind.chips
    paid, hourly_per_chip = "on demand", price.on_demand
    if node.spot:
        paid, hourly_per_chip = "spot", price.spot
    elif node.reserved:
        paid, hourly_per_chip = "reserved", None  # a contract's price, which no catalog knows
    hourly = None if hourly_per_chip is None else chips * hourly_per_chip
    return of_chips(
        node.slice, tuple(node.name for node in same), node.kind, node.zone, paid=paid, hourly=hourly
    )


def of_chips(
    what: str,
    named: tuple[str, ...],
    kind: SliceType,
    zone: str,
    *,
    paid: str,
    hourly: float | None,
    idle: bool = False,
) -> PriceRow:
    """Make the row of equal slices in one zone; `hourly`: price of one of them, None where unknown."""
    on_demand, chips = CATALOG.price(zone).on_demand, len(named) * kind.chips
    return PriceRow(
        what=what,
        nodes=named,
        kind=kind.name,
        zone=zone,
        chips=chips,
        paid=paid,
        hourly=None if hourly is None else len(named) * hourly,
        source=f"Prices of v6e chips, read {CATALOG.prices_read}: {CATALOG.prices_source}. Spot prices move.",
        on_demand_hourly=None if on_demand is None else chips * on_demand,
        idle=idle,
    )
