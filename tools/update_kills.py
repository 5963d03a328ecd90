"""Outcomes of killed `up` and `destroy`, as a table of docs/settings.md."""

from __future__ import annotations

import json
from pathlib import Path

from views.table import markdown

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "updates.json"
_COLUMNS = {
    "layer": "layer", "verb": "killed", "then": "then", "requests": "its requests", "kills": "kills",
    "taken_in": "imported", "dropped": "never made", "gone": "gone", "still_there": "still there",
    "longest_s": "the next command, longest, s",
}  # fmt: skip


def table() -> str:
    """Return a row for each command that was killed and the one after it; after all of them all was right."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = [[row[key] for key in _COLUMNS] for row in stored["rows"]]
    return "\n".join(markdown([*_COLUMNS.values()], rows, range(3, len(_COLUMNS))))
