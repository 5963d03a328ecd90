"""Rows and rates of a price table, from the price book."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infra.catalog.book import BOOK, HOURS_PER_MONTH

HOURS_PER_DAY = 24


UNKNOWN = "unknown"


UNCHECKED = "~"


NOTE = f"{UNCHECKED} unverified: the price was never read where it holds; docs/reference/prices.md lists all."


@dataclass(frozen=True)
class PriceRow:
    """Item of the bill: a layer's resource, or equal nodes of one slice in one zone.

    Prices are in US dollars an hour, None where unknown; `source` says where and when they were read, and
    `checked` whether they were at all. `idle`: it is billed, too, while no slice is up and no job runs.
    `layer`: whose it is, in a table of several.
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
    layer: str = ""


@dataclass(frozen=True)
class Rate:
    """Price by use alone: US dollars for each `unit`, None where unknown.

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
    """Cost of several rows, US dollars an hour; None where a price is unknown.

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
        """Convert to JSON types."""

        def times(hourly: float | None, hours: int) -> float | None:
            return None if hourly is None else hourly * hours

        return {
            "hourly": self.hourly,
            "daily": times(self.hourly, HOURS_PER_DAY),
            "monthly": times(self.hourly, HOURS_PER_MONTH),
            "idle_monthly": times(self.idle_hourly, HOURS_PER_MONTH),
            "prices_checked": self.checked,
        }


def cost(rows: Sequence[PriceRow]) -> Cost:
    """Sum up rows."""
    return Cost(
        total([row.hourly for row in rows]),
        total([row.hourly for row in rows if row.idle]),
        all(row.checked for row in rows if row.hourly is not None),
    )


def row(what: str, region: str, *parts: tuple[str, float], zone: str = "", idle: bool = True) -> PriceRow:
    """Make a row of entries of the price book, each with its quantity, e.g. ("disk.pd-ssd", 200)."""
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
    return PriceRow(what, total(hourly), source, zone=zone or region, checked=checked, idle=idle)


def rate(id_: str, region: str) -> Rate:
    """Make a rate of an entry of the price book that is billed by use."""
    entry = BOOK[id_]
    price = entry.price(region)
    what = f"{entry.service}: {entry.what}"
    where = region if entry.everywhere is None else ""
    return Rate(what, where, price.dollars, entry.unit, str(price.source), price.checked)


def total(prices: Sequence[float | None]) -> float | None:
    """Return the sum; None where a price is unknown."""
    return None if None in prices else sum(price for price in prices if price is not None)


def dollars(hourly: float | None, hours: float = 1, *, checked: bool = True) -> str:
    """ "1,234.50", "~1,234.50" where the price was never read, or "unknown"."""
    mark = "" if checked or not hourly else UNCHECKED
    return UNKNOWN if hourly is None else f"{mark}{hourly * hours:,.2f}"


def _small(price: float | None, *, checked: bool) -> str:
    """Format a price with all its digits: many are below a cent."""
    return UNKNOWN if price is None else f"{'' if checked else UNCHECKED}{price:.9f}".rstrip("0").rstrip(".")
