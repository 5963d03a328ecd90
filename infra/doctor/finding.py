"""Findings of the doctors, and their table. Standard library only: `make doctor` runs before set-up."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from views.terminal import clean

OK, MISSING, OPTIONAL = "ok", "missing", "optional"
_GREEN, _RED, _YELLOW = 32, 31, 33
_COLOURS = {OK: _GREEN, MISSING: _RED}


@dataclass(frozen=True)
class Finding:
    """Line of the table; `fix` is empty when nothing is to be done."""

    what: str
    state: str
    detail: str
    fix: str = ""


def table(findings: Sequence[Finding]) -> str:
    """Format the findings, each followed by its fix."""
    width = max(len(finding.what) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"  {coloured(finding.state)}  {finding.what:<{width}}  {clean(finding.detail)}")
        if finding.fix:
            lines.append(f"  {'':<8}  {'':<{width}}  fix: {clean(finding.fix)}")
    return "\n".join(lines)


def coloured(state: str) -> str:
    """Return a state in eight columns, coloured on a terminal that allows it (https://no-color.org)."""
    text = f"{state:<8}"
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS.get(state, _YELLOW)}m{text}\x1b[0m"
