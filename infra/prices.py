"""What the layers cost, before anything is created: by the hour, and by use where only that is billed."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from infra import layers
from infra.catalog import CATALOG, SliceType
from infra.catalog.book import BOOK, HOURS_PER_MONTH
from infra.errors import InfraError
from infra.nodes import Node, nodes
from infra.settings import Settings, from_file
from infra.settings.schema import FleetSettings
from infra.settings.sources import ROOT

HOURS_PER_DAY = 24
UNKNOWN = "unknown"
UNCHECKED = "~"
NOTE = f"{UNCHECKED} unverified: the price was never read where it holds; docs/prices.md has all prices."


@dataclass(frozen=True)
class Row:
    """What is billed as one: a layer's resource, or equal nodes of one slice in one zone.

    Prices are in US dollars an hour, None where unknown; `source` says where and when they were read, and
    `checked` whether they were at all. `idle`: it is billed, too, while no slice is up and no job runs.
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
    checked: bool = True
    idle: bool = True


@dataclass(frozen=True)
class Rate:
    """What is billed by use alone: US dollars for each `unit`, None where unknown.

    `region`: where, empty for a price that holds everywhere.
    """

    what: str
    region: str
    dollars: float | None
    unit: str
    source: str
    checked: bool


@dataclass(frozen=True)
class Cost:
    """What rows cost together, US dollars an hour; None where a price is unknown.

    `idle_hourly`: of what is billed while no slice is up and no job runs. `checked`: all prices were read.
    """

    hourly: float | None
    idle_hourly: float | None
    checked: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """An hour, a day, a month, and a month idle, for a table."""
        return (
            *(
                dollars(self.hourly, hours, checked=self.checked)
                for hours in (1, HOURS_PER_DAY, HOURS_PER_MONTH)
            ),
            dollars(self.idle_hourly, HOURS_PER_MONTH, checked=self.checked),
        )

    def as_json(self) -> dict[str, float | bool | None]:
        """For programs."""

        def times(hourly: float | None, hours: int) -> float | None:
            return None if hourly is None else hourly * hours

        return {
            "hourly": self.hourly,
            "daily": times(self.hourly, HOURS_PER_DAY),
            "monthly": times(self.hourly, HOURS_PER_MONTH),
            "idle_monthly": times(self.idle_hourly, HOURS_PER_MONTH),
            "prices_checked": self.checked,
        }


def cost(found: Sequence[Row]) -> Cost:
    """What they cost together."""
    return Cost(
        total([row.hourly for row in found]),
        total([row.hourly for row in found if row.idle]),
        all(row.checked for row in found if row.hourly is not None),
    )


def row(what: str, region: str, *parts: tuple[str, float], zone: str = "", idle: bool = True) -> Row:
    """One row of entries of the price book, each with how much of it there is, e.g. ("disk.pd-ssd", 200)."""
    hourly: list[float | None] = []
    sources: list[str] = []
    checked = True
    for id_, quantity in parts:
        entry = BOOK.get(id_)
        price = entry.price(region) if entry else None
        if entry is None or price is None or price.dollars is None or entry.hours is None:
            hourly.append(None)
            sources.append(f"No price of {entry.what if entry else id_} in {region} is known.")
            continue
        hourly.append(quantity * price.dollars / entry.hours)
        sources.append(f"{entry.service}: {price.source}.")
        checked = checked and price.checked
    source = " ".join(dict.fromkeys(sources))
    return Row(what, total(hourly), source, zone=zone or region, checked=checked, idle=idle)


def rate(id_: str, region: str) -> Rate:
    """An entry of the price book that is billed by use."""
    entry = BOOK[id_]
    price = entry.price(region)
    what = f"{entry.service}: {entry.what}"
    where = region if entry.everywhere is None else ""
    return Rate(what, where, price.dollars, entry.unit, str(price.source), price.checked)


def rates(settings: Settings) -> list[Rate]:
    """What all layers that are on bill by use, each once."""
    return list(dict.fromkeys(one for layer in layers.on(settings) for one in layer.rates(settings)))


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
    found = rows([at_dearest(one) for one in nodes(settings)])
    # Slices of other layers stay where they are, at their dearest: with all nodes that may come.
    others = (layer for layer in layers.on(settings) if layer.name != "tpu")
    found += [row for layer in others for row in layer.prices(settings) if row.chips]
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


def at_dearest(node: Node) -> Node:
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
    what: str,
    named: tuple[str, ...],
    kind: SliceType,
    zone: str,
    *,
    paid: str,
    each: float | None,
    idle: bool = False,
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
        idle=idle,
    )


def show(environment: str, root: Path = ROOT, *, as_json: bool) -> int:
    """Print the prices of an environment's layers. Raises SettingsError."""
    settings = from_file(environment, root)
    found, by_use = of(settings), rates(settings)
    if as_json:
        dated = {"read": str(CATALOG.prices_read), "source": CATALOG.prices_source}
        rows_ = [asdict(one) for one in found]
        print(
            json.dumps({**dated, **cost(found).as_json(), "rows": rows_, "rates": list(map(asdict, by_use))})
        )
    else:
        print("\n".join([table(found), *(["", rates_table(by_use)] if by_use else [])]))
    return 0


_HEAD = ("what", "nodes", "type", "zone", "chips", "paid", "$/hour", "$/day", "$/month", "on demand $/hour")


def table(found: Sequence[Row]) -> str:
    """The rows and their sum for people, with the dates of the prices."""
    if not found:
        return "No slices, nor anything else that is billed by the hour."
    lines = [_HEAD, *map(_cells, found), _sum(found)]
    marked = [NOTE] if any(not one.checked for one in found) else []
    return "\n".join([*_aligned(lines), *dict.fromkeys(one.source for one in found), *marked])


def rates_table(found: Sequence[Rate]) -> str:
    """What is billed by use alone, for people."""
    lines = [
        ("billed by use", "$", "per", "in"),
        *((one.what, _small(one.dollars, checked=one.checked), one.unit, one.region) for one in found),
    ]
    return "\n".join(_aligned(lines))


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def total(prices: Sequence[float | None]) -> float | None:
    """Their sum; None where one is unknown."""
    return None if None in prices else sum(price for price in prices if price is not None)


def _cells(one: Row) -> tuple[str, ...]:
    return (
        one.what,
        _some(len(one.nodes)),
        one.kind,
        one.zone,
        _some(one.chips),
        one.paid if one.chips else "",
        *cost([one]).cells[:3],
        dollars(one.on_demand_hourly if one.chips else one.hourly, checked=one.checked),
    )


def _sum(found: Sequence[Row]) -> tuple[str, ...]:
    nodes_, chips = sum(len(one.nodes) for one in found), sum(one.chips for one in found)
    on_demand = total([one.on_demand_hourly if one.chips else one.hourly for one in found])
    together = cost(found)
    last = dollars(on_demand, checked=together.checked)
    return ("sum", _some(nodes_), "", "", _some(chips), "", *together.cells[:3], last)


def _some(number: int) -> str:
    return str(number) if number else ""


def dollars(hourly: float | None, hours: float = 1, *, checked: bool = True) -> str:
    """ "1,234.50", "~1,234.50" where the price was never read, or "unknown"."""
    mark = "" if checked or not hourly else UNCHECKED
    return UNKNOWN if hourly is None else f"{mark}{hourly * hours:,.2f}"


def _small(price: float | None, *, checked: bool) -> str:
    """A price with all its digits: many are below a cent."""
    return UNKNOWN if price is None else f"{'' if checked else UNCHECKED}{price:.9f}".rstrip("0").rstrip(".")
