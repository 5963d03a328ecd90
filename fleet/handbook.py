"""The part of docs/fleet.md that is made from the code: what each kind of failure leads to.

python -m fleet.handbook --write   (`make docs` calls it; without --write it only compares)
"""

import sys
from pathlib import Path

from fleet.failures import FOR_PEOPLE, Kind, fix_of
from tools.blocks import filled

PAGE = Path(__file__).parents[1] / "docs" / "fleet.md"


def failures() -> str:
    """A row for each kind of failure."""
    lines = ["| failure | tried again | what to do |", "| --- | --- | --- |"]
    for kind in Kind:
        again = "when somebody has acted" if kind in FOR_PEOPLE else "yes, later each time"
        lines.append(f"| {kind} | {again} | {fix_of(kind).replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def written() -> str:
    """The page with its table made anew."""
    return filled(PAGE.read_text(encoding="utf-8"), {"failures": failures()}, PAGE.name)


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
