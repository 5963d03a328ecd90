"""The report as one HTML page that needs no network, no script and no other file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rehearsal.scenario.record import Record, RunRecord
from rehearsal.scenario.report.facts import costs, headlines, lost_at, minutes
from views.page import render

_Rows = list[tuple[str, tuple[str, ...]]]
"""Rows of a table: CSS class and cells."""


def page(record: Record) -> str:
    """Return the whole page."""
    grants = _grants(record)
    return render(Path(__file__).with_name("page.html"), {
        "title": f"Rehearsal: {record.scenario}, {record.verdict}",
        "record": record,
        "began": datetime.fromtimestamp(record.start, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "headlines": headlines(record),
        "minutes": minutes,
        **_pictures(record),
        "faults": [
            *(("", (fault["name"], f"{fault['observed']}×")) for fault in record.faults),
            *(("", (f"{kill.how}: {kill.node}, {lost_at(record, kill)}", minutes(kill.time - record.start)))
              for kill in record.kills),
        ],
        "costs": [
            (
                "",
                (
                    cost.node, "spot" if cost.spot else "on demand", f"${cost.usd_hour:,.2f}",
                    minutes(cost.hours * 3600), f"{cost.chip_hours:,.2f}", f"${cost.usd:,.2f}",
                ),
            )
            for cost in costs(record)
        ],
        "dates": ", ".join(sorted({cost.dated for cost in costs(record)})),
        "grants": grants,
        "refused": sum(css == "failed" for css, _ in grants),
        "requests": _requests(record),
    })  # fmt: skip


def compared(record: Record) -> list[tuple[RunRecord, RunRecord]]:
    """Return an uninterrupted run, and each interrupted one that can be compared with it."""
    killed = {kill.run for kill in record.kills}
    runs = [run for run in record.runs if run.losses]
    calm = next((run for run in runs if run.name not in killed), None)
    return [(calm, run) for run in runs if run.name in killed] if calm else []


def _pictures(record: Record) -> dict[str, Any]:
    """Draw the timeline, and loss and progress of every interrupted run that can be compared."""
    from rehearsal.scenario.report import plots  # matplotlib takes a second to import

    runs = [
        (run, calm, plots.loss(record, calm, run), plots.progress(record, run))
        for calm, run in compared(record)
    ]
    return {"timeline": plots.timeline(record), "runs": runs}


def _grants(record: Record) -> _Rows:
    rows: _Rows = [
        ("" if alone else "detail", (*granted, ", ".join(alone) or "none"))
        for granted, alone in sorted(record.alone().items())
    ]
    refused: _Rows = [
        ("failed", (entry["account"], "none", "", entry["permission"]))
        for entry in record.permissions
        if not entry["granted_by"]
    ]
    return [*rows, *refused]


def _requests(record: Record) -> _Rows:
    methods = record.requests.get("methods", {})
    rows: _Rows = [
        ("failed" if count["refused"] else "", (name, str(count["validated"]), str(count["refused"])))
        for name, count in sorted(methods.items())
    ]
    return rows + [("detail", (name, "0", "0")) for name in record.served if name not in methods]
