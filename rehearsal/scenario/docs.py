"""The parts of docs/rehearsal.md that are made from the code: command line, scenarios, their keys and steps.

python -m rehearsal.scenario.docs --write   (`make docs` calls it; without --write it only compares)
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

from rehearsal.errors import RehearsalError
from rehearsal.scenario.scenario import Header, load, own
from rehearsal.scenario.steps import KINDS

_COLUMNS = "100"
ROOT = Path(__file__).resolve().parents[2]


def commands() -> str:
    """The help of the command line, as a block of code."""
    line = [sys.executable, "-m", "cli", "rehearsal", "--help"]
    variables = {**os.environ, "COLUMNS": _COLUMNS}
    done = subprocess.run(line, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    return f"```text\n{done.stdout.rstrip()}\n```\n"


def scenarios() -> str:
    """A table of the project's own scenarios."""
    return _table(
        ("scenario", "what happens"), [(f"`{path.stem}`", load(path).header.title) for path in own()]
    )


def keys() -> str:
    """A table of a scenario's keys besides `steps`."""
    return _table(("key", "type", "default"), _fields(Header))


def steps() -> str:
    """A table of all steps: what they do and which fields they take."""
    rows = []
    for kind, step in KINDS.items():
        scalar = getattr(step, "scalar", None)
        taken = [
            f"`{name}` {hint}{f' = {default}' if default else ''}{' (or bare)' if name == scalar else ''}"
            for name, hint, default in _fields(step)
        ]
        says = " ".join((inspect.getdoc(step) or "").split("\n\n")[0].split())
        rows.append((f"`{kind}`", says, "<br>".join(taken) or "–"))
    return _table(("step", "what it does", "fields"), rows)


PAGE = ROOT / "docs" / "rehearsal.md"
BLOCKS = {
    "rehearsal commands": commands,
    "scenarios": scenarios,
    "scenario keys": keys,
    "scenario steps": steps,
}


def written(document: str) -> str:
    """`document` with its generated blocks recreated; RehearsalError names one that is missing."""
    for name, make in BLOCKS.items():
        begin, end = (f"<!-- {word} generated: {name} -->\n" for word in ("begin", "end"))
        head, opened, rest = document.partition(begin)
        _, closed, tail = rest.partition(end)
        if not opened or not closed:
            raise RehearsalError(f"{PAGE.name} lacks the block {name}")
        document = f"{head}{begin}{make()}{end}{tail}"
    return document


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    before = PAGE.read_text(encoding="utf-8")
    after = written(before)
    if "--write" in arguments:
        PAGE.write_text(after, encoding="utf-8")
    elif before != after:
        print(f"{PAGE.name} is out of date: make docs", file=sys.stderr)
        return 1
    return 0


def _fields(cls: type) -> Iterator[tuple[str, str, str]]:
    """(name, type, default) of a dataclass's fields; the default is empty where the field is required."""
    hints = typing.get_type_hints(cls)
    for field in sorted(dataclasses.fields(cls), key=lambda one: one.name == "as_"):  # the rarest last
        if field.default is not dataclasses.MISSING:
            default = f"`{field.default!r}`".replace("None", "none")
        elif field.default_factory is not dataclasses.MISSING:
            made = field.default_factory()
            default = "see below" if dataclasses.is_dataclass(made) else f"`{made!r}`"
        else:
            default = ""
        yield field.name.rstrip("_"), _shown(hints[field.name]), default


def _shown(hint: typing.Any) -> str:
    """A type as people say it."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return " · ".join(map(str, arguments))
    if typing.get_origin(hint) is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of {_shown(arguments[0])}"
        return f"[{', '.join(_shown(argument) for argument in arguments)}]"
    if type(None) in arguments:
        return _shown(next(argument for argument in arguments if argument is not type(None)))
    names = {str: "text", int: "whole number", float: "number", bool: "true/false"}
    return names.get(hint, "mapping")


def _table(head: tuple[str, ...], rows: typing.Iterable[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
