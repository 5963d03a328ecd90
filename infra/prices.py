"""What the layers cost by the hour, before anything is created."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from infra import layers
from infra.catalog import CATALOG, SliceType
from infra.errors import InfraError
from infra.nodes import Node, nodes
from infra.settings import Settings, from_file
from infra.settings.schema import FleetSettings
from infra.settings.sources import ROOT

HOURS_PER_DAY = 24
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Row:
    """What is billed as one: a layer's resource, or equal nodes of one slice in one zone.

    Prices are in US dollars an hour, None where unknown; `source` says where and when they were read.
    """

    what: str
    hourly: float | None
    source: str
    nodes: tuple[str, ...] = ()
    kind: str = ""
    zone: str = ""
    chips: int = 0
    paid: str = "on demand"
    on_demand_hourly: float | None = None


def of(settings: Settings) -> list[Row]:
    """What all layers that are on in an environment cost."""
    return [row for layer in layers.on(settings) for row in layer.prices(settings)]


def rows(meant: Sequence[Node]) -> list[Row]:
    """One row for each slice and zone, in their order."""
    alike: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in meant:
        alike[node.slice, node.zone].append(node)
    return [_row(same) for same in alike.values()]


def within_budget(settings: Settings) -> float | None:
    """What all slices cost an hour by the catalog, wherever they are moved; None where a price isn't known.

    Raises:
        InfraError: more than `fleet:dollarsPerHour`, which then can't be held against prices nobody knows.
    """
    found = rows([_dearest(one) for one in nodes(settings)])
    # Slices of other layers stay where they are, at their dearest: with all nodes that may come.
    found += [row for row in of(settings) if row.chips and row.what not in {one.what for one in found}]
    hourly = [row.hourly for row in found]
    if settings[FleetSettings].dollars_per_hour is not None and None in hourly:
        unknown = ", ".join(sorted({f"{row.what} in {row.zone}" for row in found if row.hourly is None}))
        fix = "take fleet:dollarsPerHour out, or these slices"
        raise InfraError(f"no known price of {unknown}: no budget can hold it\n    fix: {fix}")
    known = sum(price for price in hourly if price is not None)
    most = settings[FleetSettings].dollars_per_hour
    if most is not None and known > most:
        fix = "fewer slices, or a larger fleet:dollarsPerHour"
        raise InfraError(f"${known:,.2f} an hour, fleet:dollarsPerHour allows ${most:,}\n    fix: {fix}")
    return None if None in hourly else known


def _dearest(node: Node) -> Node:
    """A node in that of its zones where it costs most; one of unknown price, if there is any."""

    def price(zone: str) -> float:
        each = CATALOG.price(zone)
        dollars = each.spot if node.spot else each.on_demand
        return math.inf if dollars is None else dollars

    return replace(node, zone=max(node.places, key=price))


def _row(same: Sequence[Node]) -> Row:
    node = same[0]
    price = CATALOG.price(node.zone)
    chips = node.kind.chips
    paid, each = "on demand", price.on_demand
    if node.spot:
        paid, each = "spot", price.spot
    elif node.reserved:
        paid, each = "reserved", None  # a contract's price, which no catalog knows
    hourly = None if each is None else chips * each
    return of_chips(
        node.slice, tuple(node.name for node in same), node.kind, node.zone, paid=paid, each=hourly
    )


def of_chips(
    what: str, named: tuple[str, ...], kind: SliceType, zone: str, *, paid: str, each: float | None
) -> Row:
    """Equal slices in one zone; `each`: what one of them costs an hour, None where unknown."""
    on_demand, chips = CATALOG.price(zone).on_demand, len(named) * kind.chips
    return Row(
        what=what,
        nodes=named,
        kind=kind.name,
        zone=zone,
        chips=chips,
        paid=paid,
        hourly=None if each is None else len(named) * each,
        source=f"Prices of v6e chips, read {CATALOG.prices_read}: {CATALOG.prices_source}. Spot prices move.",
        on_demand_hourly=None if on_demand is None else chips * on_demand,
    )


def show(environment: str, root: Path = ROOT, *, as_json: bool) -> int:
    """Print the prices of an environment's layers. Raises SettingsError."""
    found = of(from_file(environment, root))
    dated = {"read": str(CATALOG.prices_read), "source": CATALOG.prices_source}
    print(json.dumps({**dated, "rows": [asdict(row) for row in found]}) if as_json else table(found))
    return 0


def table(found: Sequence[Row]) -> str:
    """The rows and their sum for people, with the date of the prices."""
    head = ("what", "nodes", "type", "zone", "chips", "paid", "$/hour", "$/day", "on demand $/hour")
    if not found:
        return "No slices, nor anything else that is billed by the hour."
    lines = [
        head,
        *(
            (
                row.what,
                _some(len(row.nodes)),
                row.kind,
                row.zone,
                _some(row.chips),
                row.paid,
                dollars(row.hourly),
                dollars(row.hourly, HOURS_PER_DAY),
                dollars(row.on_demand_hourly if row.chips else row.hourly),
            )
            for row in found
        ),
        _sum(found),
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join(
        [
            *text,
            *dict.fromkeys(row.source for row in found),
            "Disks, storage and traffic are billed beside them.",
        ]
    )


def total(prices: Sequence[float | None]) -> float | None:
    """Their sum; None where one is unknown."""
    return None if None in prices else sum(price for price in prices if price is not None)


def _sum(found: Sequence[Row]) -> tuple[str, ...]:
    paid = total([row.hourly for row in found])
    nodes_, chips = sum(len(row.nodes) for row in found), sum(row.chips for row in found)
    on_demand = total([row.on_demand_hourly if row.chips else row.hourly for row in found])
    return (
        "sum",
        _some(nodes_),
        "",
        "",
        _some(chips),
        "",
        dollars(paid),
        dollars(paid, HOURS_PER_DAY),
        dollars(on_demand),
    )


def _some(number: int) -> str:
    return str(number) if number else ""


def dollars(hourly: float | None, hours: int = 1) -> str:
    """ "1,234.50", or "unknown"."""
    return UNKNOWN if hourly is None else f"{hourly * hours:,.2f}"
