"""Facts about Cloud TPU v6e as typed values: `workload/v6e.toml`, which preflight reads too."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from math import prod
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class SliceType:
    """Size of a slice: name, grid of chips ("4x4"), and number of machines."""

    name: str
    topology: str
    hosts: int

    @property
    def chips(self) -> int:
        """Number of chips: the product of the topology."""
        return chips_of(self.topology)

    @property
    def chips_per_host(self) -> int:
        """Number of chips in each machine."""
        return self.chips // self.hosts


@dataclass(frozen=True)
class DiskLimits:
    """Limits of Hyperdisk ML."""

    min_size_gib: int
    max_size_gib: int
    min_throughput_mibps: int
    max_throughput_mibps: int
    min_throughput_mibps_per_gib: float
    max_throughput_mibps_per_gib: float
    max_readers: int
    readers_at_any_throughput: int  # with more, each of them needs:
    min_throughput_mibps_per_reader: int


@dataclass(frozen=True)
class Prices:
    """US dollars an hour and chip; None where the price wasn't read."""

    on_demand: float | None = None
    spot: float | None = None
    flex_start: float | None = None


@dataclass(frozen=True)
class Catalog:
    """Facts about v6e, with their sources and dates."""

    chips_per_host: int
    pod_chips: int
    types: tuple[SliceType, ...]
    zones: tuple[str, ...]
    zones_read: str
    default_runtime: str
    refused_runtimes: tuple[str, ...]
    data_disk: DiskLimits
    prices: Mapping[str, Prices]
    prices_source: str
    prices_read: str

    def by_name(self, name: str) -> SliceType | None:
        """Return the type called `name` ("v6e-16"), or None."""
        return next((kind for kind in self.types if kind.name == name), None)

    def by_topology(self, topology: str) -> SliceType | None:
        """Return the type with the grid `topology` ("4x4"), or None."""
        return next((kind for kind in self.types if kind.topology == topology), None)

    def price(self, zone: str) -> Prices:
        """Return the prices of a zone's region; unknown ones are None."""
        return self.prices.get(region_of(zone), Prices())


def chips_of(topology: str) -> int:
    """Chips in a grid: "4x8" is 32. Raises ValueError where it isn't numbers joined by x."""
    return prod(int(side) for side in topology.split("x"))


def region_of(zone: str) -> str:
    """Return the region of a zone: "us-east5-b" is in "us-east5"."""
    return zone.rpartition("-")[0]


def load(text: str) -> Catalog:
    """Parse the catalog of a TOML text."""
    facts: dict[str, Any] = tomllib.loads(text)
    limits = {key: value for key, value in facts["data_disk"].items() if key not in ("source", "read")}
    return Catalog(
        chips_per_host=facts["chip"]["chips_per_host"],
        pod_chips=facts["chip"]["pod_chips"],
        types=tuple(SliceType(**kind) for kind in facts["types"]),
        zones=tuple(facts["zones"]["names"]),
        zones_read=facts["zones"]["read"],
        default_runtime=facts["runtimes"]["default"],
        refused_runtimes=tuple(facts["runtimes"]["refused"]),
        data_disk=DiskLimits(**limits),
        prices=MappingProxyType({r: Prices(**p) for r, p in facts["prices"]["regions"].items()}),
        prices_source=facts["prices"]["source"],
        prices_read=facts["prices"]["read"],
    )


CATALOG = load(resources.files("workload").joinpath("v6e.toml").read_text(encoding="utf-8"))


def summary() -> str:
    """Return a line on the known facts and their dates."""
    return (
        f"{len(CATALOG.types)} v6e types, {len(CATALOG.zones)} zones (read {CATALOG.zones_read}), "
        f"prices of {len(CATALOG.prices)} regions (read {CATALOG.prices_read})"
    )
