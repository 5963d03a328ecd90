"""Generated blocks of docs/rehearsal.md, which tools/docs.py writes."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path

import rehearsal.scenario.steps  # noqa: F401 - registers all steps
from rehearsal.scenario.scenario import Scenario, load, name_of, own
from rehearsal.scenario.step import NOTHING, STEPS
from views.table import markdown

_COLUMNS = "100"
ROOT = Path(__file__).resolve().parent.parent
_SET_BY_LOAD = ("path", "title", "steps")


def commands() -> str:
    """Return the help of the command line, as a block of code."""
    line = [sys.executable, "-m", "cli", "rehearsal", "--help"]
    variables = {**os.environ, "COLUMNS": _COLUMNS}
    done = subprocess.run(line, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    return f"```text\n{done.stdout.rstrip()}\n```"


def scenarios() -> str:
    """Return a table of the project's own scenarios."""
    rows = [(f"`{name_of(path)}`", load(path).title) for path in own()]
    return "\n".join(markdown(("scenario", "content"), rows))


def fields() -> str:
    """Return a table of a Scenario's fields besides `steps`."""
    rows = []
    for field in dataclasses.fields(Scenario):
        if field.name not in _SET_BY_LOAD:
            default = field.default if field.default is not dataclasses.MISSING else "empty"
            rows.append((f"`{field.name}`", f"`{field.type}`", f"`{default}`"))
    return "\n".join(markdown(("field", "type", "default"), rows))


def step_table() -> str:
    """Return a table of all steps: signature and first sentence of the docstring."""
    rows = []
    for name, function in STEPS.items():
        _, *parameters = map(_parameter, inspect.signature(function).parameters.values())
        summary = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        rows.append((f"`{name}({', '.join(parameters)})`", summary))
    return "\n".join(markdown(("step", "effect"), sorted(rows)))


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    default = "{}" if parameter.default is NOTHING else repr(parameter.default)
    given = "" if parameter.default is parameter.empty else f" = {default}"
    return f"{stars}{parameter.name}: {parameter.annotation}{given}"
