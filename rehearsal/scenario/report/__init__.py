"""Reports of a record: a table for the terminal, JSON, and one HTML page that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from rehearsal.errors import ScenarioError
from rehearsal.scenario.record import Record
from rehearsal.scenario.report.page import compared, page


def write_report(record: Record, folder: Path) -> Path:
    """Write `record.json` and `index.html`; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    record.save(folder / "record.json")
    target = folder / "index.html"
    target.write_text(page(record))
    return target


def write_picture(record: Record, target: Path) -> None:
    """Write the losses of an interrupted run over an uninterrupted one's as SVG, for light and dark pages.

    Raises:
        ScenarioError: the scenario had no such pair of runs.
    """
    from rehearsal.scenario.report import plots  # matplotlib takes a second to import
    from views.picture import alone

    pairs = compared(record)
    if not pairs:
        raise ScenarioError(f"{record.scenario} had no interrupted run beside an uninterrupted one")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(alone(plots.loss(record, *pairs[0])))
