"""Single decisions that the model doesn't tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.adhoc import OWNER, PHASE, WHY, Phase
from slurm.decide import (
    FAILED,
    HELD,
    Action,
    End,
    Slice,
    SliceStatus,
    State,
    Tell,
    Update,
    Want,
    World,
    decide,
)
from slurm.nodes import SlurmNode

ITEM = {"name": "tpu-0", "run": "slurmd a", "count": 1}
SLICE = Slice("tpu-0", ("tpu-0-w0", "tpu-0-w1"), ITEM)


def world(first: str, second: str, phase: Phase | None = None, **more: Any) -> World:
    """Return a world of one slice; a host is written "BASE FLAG … | REASON"."""
    known = {}
    for name, text in zip(SLICE.hosts, (first, second), strict=True):
        state, _, reason = text.partition(" | ")
        base, *flags = state.split()
        known[name] = SlurmNode(name, base, frozenset({"CLOUD", *flags}), reason)
    records: Mapping[str, Any] = {}
    if phase:
        records = {"tpu-0": {**ITEM, PHASE: phase, OWNER: {"from": "slurm dev"}, **more.pop("record", {})}}
    return World(known, records, more.pop("owned", set(records)), **more)


def actions(*words: Any, **more: Any) -> list[Action]:
    return decide([SLICE], world(*words, **more))


DOWN, UP, RUNS = "IDLE POWERED_DOWN", "ALLOCATED POWERING_UP", "ALLOCATED"


def test_only_the_rest_of_a_slice_keeps_it() -> None:
    assert actions(RUNS, "IDLE POWERING_DOWN", Phase.WANTED) == [
        Update(("tpu-0-w0",), State.ASAP, f"{HELD}its slice goes")
    ]
    assert actions("ALLOCATED POWER_DOWN DRAIN", DOWN, Phase.WANTED) == [], "told already"
    assert actions(DOWN, DOWN, Phase.WANTED) == [End("tpu-0", "no job has it any more")]
    leaving = actions("IDLE COMPLETING POWERED_DOWN", DOWN, Phase.WANTED)
    assert not any(isinstance(action, End) for action in leaving), "a job leaves it"


def test_a_host_that_boots_before_its_neighbour_is_no_half_slice() -> None:
    assert actions(RUNS, UP, Phase.WANTED) == []


def test_a_request_of_a_person_for_one_host_is_for_its_slice() -> None:
    assert actions(UP, DOWN) == [Want("tpu-0", ITEM)]
    assert actions(UP, DOWN, Phase.WANTED) == [Update(("tpu-0-w1",), State.UP)]


def test_a_slice_is_not_wanted_before_slurm_waits_for_its_hosts() -> None:
    """Slurm refuses a host that has booted before it was asked for."""
    assert actions("ALLOCATED POWERED_DOWN", "ALLOCATED POWERED_DOWN") == []


def test_a_job_that_has_begun_on_hosts_that_slurm_takes_for_powered_down_is_freed() -> None:
    """As after a loss of power of the controller, whose record of the slice is gone, too."""
    alone = "ALLOCATED POWERED_DOWN"
    freed = Update(SLICE.hosts, State.FORCE, f"{HELD}it has no slice")
    assert actions(alone, alone, running=frozenset(SLICE.hosts)) == [freed]
    assert actions(alone, alone, running=frozenset({"tpu-1-w0"})) == []


def test_a_slice_that_is_being_ended_is_waited_for_and_jobs_leave_what_is_left_of_it() -> None:
    assert actions(UP, UP, Phase.ENDING) == []
    assert actions(RUNS, UP, Phase.ENDING, record={WHY: "deleted by ann"}) == [
        Update(("tpu-0-w0",), State.FORCE, f"{HELD}deleted by ann")
    ]


def test_changed_settings_come_with_new_hosts_once_jobs_have_ended() -> None:
    changed = {"run": "slurmd b"}
    assert actions(RUNS, RUNS, Phase.WANTED, record=changed) == [
        Update(SLICE.hosts, State.ASAP, f"{HELD}the settings changed")
    ]
    assert actions(UP, UP, Phase.WANTED, record=changed) == [
        Update(SLICE.hosts, State.FORCE, f"{HELD}the settings changed")
    ]


def test_a_refusal_counts_only_for_a_slice_that_google_doesnt_have() -> None:
    refused = {"refused": {"tpu-0": "no capacity"}}
    assert actions(UP, UP, Phase.WANTED, **refused) == [], "Google wasn't seen"
    assert actions(UP, UP, Phase.WANTED, seen={"tpu-0": SliceStatus(exists=True)}, **refused) == []
    assert actions(UP, UP, Phase.WANTED, seen={"tpu-0": SliceStatus()}, **refused) == [
        Update(SLICE.hosts, State.FORCE, f"{HELD}no capacity")
    ]
    assert actions(DOWN, DOWN, **refused) == [Update(SLICE.hosts, State.DRAIN, f"{HELD}no capacity")]
    drained = f"IDLE DRAIN POWERED_DOWN | {HELD}no capacity"
    assert actions(drained, drained, **refused) == []
    assert actions(drained, drained) == [Update(SLICE.hosts, State.RESUME)]


def test_hosts_that_failed_or_were_drained_by_a_person_stay_so() -> None:
    for reason in (f"{FAILED}its boot failed", "ann looks at it"):
        node = f"IDLE DRAIN POWERED_DOWN | {reason}"
        assert actions(node, node) == []
    forced = f"IDLE POWERED_DOWN | {FAILED}its boot failed"
    assert [action.state for action in actions(forced, forced) if isinstance(action, Update)] == [
        State.DRAIN
    ] * 2


def test_a_host_that_rebooted_gets_jobs_again_unless_its_slice_is_lost_or_goes() -> None:
    rebooted, seen = "DOWN | Node unexpectedly rebooted", {"tpu-0": SliceStatus(exists=True, ready=True)}
    assert actions(rebooted, "IDLE", Phase.WANTED, seen=seen) == [Update(("tpu-0-w0",), State.RESUME)]
    assert actions("DOWN | Not responding", "IDLE", Phase.WANTED, seen=seen) == []
    lost = {"tpu-0": SliceStatus(exists=True, lost="Google says PREEMPTED")}
    (action,) = actions(rebooted, "IDLE", Phase.WANTED, seen=lost)
    assert isinstance(action, Update)
    assert action.state == State.FORCE
    leaving = actions(rebooted, "IDLE POWERING_DOWN", Phase.WANTED, seen=seen)
    assert [action.state for action in leaving if isinstance(action, Update)] == [State.ASAP]


def test_a_slow_creation_isnt_the_fault_of_the_nodes() -> None:
    late = "DOWN POWERED_DOWN | ResumeTimeout reached"
    assert actions(late, late, Phase.WANTED, seen={"tpu-0": SliceStatus()}) == [
        End("tpu-0", "no job has it any more")
    ]
    assert actions(late, late) == [Update(SLICE.hosts, State.RESUME)]
    joined = actions(late, late, Phase.WANTED, seen={"tpu-0": SliceStatus(True, True)})
    assert [type(action) for action in joined] == [Update, End]


def test_hosts_without_a_slice_free_their_jobs() -> None:
    assert actions(RUNS, RUNS, ended={"tpu-0": "deleted by a command"}) == [
        Update(SLICE.hosts, State.FORCE, f"{HELD}its slice has ended: deleted by a command")
    ]


def test_what_cant_be_read_or_isnt_known_is_left_alone() -> None:
    problem = "the record of tpu-0 isn't followed"
    assert actions(RUNS, UP, unread={"tpu-0": problem}) == [Tell("tpu-0", problem)]
    assert decide([SLICE], World({}, {}, set())) == []


def test_a_removed_slice_is_drained_and_then_ended() -> None:
    busy = decide([], world(RUNS, UP, Phase.WANTED))
    assert [(action.hosts, action.state) for action in busy if isinstance(action, Update)] == [
        (("tpu-0-w0",), State.ASAP), (("tpu-0-w1",), State.FORCE)
    ]  # fmt: skip
    assert [type(action) for action in decide([], world(DOWN, DOWN, Phase.WANTED))] == [End]
    assert [
        type(action) for action in decide([], World({}, world(DOWN, DOWN, Phase.WANTED).records, {"tpu-0"}))
    ] == [End]
    assert decide([], world(DOWN, DOWN, Phase.ENDING)) == []


def test_a_removed_slice_without_a_record_gets_no_job_while_slurm_has_it_for_longer() -> None:
    why = f"{HELD}the settings have no slice tpu-0 any more"
    other = {"tpu-1-w0": SlurmNode("tpu-1-w0", "ALLOCATED")}
    nodes = world(UP, DOWN).nodes

    def of_first(known: Mapping[str, SlurmNode], **more: Any) -> list[Action]:
        every = decide([], World(known, {}, set(), **more))
        return [action for action in every if isinstance(action, Update) and action.hosts != ("tpu-1-w0",)]

    assert of_first({**nodes, **other}) == [
        Update(("tpu-0-w0",), State.FORCE, why), Update(("tpu-0-w1",), State.DRAIN, why)
    ]  # fmt: skip
    assert of_first({**world("IDLE DRAIN POWERED_DOWN", "DOWN POWERED_DOWN").nodes, **other}) == []
    assert of_first({**nodes, **other}, unread={"tpu-0": "it can't be read"}) == []
    assert of_first(world(DOWN, DOWN).nodes) == [], "the files without them come now"


def test_a_lost_slice_frees_a_job_whose_hosts_slurm_takes_for_powered_down() -> None:
    stale = "ALLOCATED POWERED_DOWN"  # of a slurmctld that has lost its newest state with its power
    assert actions(stale, stale, Phase.WANTED) == []
    assert actions(stale, stale, Phase.WANTED, seen={"tpu-0": SliceStatus(True, lost="PREEMPTED")}) == [
        Update(SLICE.hosts, State.FORCE, f"{HELD}PREEMPTED")
    ]
