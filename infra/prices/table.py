"""Price tables as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infra.prices.row import NOTE, Cost, PriceRow, Rate, _small, cost, dollars, total
from views.table import aligned

_HEAD = ("what", "nodes", "type", "zone", "chips", "paid", "$/hour", "$/day", "$/month", "on demand $/hour")


def table(rows: Sequence[PriceRow]) -> str:
    """Format rows and their sum, with the dates of the prices; of several layers with a column for them."""
    if not rows:
        return "No slices, nor anything else that is billed by the hour."
    lines = [_HEAD, *map(_cells, rows), _sum(rows)]
    layers = [row.layer for row in rows]
    if len({*layers}) > 1:
        names = ["layer", *layers, ""]
        lines = [(what, name, *cells) for name, (what, *cells) in zip(names, lines, strict=True)]
    marked = [NOTE] if any(not row.checked for row in rows) else []
    return "\n".join([*aligned(lines), *dict.fromkeys(row.source for row in rows), *marked])


def layers_table(costs: Mapping[str, Cost]) -> str:
    """Format what each layer costs by the hour; idle: no slice is up and no job runs."""
    head = ("layer", "$/hour", "$/day", "$/month", "idle $/month")
    return "\n".join(aligned([head, *((name, *layer.cells) for name, layer in costs.items())]))


def rates_table(rates: Sequence[Rate]) -> str:
    """Format the prices by use."""
    lines = [
        ("billed by use", "$", "per", "in"),
        *((rate.what, _small(rate.dollars, checked=rate.checked), rate.unit, rate.region) for rate in rates),
    ]
    return "\n".join(aligned(lines))


def _cells(row: PriceRow) -> tuple[str, ...]:
    return (
        row.what,
        _count(len(row.nodes)),
        row.kind,
        row.zone,
        _count(row.chips),
        row.paid if row.chips else "",
        *cost([row]).cells[:3],
        dollars(row.on_demand_hourly if row.chips else row.hourly, checked=row.checked),
    )


def _sum(rows: Sequence[PriceRow]) -> tuple[str, ...]:
    nodes_, chips = sum(len(row.nodes) for row in rows), sum(row.chips for row in rows)
    on_demand = total([row.on_demand_hourly if row.chips else row.hourly for row in rows])
    together = cost(rows)
    last = dollars(on_demand, checked=together.checked)
    return ("sum", _count(nodes_), "", "", _count(chips), "", *together.cells[:3], last)


def _count(number: int) -> str:
    return str(number) if number else ""
