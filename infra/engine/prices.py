"""Prices of an environment's layers: by the hour, and by use where only that is billed."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from infra.catalog import CATALOG
from infra.core.environment import layers_on, require_on
from infra.core.layer import Layer
from infra.engine.settings import from_file
from infra.errors import InputError
from infra.prices.row import PriceRow, Rate, cost
from infra.prices.table import layers_table, rates_table, table
from infra.settings.schema import FleetSettings, Settings
from infra.settings.sources import ROOT
from infra.slices.price import at_most


class BudgetError(InputError):
    """All slices together exceed `fleet:dollarsPerHour`, or may exceed it."""


def rates(settings: Settings, only: Collection[str] = ()) -> list[Rate]:
    """Return the prices by use of layers that are on, `only` some if given, without repetitions."""
    return list(dict.fromkeys(rate for layer in _on(settings, only) for rate in layer.rates(settings)))


def of(settings: Settings, only: Collection[str] = ()) -> list[PriceRow]:
    """Return the price rows of layers that are on, `only` some if given."""
    return [replace(row, layer=layer.name) for layer in _on(settings, only) for row in layer.prices(settings)]


def _on(settings: Settings, only: Collection[str]) -> list[Layer]:
    return [layer for layer in layers_on(settings) if not only or layer.name in only]


def within_budget(settings: Settings) -> float | None:
    """Return the hourly price of all slices at their dearest zones; None where a price isn't known.

    Raises:
        BudgetError: more than `fleet:dollarsPerHour`, or an unknown price beside that limit.
    """
    billed = at_most(settings)
    hourly = [row.hourly for row in billed]
    if settings[FleetSettings].dollars_per_hour is not None and None in hourly:
        unknown = ", ".join(sorted({f"{row.what} in {row.zone}" for row in billed if row.hourly is None}))
        fix = "take fleet:dollarsPerHour out, or these slices"
        raise BudgetError(f"no known price of {unknown}: no budget can hold it\n    fix: {fix}")
    known = sum(price for price in hourly if price is not None)
    most = settings[FleetSettings].dollars_per_hour
    if most is not None and known > most:
        fix = "fewer slices, or a larger fleet:dollarsPerHour"
        raise BudgetError(f"${known:,.2f} an hour, fleet:dollarsPerHour allows ${most:,}\n    fix: {fix}")
    return None if None in hourly else known


def show(environment: str, root: Path = ROOT, only: Sequence[str] = (), *, as_json: bool) -> int:
    """Print the prices of an environment's layers, `only` some if given. Raises InfraError."""
    settings = from_file(environment, root)
    require_on(settings, only)
    by_hour, by_use = of(settings, only), rates(settings, only)
    names = [layer.name for layer in _on(settings, only)]
    costs = {name: cost([row for row in by_hour if row.layer == name]) for name in names}
    if as_json:
        dated = {"read": str(CATALOG.prices_read), "source": CATALOG.prices_source}
        rows_ = [asdict(row) for row in by_hour]
        print(
            json.dumps(
                {
                    **dated,
                    **cost(by_hour).as_json(),
                    "layers": {name: layer.as_json() for name, layer in costs.items()},
                    "rows": rows_,
                    "rates": list(map(asdict, by_use)),
                }
            )
        )
    else:
        parts = [table(by_hour), *([layers_table(costs)] if len(costs) > 1 else [])]
        print("\n\n".join([*parts, *([rates_table(by_use)] if by_use else [])]))
    return 0
