"""The price book: `prices.toml`, and the prices of v6e chips out of the catalog."""

from __future__ import annotations

import calendar
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib import resources
from typing import Any

from infra.catalog import CATALOG, Catalog
from infra.errors import InfraError, Problem, listed

HOURS_PER_MONTH = 730  # as Google's pages convert: 365 days, 24 hours, 12 months
STALE_DAYS = 90
_HOURS = {"hour": 1, "month": HOURS_PER_MONTH}
_READ = re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?")
_KEYS = {"service", "what", "unit", "source", "checked"}
_OPTIONAL = {"everywhere", "regions", "likewise"}


class BookError(InfraError):
    """Problems of the price book."""


@dataclass(frozen=True)
class Source:
    """Source of prices: Google's page, the copy that was read, and the day; empty: not read yet."""

    page: str
    copy: str = ""
    read: str = ""

    @property
    def since(self) -> date | None:
        """The first day on which it may have been read ("2026-08": August 1st); None: not read yet."""
        match = _READ.fullmatch(self.read)
        return date(int(match[1]), int(match[2]), int(match[3] or 1)) if match else None

    def __str__(self) -> str:
        if not self.read:
            return f"{self.page}, not read yet"
        return f"{self.page}, read {self.read}{f' in {self.copy}' if self.copy else ''}"


@dataclass(frozen=True)
class Price:
    """US dollars a unit; None where unknown. `checked`: whether it was read where it holds."""

    dollars: float | None
    checked: bool
    source: Source


@dataclass(frozen=True)
class Entry:
    """Item of the price list.

    Attributes:
        id: what the code names it by, e.g. "disk.pd-balanced".
        unit: what the price is of, e.g. "GiB-month".
        everywhere: dollars, where no region differs.
        regions: dollars by region.
        likewise: regions that take the first region's price, unchecked.
    """

    id: str
    service: str
    what: str
    unit: str
    source: Source
    checked: bool
    everywhere: float | None = None
    regions: Mapping[str, float] = field(default_factory=dict)
    likewise: Sequence[str] = ()

    def price(self, region: str) -> Price:
        """Return its price in a region."""
        if self.everywhere is not None:
            return Price(self.everywhere, self.checked, self.source)
        if region in self.regions:
            return Price(self.regions[region], self.checked, self.source)
        if region in self.likewise:
            return Price(next(iter(self.regions.values())), False, self.source)
        return Price(None, False, self.source)

    @property
    def known(self) -> bool:
        """True if it has a price anywhere."""
        return self.everywhere is not None or bool(self.regions)

    @property
    def hours(self) -> int | None:
        """Hours in the time of its unit, e.g. 730 of "GiB-month"; None where it is billed by use alone."""
        return _HOURS.get(self.unit.rpartition("-")[2])


@dataclass(frozen=True)
class PriceBook:
    """Entries by id."""

    entries: Mapping[str, Entry]

    def __getitem__(self, id_: str) -> Entry:
        return self.entries[id_]

    def get(self, id_: str) -> Entry | None:
        """Return the entry, or None."""
        return self.entries.get(id_)

    def stale(self, today: date) -> list[Entry]:
        """Entries that were read more than 90 days ago, or may have been."""
        return [
            entry
            for entry in self.entries.values()
            if (since := entry.source.since) and (today - since).days > STALE_DAYS
        ]

    def unchecked(self) -> list[Entry]:
        """Entries with a price that was never read."""
        return [entry for entry in self.entries.values() if entry.known and not entry.checked]

    def summary(self, today: date) -> str:
        """Return a line on how many prices were read."""
        parts = [f"{len(self.entries)} prices"]
        if stale := self.stale(today):
            oldest = min(entry.source.read for entry in stale)
            parts.append(f"{len(stale)} read more than {STALE_DAYS} days ago (first {oldest})")
        if unchecked := self.unchecked():
            parts.append(f"{len(unchecked)} unverified")
        if unknown := [entry for entry in self.entries.values() if not entry.known]:
            parts.append(f"{len(unknown)} unknown")
        return ", ".join(parts)


def load(text: str, catalog: Catalog) -> PriceBook:
    """Parse the book of a TOML text, with the catalog's chip prices. Raises BookError with all problems."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BookError(f"infra/catalog/prices.toml isn't TOML: {error}") from None
    sources: dict[str, Any] = given.get("sources", {})
    entries: dict[str, Any] = given.get("entries", {})
    problems = [
        *(
            problem
            for name, source in sources.items()
            for problem in _wrong_source(f"sources.{name}", source)
        ),
        *(problem for name, entry in entries.items() for problem in _wrong_entry(name, entry, sources)),
    ]
    if problems:
        raise BookError(listed("infra/catalog/prices.toml", problems))
    read = {name: Source(**source) for name, source in sources.items()}
    parsed = {
        name: Entry(id=name, **{**entry, "source": read[entry["source"]]}) for name, entry in entries.items()
    }
    return PriceBook({**{entry.id: entry for entry in _chips(catalog)}, **parsed})


def _chips(catalog: Catalog) -> Iterator[Entry]:
    source = Source(catalog.prices_source, read=catalog.prices_read)
    for id_, what, key in (
        ("tpu.on-demand", "v6e chip, on demand", "on_demand"),
        ("tpu.spot", "v6e chip, spot; moves within a month", "spot"),
        ("tpu.flex-start", "v6e chip, flex-start", "flex_start"),
    ):
        prices = {region: getattr(price, key) for region, price in catalog.prices.items()}
        regions = {region: dollars for region, dollars in prices.items() if dollars is not None}
        yield Entry(id_, "Cloud TPU", what, "chip-hour", source, True, regions=regions)


def _wrong_source(path: str, source: Mapping[str, str]) -> Iterator[Problem]:
    if unknown := sorted(set(source) - {"page", "copy", "read"}):
        yield Problem(path, ", ".join(unknown), "a source has page, copy and read", "take it out")
    if not source.get("page"):
        yield Problem(f"{path}.page", "nothing", "a source names Google's page", "write its address")
    read = source.get("read", "")
    if read and not _is_day(read):
        yield Problem(f"{path}.read", f'"{read}"', "a month or a day that there is", "write YYYY-MM-DD")


def _is_day(text: str) -> bool:
    match = _READ.fullmatch(text)
    if not match or not 1 <= int(match[2]) <= len(calendar.month_name) - 1:
        return False
    return int(match[3] or 1) in range(1, calendar.monthrange(int(match[1]), int(match[2]))[1] + 1)


def _wrong_entry(id_: str, entry: Mapping[str, Any], sources: Mapping[str, Any]) -> Iterator[Problem]:
    path = f"entries.{id_}"
    if missing := sorted(_KEYS - set(entry)):
        yield Problem(path, f"no {', '.join(missing)}", "an entry has all of them", "write them")
        return
    if unknown := sorted(set(entry) - _KEYS - _OPTIONAL):
        yield Problem(path, ", ".join(unknown), "an entry has no such key", "take it out")
    if entry["source"] not in sources:
        yield Problem(f"{path}.source", f'"{entry["source"]}"', "one of [sources]", "add it there")
    priced = "everywhere" in entry or bool(entry.get("regions"))
    prices = {"everywhere": entry.get("everywhere", 1.0), **entry.get("regions", {})}
    for key, dollars in prices.items():
        if isinstance(dollars, bool) or not isinstance(dollars, int | float) or dollars <= 0:
            yield Problem(
                f"{path}.{key}", f"{dollars!r}", "a price is above zero", "leave an unknown one out"
            )
    if "everywhere" in entry and "regions" in entry:
        yield Problem(path, "everywhere and regions", "a price holds everywhere or by region", "take one out")
    if entry.get("likewise") and not entry.get("regions"):
        yield Problem(
            f"{path}.likewise", "no regions", "it repeats the first region's price", "write regions"
        )
    if entry["checked"] and not (priced and sources.get(entry["source"], {}).get("read")):
        yield Problem(
            f"{path}.checked", "true", "who has read a price says where and when",
            "write read in its source, or checked = false",
        )  # fmt: skip


BOOK = load(resources.files("infra.catalog").joinpath("prices.toml").read_text(encoding="utf-8"), CATALOG)
