"""Slices of v6e: chips, machines, peaks and prices, from `v6e.toml`."""

import tomllib
from dataclasses import dataclass
from importlib import resources
from math import prod
from typing import Any

from workload.errors import ConfigError, Problem

FACTS: dict[str, Any] = tomllib.loads((resources.files("workload") / "v6e.toml").read_text(encoding="utf-8"))
GIB = 2**30


@dataclass(frozen=True)
class Slices:
    """Slices of a type that work on the same run."""

    name: str
    topology: str
    hosts: int  # of one slice
    count: int = 1

    @property
    def chips(self) -> int:
        """Number of chips in all slices."""
        return self.chips_each * self.count

    @property
    def chips_each(self) -> int:
        """Number of chips in a slice."""
        return prod(int(side) for side in self.topology.split("x"))

    @property
    def host_bounds(self) -> tuple[int, int, int]:
        """Chips of a machine in the compiler's coordinates: 2x2, or the whole single-machine slice."""
        sides = [int(side) for side in self.topology.split("x")] if self.hosts == 1 else [2, 2]
        return sides[0], sides[1], 1

    @property
    def dcn_bytes_per_s(self) -> float:
        """Share of a chip in its host's network to other slices."""
        return CHIP.dcn_bytes_per_s_per_host / (self.chips_each / self.hosts)

    @property
    def title(self) -> str:
        """Name for messages: `v6e-256` or `2 x v6e-256`."""
        return self.name if self.count == 1 else f"{self.count} x {self.name}"


@dataclass(frozen=True)
class Chip:
    """Published peaks of a chip, and the measured speed of its links; `v6e.toml` has the sources."""

    bf16_flops_per_s: float
    hbm_bytes: float
    hbm_bytes_per_s: float
    cycles_per_s: float
    ici_bytes_per_s: float  # sent by a chip over all its links
    ici_measured_bytes_per_s: float
    dcn_bytes_per_s_per_host: float


CHIP = Chip(
    bf16_flops_per_s=FACTS["chip"]["bf16_tflops"] * 1e12,
    hbm_bytes=FACTS["chip"]["hbm_gib"] * GIB,
    hbm_bytes_per_s=FACTS["chip"]["hbm_gb_per_s"] * 1e9,
    cycles_per_s=FACTS["chip"]["clock_ghz"] * 1e9,
    ici_bytes_per_s=FACTS["chip"]["ici_gb_per_s"] * 1e9,
    ici_measured_bytes_per_s=FACTS["chip"]["ici_measured_gb_per_s"] * 1e9,
    dcn_bytes_per_s_per_host=FACTS["chip"]["dcn_gb_per_s_per_host"] * 1e9,
)


def slices(name: str, count: int = 1) -> Slices:
    """Return the slices of `--slice v6e-256 --slices 2`.

    Raises:
        ConfigError: the type is unknown.
    """
    known = {kind["name"]: kind for kind in FACTS["types"]}
    problems = []
    if name not in known:
        rule = "must be a type of v6e slice"
        problems.append(Problem("--slice", name, rule, f"one of {', '.join(known)}"))
    if count < 1:
        problems.append(Problem("--slices", str(count), "must be at least 1", "1, or more for multislice"))
    if problems:
        raise ConfigError("workload preflight", problems)
    return Slices(**known[name], count=count)


def of_a_host(name: str) -> tuple[int, list[Problem]]:
    """Return the chips of a type of slice, and its problem if a slice isn't a single host."""
    known = {kind["name"]: Slices(**kind).chips for kind in FACTS["types"] if kind["hosts"] == 1}
    if name in known:
        return known[name], []
    rule = "must be a type of a single host: a host works alone, on its own chips"
    return 0, [Problem("--slice", name, rule, f"one of {', '.join(known)}")]


@dataclass(frozen=True)
class Price:
    """US dollars per chip and hour in a region; None if unknown."""

    region: str
    on_demand: float | None
    spot: float | None


def price(region: str) -> Price:
    """Return the price in a region.

    Raises:
        ConfigError: the price is unknown.
    """
    regions = FACTS["prices"]["regions"]
    if region not in regions:
        rule = "must be a region whose price is known"
        raise ConfigError(
            "workload preflight", [Problem("--region", region, rule, f"one of {', '.join(regions)}")]
        )
    return Price(region, regions[region].get("on_demand"), regions[region].get("spot"))


PRICES_READ: str = FACTS["prices"]["read"]
