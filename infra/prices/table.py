"""Price tables as text."""

from __future__ import annotations

from collections.abc import Sequence

from infra.prices.row import NOTE, Rate, Row, _small, cost, dollars, total

_HEAD = ("what", "nodes", "type", "zone", "chips", "paid", "$/hour", "$/day", "$/month", "on demand $/hour")


def table(found: Sequence[Row]) -> str:
    """Format rows and their sum, with the dates of the prices."""
    if not found:
        return "No slices, nor anything else that is billed by the hour."
    lines = [_HEAD, *map(_cells, found), _sum(found)]
    marked = [NOTE] if any(not one.checked for one in found) else []
    return "\n".join([*_aligned(lines), *dict.fromkeys(one.source for one in found), *marked])


def rates_table(found: Sequence[Rate]) -> str:
    """Format the prices by use."""
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
