"""Tables as text: aligned for a terminal, and as Markdown."""

from collections.abc import Container, Iterable, Sequence


def aligned(lines: Sequence[Sequence[str]], *, right: bool = False) -> list[str]:
    """Pad cells to the width of their column; with `right` all columns but the first are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if right and number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def markdown(
    head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Container[int] = ()
) -> list[str]:
    """Return the lines of a Markdown table; `numbers` are the columns aligned on the right."""
    rule = ["---:" if number in numbers else "---" for number in range(len(head))]
    cells = [head, rule, *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in cells]
