"""Generated blocks of docs/rehearsal.md, which tools/docs.py writes."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterable
from unittest import mock

import rehearsal.scenario.steps  # noqa: F401 - registers all steps
from rehearsal.__main__ import build_parser
from rehearsal.scenario.scenario import Scenario, load, name_of, own
from rehearsal.scenario.step import NOTHING, STEPS

_COLUMNS = "100"
_SET_BY_LOAD = ("path", "title", "steps")


def commands() -> str:
    """Return the help of the command line, as a block of code."""
    with mock.patch.dict(os.environ, {"COLUMNS": _COLUMNS}):
        return f"```text\n{build_parser().format_help().rstrip()}\n```"


def scenarios() -> str:
    """Return a table of the project's own scenarios."""
    rows = [(f"`{name_of(path)}`", load(path).title) for path in own()]
    return _table(("scenario", "content"), rows)


def fields() -> str:
    """Return a table of a Scenario's fields besides `steps`."""
    rows = []
    for field in dataclasses.fields(Scenario):
        if field.name not in _SET_BY_LOAD:
            default = field.default if field.default is not dataclasses.MISSING else "empty"
            rows.append((f"`{field.name}`", f"`{field.type}`", f"`{default}`"))
    return _table(("field", "type", "default"), rows)


def step_table() -> str:
    """Return a table of all steps: signature and first sentence of the docstring."""
    rows = []
    for name, function in STEPS.items():
        _, *parameters = map(_parameter, inspect.signature(function).parameters.values())
        summary = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        rows.append((f"`{name}({', '.join(parameters)})`", summary))
    return _table(("step", "effect"), sorted(rows))


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    default = "{}" if parameter.default is NOTHING else repr(parameter.default)
    given = "" if parameter.default is parameter.empty else f" = {default}"
    return f"{stars}{parameter.name}: {parameter.annotation}{given}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)
