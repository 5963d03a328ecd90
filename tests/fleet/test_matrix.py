"""The fault matrix on record is what happens."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from infra.google.failures import Kind
from tests.fleet.lab import Lab
from tests.fleet.matrix import FAULTS, METHODS, OVERCOME, STARTERS, UNSEEN, Ask, asked, asks, meet
from tools.docs import MATRIX

NOBODY_KNOWS = {"reset", "lost answer", "slow"}
# Of each request, of each fault and of each kind of cell one; `make prove` meets all.
SOME = [
    *(Ask(method, "503", lasts=False) for method in METHODS),
    *(Ask(method, "lost answer") for method in METHODS),
    *(
        Ask(method, fault)
        for method in ("nodes.list", "nodes.create", "objects.insert")
        for fault in ("429", "500", "reset", "quota", "403")
    ),
    *(Ask(method, fault) for method in STARTERS for fault in ("slow", "failed operation", "stock-out")),
]


def cells() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(MATRIX.read_text())["cells"]
    return result


def on_record(ask: Ask) -> dict[str, Any]:
    (item,) = [cell for cell in cells() if asked(cell) == ask]
    return item


def test_every_cell_is_on_record_and_classified() -> None:
    assert [asked(cell) for cell in cells()] == list(asks())
    assert {cell["kind"] for cell in cells()} <= {*map(str, Kind), OVERCOME, UNSEEN}


def test_unknown_is_only_what_nobody_can_know() -> None:
    assert {cell["fault"] for cell in cells() if cell["kind"] == Kind.UNKNOWN} <= NOBODY_KNOWS


def test_one_request_that_fails_is_overcome() -> None:
    once = {(cell["method"], cell["fault"]): cell["kind"] for cell in cells() if not cell["lasts"]}
    assert {*once.values()} == {OVERCOME}


@pytest.mark.parametrize("ask", SOME, ids=lambda ask: f"{ask.method}-{ask.fault}-{ask.lasts}")
def test_a_request_meets_a_fault_as_recorded(ask: Ask, lab: Lab) -> None:
    assert asdict(meet(lab, ask)) == on_record(ask)


@pytest.mark.prove
@pytest.mark.parametrize("fault", FAULTS)
def test_every_request_meets_every_fault_as_recorded(fault: str, lab: Lab) -> None:
    for ask in asks():
        if ask.fault == fault and ask not in SOME:
            assert asdict(meet(lab, ask)) == on_record(ask)
