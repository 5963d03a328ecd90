"""What is shown of a look: prices."""

from dataclasses import replace

import pytest
from rich.console import Console

from fleet import show
from fleet.controller import Observation
from fleet.dashboard import Dashboard
from fleet.model import Action, Condition, Decision, ObservedNode, View, WorkerStatus, ZoneView
from infra.catalog import CATALOG
from infra.slices.nodes import Node
from tests.fleet.conftest import fleet

HOUR_S = 3600.0
KNOWN = [one for one in fleet(8, zones=8) if CATALOG.price(one.zone).spot][:2]
UNKNOWN = [one for one in fleet(8, zones=8) if CATALOG.price(one.zone).spot is None][:1]


def observation(*members: Node, age_s: float = 2 * HOUR_S) -> Observation:
    nodes = [(one, ObservedNode(one.name, one.zone, "READY", "1", 1e6)) for one in members]
    zones = {one.zone: ZoneView({one.name: observed}) for one, observed in nodes}
    return Observation(View(1e6 + age_s, zones, {}), members, [], [], [], nodes=nodes)


def test_the_price_so_far_is_that_of_the_chips_since_their_creation() -> None:
    spot, on_demand = KNOWN[0], replace(KNOWN[1], spot=False)
    dollars, unknown = show.price_so_far(observation(spot, on_demand))
    each = CATALOG.price(spot.zone).spot, CATALOG.price(on_demand.zone).on_demand
    assert dollars == pytest.approx(2 * 8 * sum(one or 0 for one in each))
    assert dollars > 0
    assert unknown == []


def test_a_price_that_nobody_knows_is_said_and_not_taken_for_none(capsys: pytest.CaptureFixture[str]) -> None:
    known, reserved, nowhere = KNOWN[0], replace(KNOWN[1], reserved=True), UNKNOWN[0]
    some = observation(known, reserved, nowhere)
    dollars, unknown = show.price_so_far(some)
    assert dollars == show.price_so_far(observation(known))[0]
    assert unknown == sorted([reserved.name, nowhere.name])
    assert show.as_json(some, [])["dollars_so_far"] is None
    with Dashboard("fleet dev", Console(force_terminal=False)) as dashboard:
        dashboard.show(some)
    assert f"${dollars:,.2f} so far" in capsys.readouterr().out
    assert "without 2 whose price the catalog" in dashboard.page


def test_without_a_terminal_a_line_is_said_where_something_changed_and_once_an_hour(
    capsys: pytest.CaptureFixture[str],
) -> None:
    member = KNOWN[0]

    def at(minute: int, condition: Condition, *events: str) -> Observation:
        one = Decision(member, Action.LEAVE, condition, "")
        return replace(observation(member, age_s=60.0 * minute), decisions=[one], events=list(events))

    output = []
    with Dashboard("fleet dev", Console(force_terminal=False)) as dashboard:
        for one in (
            at(1, Condition.WORKING), at(2, Condition.WORKING), at(3, Condition.WORKING, "it rains"),
            at(4, Condition.WORKING), at(60, Condition.WORKING), at(61, Condition.WORKING),
            at(62, Condition.DONE), at(63, Condition.DONE),
        ):  # fmt: skip
            dashboard.show(one)
            output.append(capsys.readouterr().out)
    assert [bool(one) for one in output] == [True, False, True, False, False, True, True, False]
    assert "it rains" in output[2]
    assert "tpu fleet delete" in output[6]
    assert "tpu fleet delete" not in output[0]


def test_a_rate_is_of_those_that_work_and_time_left_follows_from_it() -> None:
    member, rates = KNOWN[0], show.Rates()

    def row(minute: int, samples: int, condition: Condition = Condition.WORKING) -> show.Row:
        status = WorkerStatus(1e6, "ready", work="running", samples=samples, of_samples=1000)
        one = Decision(member, Action.LEAVE, condition, "", status=status)
        (found,) = show.rows(replace(observation(member, age_s=60.0 * minute), decisions=[one]), rates)
        return found

    assert (row(1, 100).samples_per_s, row(1, 100).left_s) == (None, None)
    found = row(2, 400)
    assert (found.samples_per_s, found.left_s) == (5.0, 120.0)
    found = row(3, 400, Condition.RECOVERING)
    assert (found.samples_per_s, found.left_s) == (None, None)


def test_what_a_person_can_do_is_said_once_for_all_that_it_helps() -> None:
    some = fleet(3)
    held = [Decision(one, Action.HOLD, Condition.UNKNOWN, "a stray\n    fix: mend it") for one in some[:2]]
    fine = Decision(some[2], Action.LEAVE, Condition.WORKING, "its boot disk is full")
    found = replace(observation(*some), decisions=[*held, fine])
    assert show.remedies(found) == [f"{some[0].name} and 1 more: a stray\n    fix: mend it"]
    with Dashboard("fleet dev", Console(force_terminal=False)) as dashboard:
        dashboard.show(found)
    assert "fix: mend it" in dashboard.page
