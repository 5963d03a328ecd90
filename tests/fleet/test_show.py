"""Rows, prices and lines of an observation."""

from dataclasses import replace

import pytest
from rich.console import Console

from fleet import show
from fleet.dashboard import Dashboard
from fleet.model import Action, Condition, Decision, ObservedNode, View, WorkerStatus, ZoneView
from fleet.observation import Observation
from infra.catalog import CATALOG
from infra.slices.nodes import Node
from tests.fleet.conftest import fleet, labels

HOUR_S = 3600.0
KNOWN = [entry for entry in fleet(8, zones=8) if CATALOG.price(entry.zone).spot][:2]
UNKNOWN = [item for item in fleet(8, zones=8) if CATALOG.price(item.zone).spot is None][:1]


def observation(*members: Node, age_s: float = 2 * HOUR_S) -> Observation:
    nodes = [(member, ObservedNode(member.name, member.zone, "READY", "1", 1e6)) for member in members]
    zones = {item.zone: ZoneView({item.name: observed}) for item, observed in nodes}
    return Observation(View(1e6 + age_s, zones, {}), members, [], [], [], nodes=nodes)


def test_the_price_so_far_is_that_of_the_chips_since_their_creation() -> None:
    spot, on_demand = KNOWN[0], replace(KNOWN[1], spot=False)
    spent = show.Spent(observation(spot, on_demand))
    element = CATALOG.price(spot.zone).spot, CATALOG.price(on_demand.zone).on_demand
    assert spent.dollars == pytest.approx(2 * 8 * sum(item or 0 for item in element))
    assert spent.dollars > 0
    assert (spent.chip_hours, spent.unknown) == (32, [])
    spent.note(observation(spot, age_s=3 * HOUR_S))
    assert spent.chip_hours == 40, "older"
    recreated = observation(spot, age_s=HOUR_S)
    again = [(member, replace(observed, instance="2")) for member, observed in recreated.nodes]
    spent.note(replace(recreated, nodes=again))
    assert spent.chip_hours == 48, "and both nodes of that name"


def test_a_price_that_nobody_knows_is_said_and_not_taken_for_none(capsys: pytest.CaptureFixture[str]) -> None:
    known, reserved, nowhere = KNOWN[0], replace(KNOWN[1], reserved=True), UNKNOWN[0]
    several = observation(known, reserved, nowhere)
    spent = show.Spent(several)
    assert spent.dollars == show.Spent(observation(known)).dollars
    assert spent.unknown == sorted([reserved.name, nowhere.name])
    assert show.as_json(several, [])["dollars_so_far"] is None
    with Dashboard("fleet dev", Console(force_terminal=False)) as dashboard:
        dashboard.show(several)
    price = f"${spent.dollars:,.2f}"
    assert f"known prices alone: {price} so far, 16.0 chip-hours" in capsys.readouterr().out
    assert f"for 16.0 chip-hours<b>{price} +" in dashboard.page
    assert "without a price, since the catalog has none: " in dashboard.page


def test_the_price_of_a_replaced_node_remains_on_the_dashboard(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = observation(KNOWN[0]), observation(KNOWN[1])
    with Dashboard("fleet dev", Console(force_terminal=False)) as dashboard:
        dashboard.show(first)
        dashboard.show(second)
    both = show.Spent(first, second).dollars
    assert both > max(show.Spent(first).dollars, show.Spent(second).dollars)
    assert f"${both:,.2f}" in dashboard.page


def test_without_a_terminal_a_line_is_said_where_something_changed_and_once_an_hour(
    capsys: pytest.CaptureFixture[str],
) -> None:
    member = KNOWN[0]

    def at(minute: int, condition: Condition, *events: str) -> Observation:
        decision = Decision(member, Action.LEAVE, condition, "")
        return replace(observation(member, age_s=60.0 * minute), decisions=[decision], events=list(events))

    output = []
    with Dashboard("fleet dev", Console(force_terminal=False)) as dashboard:
        for element in (
            at(1, Condition.WORKING), at(2, Condition.WORKING), at(3, Condition.WORKING, "it rains"),
            at(4, Condition.WORKING), at(62, Condition.WORKING), at(63, Condition.WORKING),
            at(64, Condition.DONE), at(65, Condition.DONE),
        ):  # fmt: skip
            dashboard.show(element)
            output.append(capsys.readouterr().out)
    assert [bool(item) for item in output] == [True, False, True, False, False, True, True, False]
    assert "it rains" not in output[2], "the log has it"
    assert "it rains" in dashboard.page
    assert "tpu fleet delete" in output[6]
    assert "tpu fleet delete" not in output[0]


def test_a_fleet_is_done_once_all_of_its_members_are() -> None:
    first, second = fleet(2, zones=1)

    def remarks(state: Condition) -> str:
        decisions = [
            Decision(first, Action.LEAVE, Condition.DONE, ""), Decision(second, Action.WAIT, state, ""),
        ]  # fmt: skip
        return "\n".join(show.remarks(replace(observation(first), decisions=decisions)))

    assert "all are done" not in remarks(Condition.RECOVERING)
    deleted = "all are done, and paid for until they are deleted: tpu fleet delete"
    assert f"{first.slice}: {deleted}" in remarks(Condition.DONE)


@pytest.mark.parametrize("state", Condition)
def test_the_stack_is_to_be_taken_down_once_all_are_done_and_all_are_its_own(state: Condition) -> None:
    first, second = (replace(KNOWN[0], name=name, slice=name, member=None) for name in "ab")

    def remarks(*others: Decision) -> str:
        decisions = [Decision(first, Action.LEAVE, Condition.DONE, ""), *others]
        return "\n".join(show.remarks(replace(observation(first), decisions=decisions)))

    down, named = "deleted: tpu down ENV", "deleted: delete the entry in Pulumi.ENV.yaml, then tpu up ENV"
    assert down in remarks()
    expected = down if state is Condition.DONE else named
    assert expected in remarks(Decision(second, Action.WAIT, state, ""))
    assert expected in remarks(Decision(KNOWN[1], Action.WAIT, state, ""))


def test_only_what_stays_away_once_deleted_is_deleted_by_its_name() -> None:
    """The stack recreates a named slice, which was advised to be deleted beside fleets, and billed again."""
    named, adhoc = replace(KNOWN[0], name="tune", slice="tune", member=None), KNOWN[1]
    status = WorkerStatus(1e6, "ready", work="failed", final=True)

    def remarks(first: Condition, second: Condition) -> str:
        both = replace(observation(named), nodes=[*observation(named).nodes, *observation(adhoc).nodes])
        decisions = [
            Decision(named, Action.LEAVE, first, "", status=status),
            Decision(adhoc, Action.LEAVE, second, ""),
        ]
        return "\n".join(show.remarks(replace(both, decisions=decisions)))

    fleet_alone = f"tpu fleet delete ENV --slice {adhoc.slice}"
    assert f"deleted: {fleet_alone}, then tpu down ENV" in remarks(Condition.DONE, Condition.DONE)
    working = remarks(Condition.DONE, Condition.WORKING)
    assert "tune: all are done" in working
    assert "tpu fleet delete" not in working
    failed = remarks(Condition.FAILED, Condition.DONE)
    assert fleet_alone in failed
    assert "tune, or delete the entry in Pulumi.ENV.yaml, then tpu up ENV" in failed


@pytest.mark.parametrize(("final", "lines"), [(True, 1), (False, 0)])
def test_a_program_that_failed_for_good_is_said_with_the_next_command(final: bool, lines: int) -> None:
    member = KNOWN[0]
    status = WorkerStatus(1e6, "ready", work="failed", final=final)
    decision = Decision(member, Action.LEAVE, Condition.FAILED, "its work failed", status=status)
    remarks = show.remarks(replace(observation(member), decisions=[decision]))
    advice = f"tpu logs ENV {member.slice}; then tpu restart ENV"
    assert sum(advice in line for line in remarks) == lines


def test_a_rate_is_of_those_that_work_and_time_left_follows_from_it() -> None:
    member, rates = KNOWN[0], show.Rates()

    def row(minute: int, samples: int, condition: Condition = Condition.WORKING) -> show.MemberRow:
        status = WorkerStatus(1e6, "ready", work="running", samples=samples, of_samples=1000)
        decision = Decision(member, Action.LEAVE, condition, "", status=status)
        (result,) = show.rows(replace(observation(member, age_s=60.0 * minute), decisions=[decision]), rates)
        return result

    assert (row(1, 0).slice, row(1, 0).node) == (member.slice, member.name)
    assert (row(1, 100).samples_per_s, row(1, 100).left_s) == (None, None)
    actual = row(2, 400)
    assert (actual.samples_per_s, actual.left_s) == (5.0, 120.0)
    actual = row(3, 400, Condition.RECOVERING)
    assert (actual.samples_per_s, actual.left_s) == (None, None)


def test_what_a_person_can_do_is_said_once_for_all_that_it_helps() -> None:
    several = fleet(3)
    held = [
        Decision(item, Action.HOLD, Condition.UNKNOWN, "a stray\n    fix: mend it") for item in several[:2]
    ]
    fine = Decision(several[2], Action.LEAVE, Condition.WORKING, "its boot disk is full")
    result = replace(observation(*several), decisions=[*held, fine])
    assert show.remedies(result) == [f"{several[0].name} and 1 more: a stray\n    fix: mend it"]
    with Dashboard("fleet dev", Console(force_terminal=False)) as dashboard:
        dashboard.show(result)
    assert "fix: mend it" in dashboard.page


@pytest.mark.parametrize(
    ("condition", "work", "samples"),
    [
        (Condition.RECOVERING, "", 336), (Condition.STARTING, "", 336), (Condition.ABSENT, "", 0),
        (Condition.WORKING, "running", 10),
    ],
)  # fmt: skip
def test_what_a_lost_slice_has_stored_is_counted_until_its_new_node_works(
    condition: Condition, work: str, samples: int
) -> None:
    (member,) = fleet(1)
    stored = WorkerStatus(100.0, work="running", samples=336, of_samples=400, shards=2, size_bytes=5)
    created = ObservedNode(member.name, member.zone, "READY", "2", 200.0, labels(member))
    view = View(300.0, {member.zone: ZoneView({member.name: created})}, {member.name: [stored]})
    status = WorkerStatus(250.0, work=work, samples=10) if work else None
    decision = Decision(member, Action.WAIT, condition, "", status=status)
    (row,) = show.rows(Observation(view, [member], [decision], [], []), show.Rates())
    assert (row.samples, row.shards) == (samples, 2 if samples == 336 else 0)
