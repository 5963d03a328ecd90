"""Decisions: a replacement needs an explicit report and a complete list."""

import random
from dataclasses import replace
from itertools import product

import pytest

from fleet.controller_state import ControllerState
from fleet.decide import Limits, decide
from fleet.model import Action, Cause, Claim, Condition, Decision, ObservedNode, View, WorkerStatus, ZoneView
from infra.google.failures import Failure, Kind
from infra.slices.names import command_id
from tests.fleet.conftest import OWNER, fleet, labels

NOW_S = 1_000_000.0
STATES = [  # every state of the TPU API, and one that it may have tomorrow
    "STATE_UNSPECIFIED", "CREATING", "READY", "RESTARTING", "REIMAGING", "DELETING", "REPAIRING", "STOPPED",
    "STOPPING", "STARTING", "PREEMPTED", "TERMINATED", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN", "", "NEW",
]  # fmt: skip
COMING = ("CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING", "UNHIDING")
MEANS = {  # all others: left, and unknown
    "READY": (Action.LEAVE, Condition.STARTING),
    **dict.fromkeys(("PREEMPTED", "TERMINATED"), (Action.REPLACE, Condition.RECOVERING)),
    **dict.fromkeys(COMING, (Action.WAIT, Condition.STARTING)),
    **dict.fromkeys(("DELETING", "STOPPING", "HIDING"), (Action.WAIT, Condition.RECOVERING)),
}


def view(
    *observed: ObservedNode,
    statuses: dict[str, list[WorkerStatus]] | None = None,
    silent: tuple[str, ...] = (),
) -> View:
    zones: dict[str, ZoneView] = {}
    for member in fleet(4):
        mapping = {item.name: item for item in observed if item.zone == member.zone}
        zones[member.zone] = ZoneView(mapping)
    for zone in silent:
        zones[zone] = ZoneView(None, Failure(Kind.TRANSIENT, "unavailable"))
    return View(NOW_S, zones, {} if statuses is None else statuses)


def observed(n: int, state: str = "READY", age_s: float = 100.0) -> ObservedNode:
    member = fleet(4)[n]
    return ObservedNode(member.name, member.zone, state, str(n), NOW_S - age_s, labels(member))


def decided(n: int, result: View, state: ControllerState | None = None) -> Decision:
    return decide(fleet(4), result, state or ControllerState(), Limits(), OWNER)[n]


@pytest.mark.parametrize("state", STATES)
def test_only_two_states_lead_to_a_replacement(state: str) -> None:
    """Of a node that isn't READY, whatever its workers said."""
    statuses = {} if state == "READY" else {fleet(4)[0].name: [WorkerStatus(NOW_S - 5, "failed", "bundle")]}
    result = decided(0, view(observed(0, state), statuses=statuses))
    assert (result.action, result.condition) == MEANS.get(state, (Action.LEAVE, Condition.UNKNOWN))


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED"])
def test_a_member_whose_work_is_done_is_not_paid_for_again(state: str) -> None:
    lost, mine = observed(0, state), command_id("extract tiny.toml")

    def result_of(status: WorkerStatus) -> Decision:
        return decided(0, view(lost, statuses={lost.name: [status]}))

    done = result_of(WorkerStatus(NOW_S - 50, "ready", work="done", command=mine))
    assert (done.action, done.condition) == (Action.LEAVE, Condition.DONE)
    assert state in done.why
    for other in (
        WorkerStatus(NOW_S - 50, "ready", work="done", command="of another"),
        WorkerStatus(NOW_S - 5000, "ready", work="done", command=mine),
        WorkerStatus(NOW_S - 50, "ready", work="running", command=mine),
    ):
        assert result_of(other).action is Action.REPLACE


def test_whether_work_is_done_is_waited_for_while_the_bucket_does_not_answer_and_not_for_ever() -> None:
    lost = replace(view(observed(0, "PREEMPTED")), statuses=None)
    state, key = ControllerState(listed_s=NOW_S - 600), fleet(4)[0].key
    result = decided(0, lost, state)
    assert (result.action, result.condition) == (Action.HOLD, Condition.UNKNOWN)
    assert "Google says PREEMPTED; whether its work is done isn't known" in result.why
    assert "the bucket didn't answer for 10 min, recreated after 30" in result.why
    assert decided(0, replace(lost, statuses={}), state).action is Action.REPLACE, "it says nothing of work"
    assert decided(1, lost, state).action is Action.CREATE, "where there is no node, none was taken away"
    without = [replace(member, run=None) for member in fleet(4)]
    assert decide(without, lost, state, Limits(), OWNER)[0].action is Action.REPLACE
    assert decided(0, lost, ControllerState(listed_s=NOW_S - 1800)).action is Action.REPLACE
    state.begin_attempt(key, Cause.PREEMPTION, NOW_S - 60)
    assert decided(0, lost, state).action is Action.REPLACE, "that was decided before"


def test_what_a_complete_list_lacks_is_created() -> None:
    result = decided(1, view(observed(0)))
    assert (result.action, result.cause) == (Action.CREATE, Cause.NEW)


def test_a_member_without_a_node_is_recovering_only_if_it_was_lost() -> None:
    """A member that was never created, or deleted once its work was done, is absent."""
    absent, key, name = view(observed(0)), fleet(4)[1].key, fleet(4)[1].name
    assert (decided(1, absent).condition, decided(1, absent).why) == (
        Condition.ABSENT, "there is no such node",
    )  # fmt: skip
    done = WorkerStatus(NOW_S - 500, "ready", work="done", command=command_id("extract tiny.toml"))
    ended = decided(1, view(observed(0), statuses={name: [done]}))
    assert (ended.action, ended.condition) == (Action.CREATE, Condition.ABSENT)
    assert ended.why == "there is no such node; its work was reported done"
    other = replace(done, command="of another")
    assert decided(1, view(observed(0), statuses={name: [other]})).why == "there is no such node"
    state = ControllerState()
    state.begin_attempt(key, Cause.PREEMPTION, NOW_S - 60)
    assert decided(1, absent, state).condition is Condition.RECOVERING


def test_a_zone_that_does_not_answer_is_left_alone() -> None:
    zone = fleet(4)[0].zone
    result = decided(0, view(silent=(zone,)))
    assert (result.action, result.condition) == (Action.WAIT, Condition.UNKNOWN)
    assert "transient" in result.why


def test_silence_counts_only_while_others_speak() -> None:
    old = {fleet(4)[0].name: [WorkerStatus(NOW_S - 4000, boot="ready", work="running")]}
    spoken = old | {fleet(4)[1].name: [WorkerStatus(NOW_S - 10, boot="ready", work="running")]}
    both = (observed(0, age_s=9000), observed(1, age_s=9000))
    assert decided(0, view(*both, statuses=old)).action is Action.LEAVE
    result = decided(0, view(*both, statuses=spoken))
    assert (result.action, result.cause) == (Action.REPLACE, Cause.FAILURE)
    assert decided(0, replace(view(*both), statuses=None)).action is Action.LEAVE
    for age_s, action in ((599.0, Action.REPLACE), (600.0, Action.LEAVE)):
        other = {fleet(4)[1].name: [WorkerStatus(NOW_S - age_s, work="running")]}
        assert decided(0, view(*both, statuses=old | other)).action is action, "lately, within 10 min"
    for age_s, action in ((1800.0, Action.LEAVE), (1801.0, Action.REPLACE)):
        young = {**spoken, fleet(4)[0].name: [WorkerStatus(NOW_S - age_s, work="running")]}
        assert decided(0, view(*both, statuses=young)).action is action


def test_the_words_of_the_node_before_it_say_nothing_of_a_new_one() -> None:
    name = fleet(4)[0].name
    old = {name: [WorkerStatus(NOW_S - 500, boot="failed", stage="python")]}
    assert decided(0, view(observed(0, age_s=400), statuses=old)).action is Action.LEAVE
    assert decided(0, view(observed(0, age_s=600), statuses=old)).action is Action.REPLACE


@pytest.mark.parametrize("work", ["done", "failed"])
def test_ended_work_is_not_started_again(work: str) -> None:
    """activation-extract relaunched finished jobs permanently."""
    statuses = {fleet(4)[0].name: [WorkerStatus(NOW_S - 90_000, boot="ready", work=work)]}
    others = {fleet(4)[1].name: [WorkerStatus(NOW_S - 1, work="running")]}
    assert decided(0, view(observed(0, age_s=99_000), statuses=statuses | others)).action is Action.LEAVE


def test_work_that_failed_on_a_full_disk_is_the_hosts_failure() -> None:
    """A broken command is left to people: another host would break it again."""
    name = fleet(4)[0].name
    failed = WorkerStatus(
        NOW_S - 5, boot="ready", work="failed", why="No space left on device", disk_full=True
    )
    result = decided(0, view(observed(0), statuses={name: [failed]}))
    assert (result.action, result.cause) == (Action.REPLACE, Cause.FAILURE)
    assert result.why == "its boot disk is full, and its work failed: No space left on device"
    result = decided(
        0, view(observed(0), statuses={name: [replace(failed, why="no such flag", disk_full=False)]})
    )
    assert (result.action, result.why) == (Action.LEAVE, "its work failed: no such flag")


def test_a_full_disk_is_shown_and_stops_no_work_that_goes_on() -> None:
    node = observed(0, age_s=9000)
    result = decided(
        0, view(node, statuses={node.name: [WorkerStatus(NOW_S - 5, work="running", disk_full=True)]})
    )
    assert (result.action, result.condition) == (Action.LEAVE, Condition.WORKING)
    assert result.why == "its boot disk is full"
    silent = {node.name: [WorkerStatus(NOW_S - 4000, work="running", disk_full=True)]}
    others = {fleet(4)[1].name: [WorkerStatus(NOW_S - 1, work="running")]}
    assert "its boot disk is full" in decided(0, view(node, statuses=silent | others)).why
    done = {node.name: [WorkerStatus(NOW_S - 4000, work="done", disk_full=True)]}
    assert decided(0, view(node, statuses=done | others)).condition is Condition.DONE


def test_why_a_boot_failed_is_said() -> None:
    statuses = {fleet(4)[0].name: [WorkerStatus(NOW_S - 1, boot="failed", stage="bundle", why="no manifest")]}
    assert decided(0, view(observed(0), statuses=statuses)).why == "its boot failed at bundle: no manifest"


def test_an_old_failure_of_one_worker_says_nothing_of_a_new_boot_or_of_work() -> None:
    """Objects of several workers, and of the node before, lie side by side."""
    old, new = NOW_S - 5000, NOW_S - 10
    node = observed(0, age_s=400)
    statuses = {node.name: [WorkerStatus(new, "booting", "python"), WorkerStatus(old, "failed", "bundle")]}
    assert decided(0, view(node, statuses=statuses)).condition is Condition.STARTING
    node = observed(0, age_s=9000)
    statuses = {node.name: [WorkerStatus(old, "failed", "bundle"), WorkerStatus(new, work="running")]}
    assert decided(0, view(node, statuses=statuses)).condition is Condition.WORKING
    statuses = {node.name: [WorkerStatus(new, "failed", "bundle"), WorkerStatus(old, work="running")]}
    assert decided(0, view(node, statuses=statuses)).action is Action.REPLACE


def test_hosts_that_never_spoke_are_shown_to_people_and_left() -> None:
    others = {fleet(4)[1].name: [WorkerStatus(NOW_S - 1, work="running")]}
    result = decided(0, view(observed(0, age_s=99_000), observed(1, age_s=99_000), statuses=others))
    assert (result.action, result.condition) == (Action.LEAVE, Condition.UNKNOWN)
    assert "no heartbeat: see its boot log" in result.why
    for node in (observed(0, age_s=1800.0), observed(0, age_s=NOW_S)):
        result = decided(0, view(node, statuses=others))
        assert (result.condition, result.why) == (Condition.STARTING, "no heartbeat yet")


def test_a_list_from_before_a_creation_says_nothing_of_what_was_created() -> None:
    state, member = ControllerState(), fleet(4)[0]
    state.begin_attempt(member.key, Cause.PREEMPTION, NOW_S - 300, instance="0")
    state.requested(member.key, member.zone, member.name)
    state.succeeded(member.key, member.zone, NOW_S - 60)
    assert decided(0, view(observed(0, "PREEMPTED")), state).action is Action.WAIT
    assert decided(0, view(), state).action is Action.WAIT
    assert decided(0, view(replace(observed(0, "PREEMPTED"), instance="8")), state).action is Action.REPLACE
    for later_s, actions in ((60, [Action.WAIT] * 2), (61, [Action.REPLACE, Action.CREATE])):
        looks = [replace(result, at_s=NOW_S + later_s) for result in (view(observed(0, "PREEMPTED")), view())]
        assert [decided(0, look, state).action for look in looks] == actions, "no list is older than 120 s"


def test_work_of_another_command_is_no_work_of_the_one_that_is_asked_for() -> None:
    """activation-extract's finished jobs: done stays done for the same command, and for no other."""
    node, now = fleet(4)[0], command_id("extract tiny.toml")
    old = "0" * 12
    cases = [("done", now, "its work is done"), ("done", "", "its work is done")]
    cases += [("done", old, "an older command"), ("failed", old, "an older command")]
    for work, command, why in cases:
        statuses = {
            node.name: [
                WorkerStatus(NOW_S - 90, boot="ready"),
                WorkerStatus(NOW_S - 50, work=work, command=command),
            ]
        }
        result = decided(0, view(observed(0), statuses=statuses))
        assert (result.action, why in result.why) == (Action.LEAVE, True), result
        assert ("fix: tpu fleet exec dev --slice extract -- sudo " in result.why) is (
            why == "an older command"
        )
        # A job that runs is left alone by the startup script.
        assert result.why.endswith("; then tpu restart dev --slice extract") is (why == "an older command")
    mixed = [
        WorkerStatus(NOW_S - 50, work="done", command=now),
        WorkerStatus(NOW_S - 50, work="done", command=old),
    ]
    result = decided(0, view(observed(0), statuses={node.name: mixed}))
    assert result.condition is Condition.STARTING
    others = {fleet(4)[1].name: [WorkerStatus(NOW_S - 1, work="running")]}
    silent = {node.name: [WorkerStatus(NOW_S - 90_000, work="done", command=old)]}
    assert decided(0, view(observed(0, age_s=1e6), statuses=silent | others)).action is Action.LEAVE
    hung = {node.name: [WorkerStatus(NOW_S - 90_000, work="running", command=old)]}
    result = decided(0, view(observed(0, age_s=1e6), statuses=hung | others))
    assert (result.action, result.claim) == (Action.REPLACE, Claim.SILENT)


def test_a_slice_whose_job_reported_within_two_heartbeats_is_never_replaced() -> None:
    """Regardless of the status of its boot, and of the job's command."""
    node = observed(0, age_s=9000)
    for age_s, command in product((1.0, 119.0, 120.0), (command_id("extract tiny.toml"), "0" * 12, "")):
        job = WorkerStatus(NOW_S - age_s, work="running", command=command)
        for boot in ("failed", "rerun-failed", "booting", "rerunning", "ready"):
            statuses = {node.name: [job, WorkerStatus(NOW_S - 0.5, boot, "bundle")]}
            result = decided(0, view(node, statuses=statuses))
            assert result.action is (Action.REPLACE if age_s >= 120 and boot == "failed" else Action.LEAVE)
            working = Condition.STARTING if command == "0" * 12 else Condition.WORKING
            assert result.condition is (Condition.FAILED if result.action is Action.REPLACE else working)
        full = WorkerStatus(NOW_S - 5, work="failed", disk_full=True)
        result = decided(0, view(node, statuses={node.name: [job, full]}))
        action = Action.REPLACE if age_s >= 120 else Action.LEAVE
        assert (result.action, result.condition) == (action, Condition.FAILED), "another worker's work failed"


def test_a_report_is_as_old_as_googles_clock_says_where_this_machines_is_behind() -> None:
    """A job of an hour ago isn't young for a clock that stood still: what others say dates the present."""
    node, ahead_s = observed(0, age_s=9000), 3600.0
    statuses = {
        node.name: [WorkerStatus(NOW_S + 5, work="running"), WorkerStatus(NOW_S + 9, "failed", "bundle")],
        fleet(4)[1].name: [WorkerStatus(NOW_S + ahead_s, work="done")],
    }
    assert decided(0, view(node, statuses=statuses)).action is Action.REPLACE
    del statuses[fleet(4)[1].name]
    assert decided(0, view(node, statuses=statuses)).action is Action.LEAVE


def test_a_rerun_that_failed_replaces_nothing_and_is_shown() -> None:
    """A script that is run a second time in one boot, by `fleet exec` say, fails beside a job that works."""
    node = observed(0, age_s=9000)
    others = {fleet(4)[1].name: [WorkerStatus(NOW_S - 1, work="running")]}
    for statuses, condition in (
        ([WorkerStatus(NOW_S - 30, work="running")], Condition.WORKING),
        ([WorkerStatus(NOW_S - 300, work="running")], Condition.WORKING),
        ([], Condition.FAILED),
    ):
        rerun = WorkerStatus(NOW_S - 9, "rerun-failed", "bundle")
        result = decided(0, view(node, statuses={node.name: [rerun, *statuses]} | others))
        assert (result.action, result.condition) == (Action.LEAVE, condition)
        assert "its startup script was run again and failed at bundle" in result.why


def test_what_lives_is_replaced_only_for_a_claim_that_can_be_proven() -> None:
    node, others = observed(0, age_s=9000), {fleet(4)[1].name: [WorkerStatus(NOW_S - 1, work="running")]}
    for status, claim in (
        (WorkerStatus(NOW_S - 5, "failed", "bundle"), Claim.BOOT_FAILED),
        (WorkerStatus(NOW_S - 5, work="failed", disk_full=True), Claim.WORK_FAILED),
        (WorkerStatus(NOW_S - 4000, work="running"), Claim.SILENT),
    ):
        result = decided(0, view(node, statuses={node.name: [status]} | others))
        assert (result.action, result.claim, result.instance) == (Action.REPLACE, claim, "0")
    assert decided(0, view(observed(0, "PREEMPTED"))).claim is Claim.NONE


def test_a_node_of_another_stack_is_left_alone_whatever_its_state() -> None:
    member = fleet(4)[0]
    for state, stack in product(("READY", "PREEMPTED", "CREATING", "STOPPED"), ("another", "")):
        foreign = replace(observed(0, state), labels=labels(member, stack))
        statuses = {member.name: [WorkerStatus(NOW_S - 5, "failed", "bundle")]}
        result = decided(0, view(foreign, statuses=statuses))
        assert (result.action, result.condition) == (Action.HOLD, Condition.UNKNOWN)
        assert "tpu fleet take-over" in result.why


@pytest.mark.parametrize(
    ("labels_", "why"),
    [
        (OWNER.labels, "it is of another stack, without an id"),
        ({**OWNER.labels, "stack": "another"}, "it is of another stack, another"),
        ({"environment": "dev"}, "a node of this name is there without our labels"),
    ],
)
def test_whose_a_foreign_node_is_is_said(labels_: dict[str, str], why: str) -> None:
    held = decided(0, view(replace(observed(0), labels=labels_)))
    assert (held.action, held.why.split("\n")[0]) == (Action.HOLD, why)


HELD = {"train": fleet(1)[0].zone}


@pytest.mark.parametrize(
    ("state", "held", "action", "why"),
    [
        ("PREEMPTED", HELD, Action.REPLACE, "Google says PREEMPTED"),
        ("", HELD, Action.CREATE, "there is no such node"),
        ("READY", {}, Action.HOLD, "settle dev tpu"),
        ("PREEMPTED", {}, Action.HOLD, "settle dev tpu"),
        ("DELETING", {}, Action.WAIT, "Google says DELETING"),
        ("", {}, Action.CREATE, "there is no such node"),
        ("PREEMPTED", None, Action.HOLD, "fix: tpu recover"),
        ("", None, Action.HOLD, "fix: tpu recover"),
        ("READY", None, Action.LEAVE, "no heartbeat yet"),
    ],
)
def test_a_named_slice_is_made_again_only_where_pulumi_is_there_and_holds_what_is_there(
    state: str, held: dict[str, str] | None, action: Action, why: str
) -> None:
    """With whichever bundle: named slices' nodes don't say with which one they booted."""
    member, known = replace(fleet(1, bundle="b1")[0], name="train", member=None, spread=()), ControllerState()
    known.boot_failed("b1", "on a fleet's member")
    existing = (
        view(ObservedNode("train", member.zone, state, "7", NOW_S - 100, OWNER.labels)) if state else view()
    )
    (result,) = decide([member], existing, known, Limits(), replace(OWNER, held=held))
    assert (result.action, why in result.why) == (action, True), result
    assert "no longer a zone of its fleet" not in result.why, "it has none"


@pytest.mark.parametrize(
    ("statuses", "action"),
    [
        ([WorkerStatus(NOW_S - 90, "ready", work="done")], Action.LEAVE),
        ([WorkerStatus(NOW_S - 9000, work="done"), WorkerStatus(NOW_S - 60, "booting")], Action.CREATE),
        ([WorkerStatus(NOW_S - 90, "ready", work="running")], Action.CREATE),
        (None, Action.HOLD),
    ],
)
def test_a_named_slice_that_was_deleted_is_made_again_unless_its_last_life_ended_done(
    statuses: list[WorkerStatus] | None, action: Action
) -> None:
    member, known = replace(fleet(1)[0], name="train", member=None, spread=()), ControllerState()
    known.listed_s = NOW_S - 60
    seen = replace(view(), statuses=None if statuses is None else {"train": statuses})
    (result,) = decide([member], seen, known, Limits(), replace(OWNER, held=HELD))
    assert result.action is action, result


def test_a_bundle_that_booted_nowhere_is_not_rolled_to_the_next() -> None:
    state = ControllerState()
    state.boot_failed("b1", "tpu-x-0: its boot failed at bundle")

    def result_of(bundle: str) -> list[Decision]:
        seen = view(observed(0), observed(1, "PREEMPTED"))
        return decide(fleet(4, bundle=bundle), seen, state, Limits(), OWNER)

    _, lost, absent, _ = result_of("b1")
    assert (lost.action, absent.action) == (Action.HOLD, Action.HOLD)
    assert "tpu-x-0: its boot failed at bundle\n    fix: tpu publish" in absent.why
    assert [item.action for item in result_of("b2")[1:3]] == [Action.REPLACE, Action.CREATE]
    state.booted("b1")
    assert [item.action for item in result_of("b1")[1:3]] == [Action.REPLACE, Action.CREATE]
    state.boot_failed("b1", "on another node")
    assert result_of("b1")[2].action is Action.CREATE, "it is that node's fault"


def test_a_member_in_a_zone_that_its_fleet_left_stays_and_says_how_to_go() -> None:
    member = replace(fleet(4)[0], zone="us-south1-ai1b")
    node = replace(observed(0), zone=member.zone)
    zones = {**view(observed(1)).zones, member.zone: ZoneView({node.name: node})}
    statuses = {node.name: [WorkerStatus(NOW_S - 5, work="running")]}
    (result,) = decide([member], View(NOW_S, zones, statuses), ControllerState(), Limits(), OWNER)
    assert (result.action, result.condition) == (Action.LEAVE, Condition.WORKING)
    assert "us-south1-ai1b is no longer a zone of its fleet: it stays" in result.why
    assert "fix: tpu fleet delete dev --slice extract --zones us-south1-ai1b" in result.why
    gone = {**zones, member.zone: ZoneView({node.name: replace(node, state="PREEMPTED")})}
    (result,) = decide([member], View(NOW_S, gone, statuses), ControllerState(), Limits(), OWNER)
    assert (result.action, result.cause) == (Action.REPLACE, Cause.PREEMPTION), "it is kept"
    for named in (
        replace(member, spread=(*member.spread, member.zone)),
        replace(member, others=(member.zone,)),
    ):
        assert decide([named], View(NOW_S, zones, statuses), ControllerState(), Limits(), OWNER)[0].why == ""


def test_a_member_that_is_not_seen_is_created_only_once_every_zone_it_may_be_in_has_answered() -> None:
    """Unknown is harmless: it may live in the one that is silent."""
    assert decided(0, view()).action is Action.CREATE
    for zone in {member.zone for member in fleet(4)}:
        assert decided(0, view(silent=(zone,))).action is Action.WAIT
        lost = next(n for n, member in enumerate(fleet(4)) if member.zone != zone)
        assert decided(lost, view(observed(lost, "PREEMPTED"), silent=(zone,))).action is Action.REPLACE, (
            "it is seen"
        )
    state, member = ControllerState(), replace(fleet(4)[0], zone="us-south1-ai1b")
    state.begin_attempt(member.key, Cause.NEW, NOW_S - 9000)
    state.requested(member.key, member.zone, member.name)
    state.succeeded(member.key, member.zone, NOW_S - 8000)
    assert decided(0, view(), state).action is Action.WAIT, "it was made last where nobody looked"


def refused(zone: str, kind: Kind = Kind.STOCK_OUT) -> ControllerState:
    state = ControllerState()
    state.begin_attempt("x", Cause.NEW, NOW_S)
    state.failed("x", zone, Failure(kind, "no"), NOW_S, random.Random(0))
    return state


def being_brought_back(zone: str, kind: Kind = Kind.STOCK_OUT) -> ControllerState:
    """The first member was deleted, and its zone refused it."""
    state = refused(zone, kind)
    state.begin_attempt(fleet(4)[0].key, Cause.PREEMPTION, NOW_S)
    return state


def movable(result: View, state: ControllerState, others: tuple[str, ...]) -> Decision:
    return decide(fleet(4, others=others), result, state, Limits(), OWNER)[0]


def test_where_a_zone_has_no_chips_the_next_is_tried_that_answers_and_was_not_refused() -> None:
    home, other = fleet(2)[0].zone, fleet(2)[1].zone
    lost = view(observed(0, "PREEMPTED"))
    result = movable(lost, refused(home), (other,))
    assert (result.action, result.zone) == (Action.REPLACE, home), "what is lost is deleted where it is"
    gone = view()
    result = movable(gone, being_brought_back(home), (other,))
    assert (result.action, result.zone) == (Action.CREATE, other)
    assert f"no chips in {home}, made in {other}" in result.why
    assert movable(gone, ControllerState(), (other,)).zone == home
    stays = [
        movable(gone, being_brought_back(home), ()),
        movable(gone, being_brought_back(home, Kind.QUOTA), (other,)),
        movable(gone, being_brought_back(home, Kind.UNKNOWN), (other,)),
        movable(view(silent=(other,)), being_brought_back(home), (other,)),
    ]
    both = being_brought_back(home)
    wait_s = both.refusal("", home).not_before_s - NOW_S
    assert f"retry in {wait_s:.0f} s" in stays[0].why
    both.refusals |= refused(other).refusals
    for decision in [*stays, movable(gone, both, (other,))]:
        assert (decision.action, decision.zone) == (Action.HOLD, home)


def test_a_creation_whose_answer_was_lost_is_not_asked_for_again_in_another_zone() -> None:
    """Though the zone refuses others meanwhile: it may have been made there, and Google's list is late."""
    home, other = fleet(2)[0].zone, fleet(2)[1].zone
    member, state = fleet(4)[0], being_brought_back(home)
    state.requested(member.key, home, member.name)
    result = movable(view(), state, (other,))
    assert (result.action, result.zone) == (Action.HOLD, home)
    state.failed(member.key, home, Failure(Kind.STOCK_OUT, "none"), NOW_S, random.Random(0))
    assert movable(view(), state, (other,)).zone == other, "now it was refused itself"


def test_a_healthy_member_is_never_moved() -> None:
    home, other = fleet(2)[0].zone, fleet(2)[1].zone
    result = movable(view(observed(0)), refused(home), (other,))
    assert (result.action, result.zone) == (Action.LEAVE, home)
