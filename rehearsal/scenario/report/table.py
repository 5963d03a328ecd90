"""The report on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from rehearsal.scenario.record import Record
from rehearsal.scenario.report.facts import costs, headlines, lost_at

_COLOURS = {"passed": "green", "failed": "red", "interrupted": "yellow"}


def print_report(record: Record, console: Console) -> None:
    """Verdict, headlines, checks, kills, faults, price."""
    table = Table(title=f"{record.title}\nscenario {record.scenario}, seed {record.seed}", show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    colour = _COLOURS.get(record.verdict, "white")
    table.add_row("verdict", f"[bold {colour}]{record.verdict}[/]")
    for what, value in headlines(record):
        table.add_row(what, value)
    for check in record.checks:
        table.add_row("proved", f"{check.claim}\n[dim]{check.evidence}[/dim]")
    if 0 < len(record.kills) <= 6:
        for kill in record.kills:
            table.add_row("kill", f"{kill.how}, {lost_at(record, kill)}")
    for fault in record.faults:
        table.add_row("fault", f"{fault['name']}: observed {fault['observed']}×")
    for cost in costs(record):
        kind = "spot" if cost.spot else "on demand"
        table.add_row(
            f"price of {cost.node}",
            f"{cost.chip_hours:.2f} chip-hours × ${cost.usd_hour / cost.chips:.4f} ({kind}, {cost.dated}) "
            f"= ${cost.usd:.2f}",
        )
    console.print(table)
    if record.reason:
        console.print(f"[bold {colour}]{record.verdict}[/]: ", end="")
        console.print(record.reason, markup=False, soft_wrap=True)
