"""Reports of a record: a table for the terminal, JSON, and one HTML page that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from rehearsal.scenario.record import Record
from rehearsal.scenario.report.page import page


def write_report(record: Record, folder: Path) -> Path:
    """Write `record.json` and `index.html`; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    record.save(folder / "record.json")
    target = folder / "index.html"
    target.write_text(page(record))
    return target
