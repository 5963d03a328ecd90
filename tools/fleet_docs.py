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

PAGE = Path(__file__).parents[1] / "docs" / "fleet.md"
MATRIX = Path(__file__).parents[1] / "benchmarks" / "results" / "faults.json"


def failures() -> str:
    """A row for each kind of failure."""
    lines = ["| failure | retried | what to do |", "| --- | --- | --- |"]
    for kind in Kind:
        again = "no, until manual action" if kind in FOR_PEOPLE else "yes, with backoff"
        again = "yes, after 60 s" if kind is Kind.STACK else again
        lines.append(f"| {kind} | {again} | {fix_of(kind).replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def matrix() -> str:
    """A row for each request, a column for each fault."""
    cells = _cells()
    kinds = {(one["method"], one["fault"], one["lasts"]): one["kind"] for one in cells}
    faults = list(dict.fromkeys(one["fault"] for one in cells))
    lines = ["| request | " + " | ".join(faults) + " |", "| --- " * (len(faults) + 1) + "|"]
    for method in dict.fromkeys(one["method"] for one in cells):
        row = []
        for fault in faults:
            both = [kinds.get((method, fault, lasts)) for lasts in (False, True)]
            row.append("; ".join(dict.fromkeys(filter(None, both))) or "–")
        lines.append(f"| {method} | {' | '.join(row)} |")
    return "\n".join(lines)


def outcomes() -> str:
    """A row for each thing that came of a fault, with what the faults were taken for."""
    found: dict[tuple[str, ...], Counter[str]] = {}
    for one in _cells():
        if one["mended"] != "nothing to mend":
            key = (one["then"], one["truth"], one["mended"])
            found.setdefault(key, Counter())[one["kind"]] += 1
    head = ["the controller", "at Google meanwhile", "recovers with", "cells", "classified as"]
    lines = [f"| {' | '.join(head)} |", "| --- | --- | --- | ---: | --- |"]
    for words, kinds in sorted(found.items()):
        lines.append(f"| {' | '.join(words)} | {kinds.total()} | {', '.join(sorted(kinds))} |")
    fine = len(_cells()) - sum(kinds.total() for kinds in found.values())
    return "\n".join([*lines, f"| continues | nothing to mend | | {fine} | all others |"])


def _cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(MATRIX.read_text(encoding="utf-8"))["cells"]
    return found


def written() -> str:
    """The page with its tables recreated."""
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
