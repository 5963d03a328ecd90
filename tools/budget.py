"""Count the words that a user reads: `python -m tools.budget`, by page, and their sum against the budget.

README, docs/guides and docs/reference count; generated blocks and definitions of links don't. What only a
maintainer needs belongs into docs/internals.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tools.blocks import ROOT

MOST_WORDS = 16_000
_UNCOUNTED = re.compile(
    r"<!-- begin generated: .*?<!-- end generated -->|^\[[^\]]+\]: \S+$", re.DOTALL | re.MULTILINE
)


def words(text: str) -> int:
    """Return the number of words of a page, generated blocks and definitions of links aside."""
    return len(_UNCOUNTED.sub("", text).split())


def counted(root: Path = ROOT) -> dict[str, int]:
    """Return the words of each page that a user reads."""
    folders = [root / "docs" / "guides", root / "docs" / "reference"]
    pages = [root / "README.md", *(page for folder in folders for page in sorted(folder.rglob("*.md")))]
    return {str(page.relative_to(root)): words(page.read_text(encoding="utf-8")) for page in pages}


def main() -> int:
    """Print the words of each page; return 1 above the budget."""
    pages = counted()
    print("\n".join(f"{count:6,}  {name}" for name, count in pages.items()))
    print(f"{sum(pages.values()):6,}  of {MOST_WORDS:,}")
    return int(sum(pages.values()) > MOST_WORDS)


if __name__ == "__main__":
    sys.exit(main())
