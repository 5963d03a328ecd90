"""The generated parts of docs/standin.md: what the stand-in knows and where it differs.

Example: python -m rehearsal.standin.handbook docs/standin.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rehearsal.standin import differences
from rehearsal.standin.invokes import INVOKES
from rehearsal.standin.types import TYPES


def types() -> str:
    """A table of the resource types: their paths at Google and the properties a program can set."""
    rows = []
    for resource in sorted(TYPES.values(), key=lambda r: r.table.token):
        table = resource.table
        product, name = table.token.split(":")[1].split("/")[0], table.token.rsplit(":", 1)[1]
        path = table.service.base.removeprefix("https://") + table.item
        settable = ", ".join(f"`{f.name}`" for f in sorted(table.inputs, key=lambda f: f.name))
        rows.append(f"| {product}.{name} | `{path}` | {settable} |")
    return "\n".join(["| type | at Google | properties |", "| --- | --- | --- |", *rows])


def functions() -> str:
    """The look-ups, one a line."""
    return "\n".join(
        f"- `{token.split(':')[1].split('/')[0]}.{token.rsplit(':', 1)[1]}`" for token in INVOKES
    )


BLOCKS = {"types": types, "functions": functions, "differences": differences.markdown}


def filled(text: str) -> str:
    """`text` with what stands between `<!-- NAME -->` and `<!-- /NAME -->` written anew."""
    for name, block in BLOCKS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        written = block()
        text = pattern.sub(lambda marks, written=written: f"{marks[1]}{written}\n{marks[2]}", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.write_text(filled(document.read_text(encoding="utf-8")), encoding="utf-8")
