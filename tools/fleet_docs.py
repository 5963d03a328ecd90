"""The parts of docs/fleet.md that are made: what each kind of failure leads to, and the fault matrix.

python -m tools.fleet_docs --write   (`make docs` calls it; without --write it only compares)

The matrix is measured: `python -m tests.proofs matrix` meets each request with each fault.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from infra.google.failures import FOR_PEOPLE, Kind, fix_of
from tools.blocks import filled
from views.table import markdown

PAGE = Path(__file__).parents[1] / "docs" / "fleet.md"
MATRIX = Path(__file__).parents[1] / "benchmarks" / "results" / "faults.json"


def failures() -> str:
    """Return a row for each kind of failure."""
    rows = []
    for kind in Kind:
        again = "no, until manual action" if kind in FOR_PEOPLE else "yes, with backoff"
        rows.append((kind, "yes, after 60 s" if kind is Kind.STACK else again, fix_of(kind)))
    return "\n".join(markdown(("failure", "retried", "what to do"), rows))


def matrix() -> str:
    """Return a row for each request, a column for each fault."""
    cells = _cells()
    kinds = {(cell["method"], cell["fault"], cell["lasts"]): cell["kind"] for cell in cells}
    faults = list(dict.fromkeys(cell["fault"] for cell in cells))
    rows = []
    for method in dict.fromkeys(cell["method"] for cell in cells):
        row = [method]
        for fault in faults:
            both = [kinds.get((method, fault, lasts)) for lasts in (False, True)]
            row.append("; ".join(dict.fromkeys(filter(None, both))) or "–")
        rows.append(row)
    return "\n".join(markdown(("request", *faults), rows))


def outcomes() -> str:
    """Return a row for each thing that came of a fault, with what the faults were taken for."""
    mapping: dict[tuple[str, ...], Counter[str]] = {}
    for cell in _cells():
        if cell["mended"] != "nothing to mend":
            key = (cell["then"], cell["truth"], cell["mended"])
            mapping.setdefault(key, Counter())[cell["kind"]] += 1
    head = ["the controller", "at Google meanwhile", "recovers with", "cells", "classified as"]
    rows = [(*words, kinds.total(), ", ".join(sorted(kinds))) for words, kinds in sorted(mapping.items())]
    fine = len(_cells()) - sum(kinds.total() for kinds in mapping.values())
    rows.append(("continues", "nothing to mend", "", fine, "all others"))
    return "\n".join(markdown(head, rows, (3,)))


def _cells() -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(MATRIX.read_text(encoding="utf-8"))["cells"]
    return cells


def written() -> str:
    """Return the page with its tables recreated."""
    blocks = {"failures": failures(), "matrix": matrix(), "outcomes": outcomes()}
    return filled(PAGE.read_text(encoding="utf-8"), blocks, PAGE.name)


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    after = written()
    if "--write" in arguments:
        PAGE.write_text(after, encoding="utf-8")
    elif after != PAGE.read_text(encoding="utf-8"):
        print(f"{PAGE.name} is out of date: make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
