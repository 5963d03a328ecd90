"""The fault matrix on record is what happens: all of the fleet's own requests, some of Pulumi's."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fleet.handbook import MATRIX

from fleet.failures import Kind
from tests.fleet.lab import Here, Lab
from tests.fleet.matrix import OVERCOME, OWN, UNSEEN, Ask, asked, batch, of_pulumi, of_the_fleet, own

NOBODY_KNOWS = {"reset", "lost answer", "slow"}
SOME = [
    Ask("create", "nodes.create", "503", lasts=False),
    Ask("create", "nodes.create", "lost answer", lasts=False),
    Ask("create", "nodes.create", "stock-out"),
    Ask("create", "nodes.create", "quota"),
    Ask("create", "nodes.create", "slow"),
    Ask("create", "operations.get", "reset"),
    Ask("create", "nodes.get", "500"),
]


def on_record(ask: Ask) -> dict[str, Any]:
    (one,) = [cell for cell in cells() if asked(cell) == ask]
    return one


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(MATRIX.read_text())["cells"]
    return found


def test_every_cell_is_on_record_and_classified() -> None:
    asks = [*of_the_fleet(), *of_pulumi()]
    assert len(cells()) == len(asks)
    kinds = {on_record(ask)["kind"] for ask in asks}
    assert kinds <= {*map(str, Kind), OVERCOME, UNSEEN}


def test_unknown_is_only_what_nobody_can_know() -> None:
    assert {cell["fault"] for cell in cells() if cell["kind"] == Kind.UNKNOWN} <= NOBODY_KNOWS


@pytest.fixture(name="fast", scope="module")
def _fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"), rate=200.0)
    with lab.entered():
        yield lab
    lab.close()


@pytest.mark.parametrize("method", OWN)
def test_the_fleets_own_requests_meet_every_fault_as_recorded(method: str, fast: Lab) -> None:
    for ask in of_the_fleet():
        if ask.method == method:
            assert asdict(own(fast, ask)) == on_record(ask)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pulumis_requests_meet_faults_as_recorded(tmp_path: Path) -> None:
    """One update of seven creations, a fault in each one's zone, beside one without; and the next."""
    lab = Lab(tmp_path)
    try:
        with lab.entered():
            assert [asdict(cell) for cell in batch(lab, Here(lab), SOME)] == [on_record(ask) for ask in SOME]
    finally:
        lab.close()
