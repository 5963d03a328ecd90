"""Generated blocks of Markdown pages: each names the function that returns its text.

A block `<!-- begin generated: tools.docs.prices -->` … `<!-- end generated -->` holds what `prices()` of
tools/docs.py returns; further words of the first line are its arguments. `make docs` writes all blocks.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from views.table import markdown

ROOT = Path(__file__).resolve().parent.parent
_BEGIN, _END = "<!-- begin generated: ", "<!-- end generated -->"
_BLOCK = re.compile(rf"^({_BEGIN}(.+?) -->\n)((?!{_BEGIN}).)*?(\n{_END})$", re.DOTALL | re.MULTILINE)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; a column whose head ends in ":" is aligned to the right."""
    numbers = [number for number, title in enumerate(head) if title.endswith(":")]
    return "\n".join(markdown([title.removesuffix(":") for title in head], rows, numbers))


def filled(page: str) -> str:
    """Return the text of a page with all its blocks made anew. Raises ValueError for a block without end."""
    if len(_BLOCK.findall(page)) != page.count(_BEGIN):
        raise ValueError(f"a block that begins with {_BEGIN!r} has no line {_END!r}")
    return _BLOCK.sub(lambda match: f"{match[1]}{_made(*match[2].split())}{match[4]}", page)


def _made(name: str, *arguments: str) -> str:
    module, _, function = name.rpartition(".")
    text: str = getattr(import_module(module), function)(*arguments)
    return text


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that have blocks."""
    line = ["git", "grep", "--untracked", "-l", f"^{_BEGIN}", "--", "*.md"]
    listed = subprocess.run(line, cwd=root, capture_output=True, text=True, check=False).stdout
    return [root / name for name in listed.splitlines()]


def main() -> None:
    """Write every block again, and print the pages that change."""
    _made("tools.settings_docs.add_pages")
    for page in pages():
        before = page.read_text(encoding="utf-8")
        if (after := filled(before)) != before:
            page.write_text(after, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
