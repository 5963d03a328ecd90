"""One decision each: what destroys needs an explicit word and a complete answer."""

import random
from dataclasses import replace
from itertools import product

import pytest

from fleet.decide import Limits, decide
from fleet.memory import Memory
from fleet.state import Action, Cause, Claim, Condition, Decision, Seen, View, Word, ZoneView
from infra.gcp.failures import Failure, Kind
from infra.names import command_id
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


def view(*seen: Seen, words: dict[str, list[Word]] | None = None, silent: tuple[str, ...] = ()) -> View:
    zones: dict[str, ZoneView] = {}
    for member in fleet(4):
        there = {one.name: one for one in seen if one.zone == member.zone}
        zones[member.zone] = ZoneView(there)
    for zone in silent:
        zones[zone] = ZoneView(None, Failure(Kind.TRANSIENT, "unavailable"))
    return View(NOW_S, zones, {} if words is None else words)


def seen(n: int, state: str = "READY", age_s: float = 100.0) -> Seen:
    member = fleet(4)[n]
    return Seen(member.name, member.zone, state, str(n), NOW_S - age_s, labels(member))


def one(n: int, found: View, memory: Memory | None = None) -> Decision:
    return decide(fleet(4), found, memory or Memory(), Limits(), OWNER)[n]


@pytest.mark.parametrize("state", STATES)
def test_only_two_states_lead_to_a_replacement(state: str) -> None:
    """Of a node that isn't READY, whatever its workers said."""
    words = {} if state == "READY" else {fleet(4)[0].name: [Word(NOW_S - 5, "failed", "bundle")]}
    found = one(0, view(seen(0, state), words=words))
    assert (found.action, found.condition) == MEANS.get(state, (Action.LEAVE, Condition.UNKNOWN))


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED"])
def test_a_member_whose_work_is_done_is_not_paid_for_again(state: str) -> None:
    lost, mine = seen(0, state), command_id("extract tiny.toml")

    def found(word: Word) -> Decision:
        return one(0, view(lost, words={lost.name: [word]}))

    done = found(Word(NOW_S - 50, "ready", work="done", command=mine))
    assert (done.action, done.condition) == (Action.LEAVE, Condition.DONE)
    assert state in done.why
    for other in (
        Word(NOW_S - 50, "ready", work="done", command="of another"),
        Word(NOW_S - 5000, "ready", work="done", command=mine),
        Word(NOW_S - 50, "ready", work="running", command=mine),
    ):
        assert found(other).action is Action.REPLACE


def test_whether_work_is_done_is_waited_for_while_the_bucket_does_not_answer_and_not_for_ever() -> None:
    lost = replace(view(seen(0, "PREEMPTED")), words=None)
    memory, key = Memory(heard_s=NOW_S - 600), fleet(4)[0].key
    found = one(0, lost, memory)
    assert (found.action, found.condition) == (Action.HOLD, Condition.UNKNOWN)
    assert "Google says PREEMPTED; whether its work is done isn't known" in found.why
    assert "the bucket didn't answer for 10 min, made again after 30" in found.why
    assert one(0, replace(lost, words={}), memory).action is Action.REPLACE, "it says nothing of work"
    assert one(1, lost, memory).action is Action.CREATE, "where there is no node, none was taken away"
    without = [replace(member, run=None) for member in fleet(4)]
    assert decide(without, lost, memory, Limits(), OWNER)[0].action is Action.REPLACE
    assert one(0, lost, Memory(heard_s=NOW_S - 1800)).action is Action.REPLACE
    memory.attempted(key, Cause.PREEMPTION, NOW_S - 60)
    assert one(0, lost, memory).action is Action.REPLACE, "that was decided before"


def test_what_a_complete_list_lacks_is_created() -> None:
    found = one(1, view(seen(0)))
    assert (found.action, found.cause) == (Action.CREATE, Cause.NEW)


def test_a_zone_that_does_not_answer_is_left_alone() -> None:
    zone = fleet(4)[0].zone
    found = one(0, view(silent=(zone,)))
    assert (found.action, found.condition) == (Action.WAIT, Condition.UNKNOWN)
    assert "transient" in found.why


def test_silence_counts_only_while_others_speak() -> None:
    old = {fleet(4)[0].name: [Word(NOW_S - 4000, boot="ready", work="running")]}
    spoken = old | {fleet(4)[1].name: [Word(NOW_S - 10, boot="ready", work="running")]}
    both = (seen(0, age_s=9000), seen(1, age_s=9000))
    assert one(0, view(*both, words=old)).action is Action.LEAVE
    found = one(0, view(*both, words=spoken))
    assert (found.action, found.cause) == (Action.REPLACE, Cause.FAILURE)
    assert one(0, replace(view(*both), words=None)).action is Action.LEAVE
    for age_s, action in ((1800.0, Action.LEAVE), (1801.0, Action.REPLACE)):
        young = {**spoken, fleet(4)[0].name: [Word(NOW_S - age_s, work="running")]}
        assert one(0, view(*both, words=young)).action is action


def test_the_words_of_the_node_before_it_say_nothing_of_a_new_one() -> None:
    name = fleet(4)[0].name
    old = {name: [Word(NOW_S - 500, boot="failed", stage="python")]}
    assert one(0, view(seen(0, age_s=400), words=old)).action is Action.LEAVE
    assert one(0, view(seen(0, age_s=600), words=old)).action is Action.REPLACE


@pytest.mark.parametrize("work", ["done", "failed"])
def test_ended_work_is_not_started_again(work: str) -> None:
    """The ancestor relaunched finished jobs for ever."""
    words = {fleet(4)[0].name: [Word(NOW_S - 90_000, boot="ready", work=work)]}
    others = {fleet(4)[1].name: [Word(NOW_S - 1, work="running")]}
    assert one(0, view(seen(0, age_s=99_000), words=words | others)).action is Action.LEAVE


def test_work_that_failed_on_a_full_disk_is_the_hosts_failure() -> None:
    """A broken command is left to people: another host would break it again."""
    name = fleet(4)[0].name
    failed = Word(NOW_S - 5, boot="ready", work="failed", why="No space left on device", disk_full=True)
    found = one(0, view(seen(0), words={name: [failed]}))
    assert (found.action, found.cause) == (Action.REPLACE, Cause.FAILURE)
    assert found.why == "its boot disk is full, and its work failed: No space left on device"
    found = one(0, view(seen(0), words={name: [replace(failed, why="no such flag", disk_full=False)]}))
    assert (found.action, found.why) == (Action.LEAVE, "its work failed: no such flag")


def test_a_full_disk_is_shown_and_stops_no_work_that_goes_on() -> None:
    node = seen(0, age_s=9000)
    found = one(0, view(node, words={node.name: [Word(NOW_S - 5, work="running", disk_full=True)]}))
    assert (found.action, found.condition) == (Action.LEAVE, Condition.WORKING)
    assert found.why == "its boot disk is full"
    silent = {node.name: [Word(NOW_S - 4000, work="running", disk_full=True)]}
    others = {fleet(4)[1].name: [Word(NOW_S - 1, work="running")]}
    assert "its boot disk is full" in one(0, view(node, words=silent | others)).why
    done = {node.name: [Word(NOW_S - 4000, work="done", disk_full=True)]}
    assert one(0, view(node, words=done | others)).condition is Condition.DONE


def test_why_a_boot_failed_is_said() -> None:
    words = {fleet(4)[0].name: [Word(NOW_S - 1, boot="failed", stage="bundle", why="no manifest")]}
    assert one(0, view(seen(0), words=words)).why == "its boot failed at bundle: no manifest"


def test_an_old_failure_of_one_worker_says_nothing_of_a_new_boot_or_of_work() -> None:
    """Objects of several workers, and of the node before, lie side by side."""
    old, new = NOW_S - 5000, NOW_S - 10
    node = seen(0, age_s=400)
    words = {node.name: [Word(new, "booting", "python"), Word(old, "failed", "bundle")]}
    assert one(0, view(node, words=words)).condition is Condition.STARTING
    node = seen(0, age_s=9000)
    words = {node.name: [Word(old, "failed", "bundle"), Word(new, work="running")]}
    assert one(0, view(node, words=words)).condition is Condition.WORKING
    words = {node.name: [Word(new, "failed", "bundle"), Word(old, work="running")]}
    assert one(0, view(node, words=words)).action is Action.REPLACE


def test_hosts_that_never_spoke_are_shown_to_people_and_left() -> None:
    others = {fleet(4)[1].name: [Word(NOW_S - 1, work="running")]}
    found = one(0, view(seen(0, age_s=99_000), seen(1, age_s=99_000), words=others))
    assert (found.action, found.condition) == (Action.LEAVE, Condition.UNKNOWN)
    assert "no word of its workers" in found.why
    for node in (seen(0, age_s=1800.0), seen(0, age_s=NOW_S)):
        found = one(0, view(node, words=others))
        assert (found.condition, found.why) == (Condition.STARTING, "no word yet")


def test_a_list_from_before_a_creation_says_nothing_of_what_was_created() -> None:
    memory, member = Memory(), fleet(4)[0]
    memory.attempted(member.key, Cause.PREEMPTION, NOW_S - 300, instance="0")
    memory.asked(member.key, member.zone, member.name)
    memory.succeeded(member.key, member.zone, NOW_S - 60)
    assert one(0, view(seen(0, "PREEMPTED")), memory).action is Action.WAIT
    assert one(0, view(), memory).action is Action.WAIT
    assert one(0, view(replace(seen(0, "PREEMPTED"), instance="8")), memory).action is Action.REPLACE
    for later_s, actions in ((60, [Action.WAIT] * 2), (61, [Action.REPLACE, Action.CREATE])):
        looks = [replace(found, at_s=NOW_S + later_s) for found in (view(seen(0, "PREEMPTED")), view())]
        assert [one(0, found, memory).action for found in looks] == actions, "no list is older than 120 s"


def test_work_of_another_command_is_no_work_of_the_one_that_is_asked_for() -> None:
    """The ancestor's finished jobs: done stays done for the same command, and for no other."""
    node, now = fleet(4)[0], command_id("extract tiny.toml")
    old = "0" * 12
    cases = [("done", now, "its work is done"), ("done", "", "its work is done")]
    cases += [("done", old, "an older command"), ("failed", old, "an older command")]
    for work, command, why in cases:
        words = {node.name: [Word(NOW_S - 90, boot="ready"), Word(NOW_S - 50, work=work, command=command)]}
        found = one(0, view(seen(0), words=words))
        assert (found.action, why in found.why) == (Action.LEAVE, True), found
    mixed = [Word(NOW_S - 50, work="done", command=now), Word(NOW_S - 50, work="done", command=old)]
    found = one(0, view(seen(0), words={node.name: mixed}))
    assert found.condition is Condition.STARTING
    others = {fleet(4)[1].name: [Word(NOW_S - 1, work="running")]}
    silent = {node.name: [Word(NOW_S - 90_000, work="done", command=old)]}
    assert one(0, view(seen(0, age_s=1e6), words=silent | others)).action is Action.LEAVE
    hung = {node.name: [Word(NOW_S - 90_000, work="running", command=old)]}
    found = one(0, view(seen(0, age_s=1e6), words=hung | others))
    assert (found.action, found.claim) == (Action.REPLACE, Claim.SILENT)


def test_a_slice_whose_job_reported_within_two_heartbeats_is_never_replaced() -> None:
    """Whatever its boot says, and whichever command the job is of."""
    node = seen(0, age_s=9000)
    for age_s, command in product((1.0, 119.0, 120.0), (command_id("extract tiny.toml"), "0" * 12, "")):
        job = Word(NOW_S - age_s, work="running", command=command)
        for boot in ("failed", "rerun-failed", "booting", "rerunning", "ready"):
            words = {node.name: [job, Word(NOW_S - 0.5, boot, "bundle")]}
            found = one(0, view(node, words=words))
            assert found.action is (Action.REPLACE if age_s >= 120 and boot == "failed" else Action.LEAVE)
            working = Condition.STARTING if command == "0" * 12 else Condition.WORKING
            assert found.condition is (Condition.FAILED if found.action is Action.REPLACE else working)
        full = Word(NOW_S - 5, work="failed", disk_full=True)
        found = one(0, view(node, words={node.name: [job, full]}))
        action = Action.REPLACE if age_s >= 120 else Action.LEAVE
        assert (found.action, found.condition) == (action, Condition.FAILED), "another worker's work failed"


def test_a_report_is_as_old_as_googles_clock_says_where_this_machines_is_behind() -> None:
    """A job of an hour ago isn't young for a clock that stood still: what others say dates the present."""
    node, ahead_s = seen(0, age_s=9000), 3600.0
    words = {
        node.name: [Word(NOW_S + 5, work="running"), Word(NOW_S + 9, "failed", "bundle")],
        fleet(4)[1].name: [Word(NOW_S + ahead_s, work="done")],
    }
    assert one(0, view(node, words=words)).action is Action.REPLACE
    del words[fleet(4)[1].name]
    assert one(0, view(node, words=words)).action is Action.LEAVE


def test_a_rerun_that_failed_replaces_nothing_and_is_shown() -> None:
    """A script that is run a second time in one boot, by `fleet exec` say, fails beside a job that works."""
    node = seen(0, age_s=9000)
    others = {fleet(4)[1].name: [Word(NOW_S - 1, work="running")]}
    for words, condition in (
        ([Word(NOW_S - 30, work="running")], Condition.WORKING),
        ([Word(NOW_S - 300, work="running")], Condition.WORKING),
        ([], Condition.FAILED),
    ):
        rerun = Word(NOW_S - 9, "rerun-failed", "bundle")
        found = one(0, view(node, words={node.name: [rerun, *words]} | others))
        assert (found.action, found.condition) == (Action.LEAVE, condition)
        assert "its startup script was run again and failed at bundle" in found.why


def test_what_lives_is_replaced_only_for_a_claim_that_can_be_proven() -> None:
    node, others = seen(0, age_s=9000), {fleet(4)[1].name: [Word(NOW_S - 1, work="running")]}
    for word, claim in (
        (Word(NOW_S - 5, "failed", "bundle"), Claim.BOOT_FAILED),
        (Word(NOW_S - 5, work="failed", disk_full=True), Claim.WORK_FAILED),
        (Word(NOW_S - 4000, work="running"), Claim.SILENT),
    ):
        found = one(0, view(node, words={node.name: [word]} | others))
        assert (found.action, found.claim, found.instance) == (Action.REPLACE, claim, "0")
    assert one(0, view(seen(0, "PREEMPTED"))).claim is Claim.NONE


def test_a_node_of_another_stack_is_left_alone_whatever_its_state() -> None:
    member = fleet(4)[0]
    for state, stack in product(("READY", "PREEMPTED", "CREATING", "STOPPED"), ("another", "")):
        theirs = replace(seen(0, state), labels=labels(member, stack))
        words = {member.name: [Word(NOW_S - 5, "failed", "bundle")]}
        found = one(0, view(theirs, words=words))
        assert (found.action, found.condition) == (Action.HOLD, Condition.UNKNOWN)
        assert "python -m fleet take-over" in found.why


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (OWNER.labels, "it is of another stack, without an id"),
        ({**OWNER.labels, "stack": "another"}, "it is of another stack, another"),
        ({"environment": "dev"}, "a node of this name is there without our labels"),
    ],
)
def test_whose_a_foreign_node_is_is_said(found: dict[str, str], why: str) -> None:
    held = one(0, view(replace(seen(0), labels=found)))
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
        ("PREEMPTED", None, Action.HOLD, "fix: make recover"),
        ("", None, Action.HOLD, "fix: make recover"),
        ("READY", None, Action.LEAVE, "no word yet"),
    ],
)
def test_a_named_slice_is_made_again_only_where_pulumi_is_there_and_holds_what_is_there(
    state: str, held: dict[str, str] | None, action: Action, why: str
) -> None:
    """With whichever bundle: named slices' nodes don't say with which one they booted."""
    member, memory = replace(fleet(1)[0], name="train", member=None, spread=()), Memory()
    memory.boot_failed("b1", "on a fleet's member")
    there = view(Seen("train", member.zone, state, "7", NOW_S - 100, OWNER.labels)) if state else view()
    (found,) = decide([member], there, memory, Limits(), replace(OWNER, held=held), "b1")
    assert (found.action, why in found.why) == (action, True), found
    assert "zone of its fleet no more" not in found.why, "it has none"


def test_a_bundle_that_booted_nowhere_is_not_rolled_to_the_next() -> None:
    memory = Memory()
    memory.boot_failed("b1", "tpu-x-0: its boot failed at bundle")

    def found(bundle: str) -> list[Decision]:
        return decide(fleet(4), view(seen(0), seen(1, "PREEMPTED")), memory, Limits(), OWNER, bundle)

    _, lost, absent, _ = found("b1")
    assert (lost.action, absent.action) == (Action.HOLD, Action.HOLD)
    assert "tpu-x-0: its boot failed at bundle\n    fix: make publish" in absent.why
    assert [one.action for one in found("b2")[1:3]] == [Action.REPLACE, Action.CREATE]
    memory.booted("b1")
    assert [one.action for one in found("b1")[1:3]] == [Action.REPLACE, Action.CREATE]
    memory.boot_failed("b1", "on another node")
    assert found("b1")[2].action is Action.CREATE, "it is that node's fault"


def test_a_member_in_a_zone_that_its_fleet_left_stays_and_says_how_to_go() -> None:
    member = replace(fleet(4)[0], zone="us-south1-ai1b")
    node = replace(seen(0), zone=member.zone)
    zones = {**view(seen(1)).zones, member.zone: ZoneView({node.name: node})}
    words = {node.name: [Word(NOW_S - 5, work="running")]}
    (found,) = decide([member], View(NOW_S, zones, words), Memory(), Limits(), OWNER)
    assert (found.action, found.condition) == (Action.LEAVE, Condition.WORKING)
    assert "us-south1-ai1b is a zone of its fleet no more: it stays" in found.why
    assert "fix: python -m fleet delete dev --slice extract --zones us-south1-ai1b" in found.why
    gone = {**zones, member.zone: ZoneView({node.name: replace(node, state="PREEMPTED")})}
    (found,) = decide([member], View(NOW_S, gone, words), Memory(), Limits(), OWNER)
    assert (found.action, found.cause) == (Action.REPLACE, Cause.PREEMPTION), "it is kept"
    for named in (
        replace(member, spread=(*member.spread, member.zone)),
        replace(member, others=(member.zone,)),
    ):
        assert decide([named], View(NOW_S, zones, words), Memory(), Limits(), OWNER)[0].why == ""


def test_a_member_that_is_not_seen_is_created_only_once_every_zone_it_may_be_in_has_answered() -> None:
    """Unknown is harmless: it may live in the one that is silent."""
    assert one(0, view()).action is Action.CREATE
    for zone in {member.zone for member in fleet(4)}:
        assert one(0, view(silent=(zone,))).action is Action.WAIT
        lost = next(n for n, member in enumerate(fleet(4)) if member.zone != zone)
        assert one(lost, view(seen(lost, "PREEMPTED"), silent=(zone,))).action is Action.REPLACE, "it is seen"
    memory, member = Memory(), replace(fleet(4)[0], zone="us-south1-ai1b")
    memory.attempted(member.key, Cause.NEW, NOW_S - 9000)
    memory.asked(member.key, member.zone, member.name)
    memory.succeeded(member.key, member.zone, NOW_S - 8000)
    assert one(0, view(), memory).action is Action.WAIT, "it was made last where nobody looked"


def refused(zone: str, kind: Kind = Kind.STOCK_OUT) -> Memory:
    memory = Memory()
    memory.attempted("x", Cause.NEW, NOW_S)
    memory.failed("x", zone, Failure(kind, "no"), NOW_S, random.Random(0))
    return memory


def being_brought_back(zone: str, kind: Kind = Kind.STOCK_OUT) -> Memory:
    """The first member was deleted, and its zone refused it."""
    memory = refused(zone, kind)
    memory.attempted(fleet(4)[0].key, Cause.PREEMPTION, NOW_S)
    return memory


def movable(found: View, memory: Memory, others: tuple[str, ...]) -> Decision:
    return decide(fleet(4, others=others), found, memory, Limits(), OWNER)[0]


def test_where_a_zone_has_no_chips_the_next_is_tried_that_answers_and_was_not_refused() -> None:
    home, other = fleet(2)[0].zone, fleet(2)[1].zone
    lost = view(seen(0, "PREEMPTED"))
    found = movable(lost, refused(home), (other,))
    assert (found.action, found.zone) == (Action.REPLACE, home), "what is lost is deleted where it is"
    gone = view()
    found = movable(gone, being_brought_back(home), (other,))
    assert (found.action, found.zone) == (Action.CREATE, other)
    assert f"no chips in {home}, made in {other}" in found.why
    assert movable(gone, Memory(), (other,)).zone == home
    stays = [
        movable(gone, being_brought_back(home), ()),
        movable(gone, being_brought_back(home, Kind.QUOTA), (other,)),
        movable(gone, being_brought_back(home, Kind.UNKNOWN), (other,)),
        movable(view(silent=(other,)), being_brought_back(home), (other,)),
    ]
    both = being_brought_back(home)
    both.refusals |= refused(other).refusals
    for one_ in [*stays, movable(gone, both, (other,))]:
        assert (one_.action, one_.zone) == (Action.HOLD, home)


def test_a_creation_whose_answer_was_lost_is_not_asked_for_again_in_another_zone() -> None:
    """Though the zone refuses others meanwhile: it may have been made there, and Google's list is late."""
    home, other = fleet(2)[0].zone, fleet(2)[1].zone
    member, memory = fleet(4)[0], being_brought_back(home)
    memory.asked(member.key, home, member.name)
    found = movable(view(), memory, (other,))
    assert (found.action, found.zone) == (Action.HOLD, home)
    memory.failed(member.key, home, Failure(Kind.STOCK_OUT, "none"), NOW_S, random.Random(0))
    assert movable(view(), memory, (other,)).zone == other, "now it was refused itself"


def test_a_healthy_member_is_never_moved() -> None:
    home, other = fleet(2)[0].zone, fleet(2)[1].zone
    found = movable(view(seen(0)), refused(home), (other,))
    assert (found.action, found.zone) == (Action.LEAVE, home)
