"""Nodes of a parsed definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rehearsal.cloud.services.workflows.engine.expressions import Run
from rehearsal.cloud.services.workflows.engine.values import Place

Value = Callable[[Any], Any]  # evaluates in a scope


@dataclass(frozen=True)
class Assign:
    """Variables, or members of them, in order: (variable, keys, value)."""

    targets: tuple[tuple[str, tuple[Run, ...], Value], ...]


@dataclass(frozen=True)
class Invoke:
    """A `call`; `result` is the variable that takes the answer, or ''."""

    function: str
    arguments: Mapping[str, Value]
    result: str


@dataclass(frozen=True)
class Switch:
    """The first case whose condition is true."""

    cases: tuple[tuple[Value, Step], ...]


@dataclass(frozen=True)
class For:
    """Over a list, or over the numbers from the first to the last of a range."""

    value: str
    index: str
    over: Value
    is_range: bool
    block: Block


@dataclass(frozen=True)
class Try:
    """`retry` is evaluated when an error comes; without `handler` it is passed up."""

    body: Step
    retry: Value | None
    name: str
    handler: Block | None


@dataclass(frozen=True)
class RaiseValue:
    """An error of the workflow's own."""

    value: Value


@dataclass(frozen=True)
class Return:
    """The end of a (sub)workflow."""

    value: Value


@dataclass(frozen=True)
class Nothing:
    """Only a jump."""


@dataclass(frozen=True)
class Block:
    """Steps in order, and where each name is."""

    steps: tuple[Step, ...]
    index: Mapping[str, int]


Action = Assign | Invoke | Switch | For | Try | RaiseValue | Return | Nothing | Block


@dataclass(frozen=True)
class Step:
    """`next`: a step's name, end, break, continue, or '' for the one below."""

    place: Place
    action: Action
    next: str


@dataclass(frozen=True)
class Routine:
    """`main` or a subworkflow; a parameter without a default must be given."""

    name: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, Value]
    block: Block


@dataclass(frozen=True)
class Program:
    """A definition that can run."""

    routines: Mapping[str, Routine]
