"""What the kills of `up` and `destroy` came to, as a table of docs/settings.md: written again, or compared.

python -m tools.update_kills [--write]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tools.blocks import filled

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
RESULTS = ROOT / "benchmarks" / "results" / "updates.json"
_COLUMNS = {
    "layer": "layer", "verb": "killed", "then": "then", "requests": "its requests", "kills": "kills",
    "taken_in": "taken in", "dropped": "never made", "gone": "gone", "still_there": "still there",
    "longest_s": "the next command, longest, s",
}  # fmt: skip


def table() -> str:
    """A row for each command that was killed and the one after it; after all of them all was right."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = [f"| {' | '.join(_COLUMNS.values())} |", "| --- | --- | --- |" + " ---: |" * (len(_COLUMNS) - 3)]
    lines += [f"| {' | '.join(str(row[key]) for key in _COLUMNS)} |" for row in kept["rows"]]
    return "\n".join(lines)


def main() -> None:
    """Writes the table, or compares it."""
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before, {"kills": table()}, PAGE.name)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(after, encoding="utf-8")
    elif after != before:
        raise SystemExit(f"{PAGE.name} is out of date: make docs")


if __name__ == "__main__":
    main()
