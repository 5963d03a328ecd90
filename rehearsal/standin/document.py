"""The generated parts of docs/standin.md: what the stand-in knows and where it differs.

Example: python -m rehearsal.standin.document --write
"""

from __future__ import annotations

import sys
from pathlib import Path

from rehearsal.standin import differences, sdk
from rehearsal.standin.invokes import INVOKES
from rehearsal.standin.types import TYPES


def types() -> str:
    """A table of the resource types: their paths at Google and the properties a program can't set."""
    rows = []
    for resource in sorted(TYPES.values(), key=lambda r: r.table.token):
        table = resource.table
        product, name = table.token.split(":")[1].split("/")[0], table.token.rsplit(":", 1)[1]
        path = table.service.base.removeprefix("https://") + table.item
        refused = sdk.resource_type(table.token).inputs.keys() - {f.name for f in table.inputs}
        rows.append(f"| {product}.{name} | `{path}` | {', '.join(f'`{one}`' for one in sorted(refused))} |")
    return "\n".join(["| type | at Google | refused properties |", "| --- | --- | --- |", *rows])


def functions() -> str:
    """The look-ups, one a line."""
    return "\n".join(
        f"- `{token.split(':')[1].split('/')[0]}.{token.rsplit(':', 1)[1]}`" for token in INVOKES
    )


DOCUMENT = Path(__file__).parents[2] / "docs" / "standin.md"
BLOCKS = {"types": types, "functions": functions, "differences": differences.markdown}


def filled(text: str) -> str:
    """`text` with every block between its marks written anew."""
    for name, block in BLOCKS.items():
        begin, end = (f"<!-- {word} generated: {name} -->" for word in ("begin", "end"))
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n{block()}\n{end}{tail}"
    return text


def main(arguments: list[str]) -> int:
    """Write the document anew with --write, else say whether it is up to date; returns the exit code."""
    before = DOCUMENT.read_text(encoding="utf-8")
    after = filled(before)
    if "--write" in arguments:
        DOCUMENT.write_text(after, encoding="utf-8")
    elif before != after:
        print("docs/standin.md is out of date: python -m rehearsal.standin.document --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
