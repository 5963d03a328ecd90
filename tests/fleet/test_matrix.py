"""The fault matrix on record is what happens."""

import json
from dataclasses import asdict
from itertools import cycle
from typing import Any

import pytest

from infra.google.failures import Kind
from tests.fleet.lab import Lab
from tests.fleet.matrix import METHODS, OVERCOME, STARTERS, UNSEEN, Meeting, cell_of, meet, meetings
from tools.docs import MATRIX

NOBODY_KNOWS = {"reset", "lost answer", "slow"}
# Each request meets a fault, each fault is met, and what begins an operation meets those of operations;
# `python -m tests.proofs matrix` meets all.
ANY = cycle(("lost answer", "503", "quota", "429", "403", "500", "reset"))
SOME = [
    *(Meeting(method, fault) for method, fault in zip(METHODS, ANY, strict=False)),
    *(Meeting(method, fault) for method in STARTERS for fault in ("slow", "failed operation", "stock-out")),
    Meeting("nodes.create", "lost answer", lasts=False),
]


def cells() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(MATRIX.read_text())["cells"]
    return result


def on_record(meeting: Meeting) -> dict[str, Any]:
    (item,) = [cell for cell in cells() if cell_of(cell) == meeting]
    return item


def test_every_cell_is_on_record_and_classified() -> None:
    assert [cell_of(cell) for cell in cells()] == list(meetings())
    assert {cell["kind"] for cell in cells()} <= {*map(str, Kind), OVERCOME, UNSEEN}


def test_unknown_is_only_what_nobody_can_know() -> None:
    assert {cell["fault"] for cell in cells() if cell["kind"] == Kind.UNKNOWN} <= NOBODY_KNOWS


def test_one_request_that_fails_is_overcome() -> None:
    once = {(cell["method"], cell["fault"]): cell["kind"] for cell in cells() if not cell["lasts"]}
    assert {*once.values()} == {OVERCOME}


@pytest.mark.parametrize("meeting", SOME, ids=str)
def test_a_request_meets_a_fault_as_recorded(meeting: Meeting, lab: Lab) -> None:
    assert asdict(meet(lab, meeting)) == on_record(meeting)
