"""Limits of recoveries: daily budgets, short lives, and attempts."""

import random
from dataclasses import replace

import pytest

from fleet.controller_state import ControllerState
from fleet.decide import Limits, decide
from fleet.model import Action, Cause, Decision, View, WorkerStatus
from infra.google.failures import FOR_PEOPLE, Failure, Kind
from tests.fleet.conftest import OWNER, fleet
from tests.fleet.test_decide import NOW_S, decided, observed, view

FAILED = {fleet(4)[0].name: [WorkerStatus(NOW_S - 1, boot="failed", stage="bundle")]}


def brought_back(state: ControllerState, n: int, cause: Cause, at_s: float, took_s: float = 30.0) -> None:
    """A member was, by an attempt of then."""
    member = fleet(4)[n]
    state.begin_attempt(member.key, cause, at_s)
    state.requested(member.key, member.zone, member.name)
    state.succeeded(member.key, member.zone, at_s + took_s)


def test_a_member_that_keeps_failing_is_left_to_people() -> None:
    state = ControllerState()
    for hour in range(3):
        assert decided(0, view(observed(0), statuses=FAILED), state).action is Action.REPLACE
        brought_back(state, 0, Cause.FAILURE, NOW_S - 40_000 + 3600 * hour)
    result = decided(0, view(observed(0), statuses=FAILED), state)
    assert result.action is Action.HOLD
    assert "3 times" in result.why


@pytest.mark.parametrize(("spent", "actions"), [
    (0, [Action.REPLACE, Action.REPLACE]), (1, [Action.REPLACE, Action.HOLD]), (2, [Action.HOLD] * 2),
])  # fmt: skip
def test_failures_and_preemptions_have_budgets_of_their_own(spent: int, actions: list[Action]) -> None:
    state = ControllerState()
    for hour in range(5, 0, -1):
        brought_back(state, 0, Cause.FAILURE, NOW_S - 3600 * hour - 7200)
    assert decided(0, view(observed(0, "PREEMPTED")), state).action is Action.REPLACE
    for n in range(spent):
        brought_back(state, 2 + n, Cause.PREEMPTION, NOW_S - 9000)
    gone = view(observed(0, "PREEMPTED"), observed(1, "PREEMPTED"))
    result = decide(fleet(2), gone, state, Limits(preemptions_a_day=2), OWNER)
    assert [decision.action for decision in result] == actions


LOST = view(observed(0, "PREEMPTED"))
NEWER = replace(observed(0), instance="8")


@pytest.mark.parametrize(
    ("cause", "again", "newer"),
    [
        (Cause.FAILURE, view(observed(0), statuses=FAILED), view(NEWER, statuses=FAILED)),
        (Cause.PREEMPTION, LOST, view(replace(NEWER, state="PREEMPTED"))),
    ],
)
def test_an_attempt_that_has_begun_is_finished_though_it_was_the_last_of_the_day(
    cause: Cause, again: View, newer: View
) -> None:
    """Its deletion may have failed, its creation is owed; what is lost after it is another one."""
    state, limits = ControllerState(), Limits(preemptions_a_day=1, failures_a_day=1)
    state.begin_attempt(fleet(4)[0].key, cause, NOW_S - 60, instance="0")

    def result_of(observation: View) -> Decision:
        return decide(fleet(4), observation, state, limits, OWNER)[0]

    assert result_of(again).action is Action.REPLACE
    assert (result_of(view()).action, result_of(view()).cause) == (Action.CREATE, cause)
    assert (result_of(newer).action, result_of(newer).cause) == (Action.HOLD, cause)
    assert state.spent(cause, NOW_S) == 1


def test_what_fails_while_it_is_brought_back_after_a_preemption_is_a_failure() -> None:
    state = ControllerState()
    state.begin_attempt(fleet(4)[0].key, Cause.PREEMPTION, NOW_S - 60, instance="7")
    assert decided(0, view(observed(0), statuses=FAILED), state).cause is Cause.FAILURE


@pytest.mark.parametrize("left", [view(observed(0, "PREEMPTED")), view()])
@pytest.mark.parametrize(
    ("lived_s", "later_s", "held"),
    [(599.0, 121.0, True), (600.0, 121.0, False), (599.0, 3599.0, True), (599.0, 3600.0, False)],
)
def test_what_is_lost_as_soon_as_it_comes_back_is_held_an_hour(
    lived_s: float, later_s: float, held: bool, left: View
) -> None:
    """Twice in a row, whoever takes it: Google, or somebody who deletes it."""
    state = ControllerState()
    for times in (2, 1, 0):
        brought_back(state, 0, Cause.PREEMPTION, NOW_S - times * (lived_s + 30.0), took_s=30.0)
    result = decided(0, replace(left, at_s=NOW_S + 30.0 + later_s), state)
    why = "it was lost twice within 10 min of coming back: backing off for an hour"
    assert (result.action is Action.HOLD, why in result.why) == (held, held)
    state.retry_now()
    assert decided(0, replace(left, at_s=NOW_S + 30.0 + later_s), state).action is not Action.HOLD, (
        "asked for"
    )


def test_lives_that_a_user_ended_are_no_churn() -> None:
    state = ControllerState()
    for times in (2, 1, 0):
        brought_back(state, 0, Cause.PREEMPTION, NOW_S - times * 60.0)
    later = replace(view(observed(0, "PREEMPTED")), at_s=NOW_S + 151.0)
    assert decided(0, later, state).action is Action.HOLD
    state.deleted([fleet(4)[0].key])
    assert decided(0, later, state).action is Action.REPLACE


def test_requests_that_gave_no_node_are_one_attempt_and_no_churn() -> None:
    state, key, rng = ControllerState(), fleet(4)[0].key, random.Random(0)
    for minute in range(200, 0, -10):
        cause = Cause.PREEMPTION if minute == 200 else Cause.NEW  # the first one deleted it
        state.begin_attempt(key, cause, NOW_S - 60 * minute)
        state.requested(key, "z", "n")
        state.failed(key, "z", Failure(Kind.STOCK_OUT, "none"), NOW_S - 60 * minute + 30, rng)
    assert state.recovery_cause(key) is Cause.PREEMPTION, "what it is for in the end"
    assert state.placements(View(NOW_S, {}, None), 120.0) == {}, "refused: it isn't being made"
    state.requested(key, "z", "n")
    state.succeeded(key, "z", NOW_S + 60)
    assert state.spent(Cause.PREEMPTION, NOW_S) == 1
    assert not state.refusals


@pytest.mark.parametrize("kind", list(Kind))
def test_a_creation_that_may_have_come_about_is_asked_for_again_where_it_was(kind: Kind) -> None:
    """A connection that broke says nothing of the node; elsewhere would be a second one."""
    state, key = ControllerState(), fleet(4)[0].key
    state.begin_attempt(key, Cause.NEW, NOW_S)
    state.requested(key, "z", "n")
    state.failed(key, "z", Failure(kind, "no"), NOW_S, random.Random(0))
    requested = state.placements(View(NOW_S, {}, None), 120.0).get(key)
    assert requested == (("z", "n") if kind in (Kind.UNKNOWN, Kind.TRANSIENT) else None)


@pytest.mark.parametrize("kind", list(Kind))
def test_what_is_wrong_with_one_holds_no_neighbour(kind: Kind) -> None:
    state, rng = ControllerState(), random.Random(0)
    first, neighbour = (item for item in fleet(4) if item.zone == fleet(4)[0].zone)
    state.begin_attempt(first.key, Cause.PREEMPTION, NOW_S)
    state.failed(first.key, first.zone, Failure(kind, "no"), NOW_S, rng)
    held = state.refusal(neighbour.key, neighbour.zone).not_before_s > NOW_S
    assert held == (kind not in (Kind.INVALID, Kind.EXISTS))
    assert bool(state.refusal(first.key, first.zone).stopped) == (kind in FOR_PEOPLE)
