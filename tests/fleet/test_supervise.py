"""Supervision of a program's slice: created, recovered, deleted; beside monitors and others."""

import itertools
import json
import time
from dataclasses import replace
from typing import Any

import pytest

from fleet import monitor
from fleet.adhoc import AdHoc, Phase, wanted
from fleet.errors import FleetError
from fleet.model import WorkerStatus
from fleet.proof import Attested
from fleet.store import BucketStore, object_of
from fleet.supervise import EndedError, Supervisor
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from tests.fleet.command import fleet
from tests.fleet.conftest import OWNER
from tests.fleet.world import Cloud, _world, enter, settings  # noqa: F401
from tests.virtual_time import replace_time

NODE = "tpu-us-east5-b-2"  # two of the file's fleet are there
DONE = WorkerStatus(0.0, "ready", "launch", "done", command="")
ITEM: dict[str, Any] = {
    "name": "mine", "acceleratorType": "v6e-16", "zones": ["us-east5-b"], "count": 1, "spot": True,
    "run": "python train.py", "bundle": "cd" * 32, "checkpointFolder": "jobs/mine",
}  # fmt: skip


class Run:
    """A supervisor, and what it says."""

    def __init__(self, **more: Any):
        self.reports: list[str] = []
        self.of = Supervisor("dev", {**ITEM, **more}, self.reports.append)

    def begin(self) -> "Run":
        self.of.living()
        self.of.keep()
        return self

    def steps(self, count: int) -> bool:
        over = False
        for _ in range(count):
            over = self.of.over(self.of.step())
            time.sleep(0.05)  # requests are sent by threads
        return over


def known(world: Cloud) -> dict[str, Any]:
    return AdHoc(world, OWNER.stack).read()  # type: ignore[arg-type]


def test_its_node_is_created_with_its_own_bundle_and_recovered_without_a_monitor(world: Cloud) -> None:
    run = Run().begin()
    assert not run.steps(3)
    assert world.requests == [("create", NODE)]
    assert world.labels[NODE]["bundle"] == "cdcdcdcdcdcd"
    world.states[NODE] = "PREEMPTED"
    assert not run.steps(4)
    assert world.requests[1:] == [("delete", NODE), ("create", NODE)]
    assert f"{NODE}: replace (Google says PREEMPTED)" in run.reports
    (record,) = known(world).values()
    assert wanted(record) == ITEM
    assert (record["phase"], record["owner"]) == ("wanted", world.login)


def test_the_lease_is_held_only_while_there_is_something_to_do(world: Cloud) -> None:
    run = Run().begin()
    run.steps(4)
    state = BucketStore(world, OWNER.stack).read()  # type: ignore[arg-type]
    assert state.attempts, "read by another, though this one goes on looking"
    world.states["train"] = "PREEMPTED"
    assert fleet(["recover", "dev", "--yes"]) == 0, "of the file's slices, meanwhile"


def test_beside_a_monitor_it_only_looks(world: Cloud) -> None:
    other = BucketStore(world, OWNER.stack)  # type: ignore[arg-type]
    other.write(other.read())
    run = Run().begin()
    assert not run.steps(3)
    assert world.requests == []
    assert any("another controller acts" in line for line in run.reports)
    assert fleet(["status", "dev"]) == 0


def test_it_is_over_once_its_program_has_ended_on_every_worker(world: Cloud) -> None:
    run = Run().begin()
    assert not run.steps(3)
    world.statuses[NODE] = DONE
    assert run.steps(1)
    run.of.take_down("done")
    assert world.states[NODE] == ""
    assert known(world) == {}
    assert ("delete", NODE) in world.requests
    assert world.states["train"] == "READY", "nobody else's"


def test_a_zone_that_is_silent_at_the_end_is_waited_for_and_its_node_not_forgotten(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run().begin()
    run.steps(3)
    world.statuses[NODE] = DONE
    assert run.steps(1)
    world.silent = {"us-east5-b"}

    def answers(_: float) -> None:
        assert {*known(world)} == {"mine"}
        world.silent = set()

    replace_time(monkeypatch, "sleep", answers)
    run.of.take_down("done")
    assert world.requests[-1] == ("delete", NODE)
    assert known(world) == {}


@pytest.mark.parametrize(("final", "over"), [(True, True), (False, False)])
def test_a_failure_ends_it_only_if_it_is_not_started_again(final: bool, over: bool, world: Cloud) -> None:
    run = Run().begin()
    run.steps(3)
    world.statuses[NODE] = WorkerStatus(0.0, "ready", "launch", "failed", why="exit status 2", final=final)
    assert run.steps(1) is over


def test_a_program_that_had_ended_before_is_no_end_of_the_new_one(world: Cloud) -> None:
    first = Run().begin()
    first.steps(3)
    world.statuses[NODE] = DONE
    assert first.steps(1)
    again = Run(run="python train.py --lr 1")
    frozen = world.at_s - 3  # a step looks twice, where it acts
    ready, ended = again.of.living()
    assert (len(ready), ended, again.of.changed) == (1, True, True)
    again.of.keep()
    world.at_s = frozen  # the same heartbeat, seen again
    assert not again.of.over(again.of.step())
    assert again.steps(4), "a later one is of the new program"


def test_the_end_of_an_earlier_start_is_none_of_the_new_one_however_late_a_host_reports_it(
    world: Cloud,
) -> None:
    first = Run().begin()
    first.steps(3)
    world.statuses[NODE] = replace(DONE, began_s=996.0, last_began_s=1000.0, command="0" * 12)
    first.steps(1)
    again = Run(run="python train.py --lr 1").begin()
    assert not again.steps(3), "its service repeats the report after the installation"
    world.statuses[NODE] = replace(DONE, began_s=1001.9)
    assert not again.steps(1), "the same start, after the clock was set"
    world.statuses[NODE] = replace(DONE, began_s=1002.1)
    assert again.steps(1)


def test_another_bundle_reaches_hosts_that_live_by_their_metadata(world: Cloud) -> None:
    Run().begin().steps(3)
    again = Run(bundle="ef" * 32).begin()
    again.steps(3)
    assert world.updated == [NODE]
    assert world.labels[NODE]["bundle"] == "efefefefefef"
    assert world.requests == [("create", NODE)], "nothing was recreated"


def test_one_of_its_name_on_other_slices_is_refused(world: Cloud) -> None:
    Run().begin().steps(3)
    with pytest.raises(
        FleetError, match=r'(?s)with other slices: .*"v6e-16".*fix: --name ANOTHER, or tpu fleet'
    ):
        Run(acceleratorType="v6e-8")


def test_a_monitor_deletes_it_once_it_is_done_if_that_was_asked_for(
    world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Run(stopWhenDone=True).begin().steps(3)
    Run(name="stays", checkpointFolder="jobs/stays").begin().steps(3)
    world.statuses = dict.fromkeys((NODE, "tpu-us-east5-b-3"), DONE)
    looks = 0

    def enough(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks > 3:
            raise KeyboardInterrupt

    replace_time(monkeypatch, "sleep", enough)
    assert fleet(["monitor", "dev", "--monitor-interval", "1"]) == 130
    assert {*known(world)} == {"stays"}
    assert [name for verb, name in world.requests if verb == "delete"] == [NODE]
    output = capsys.readouterr()
    assert output.err.count("mine has ended (done); output: tpu logs dev mine") == 1
    assert "mine/0 is removed" not in output.err
    deleted = "all are done, and paid for until they are deleted: tpu fleet delete dev --slice stays\n"
    assert f"stays: {deleted}" in output.out, "though others work"
    assert "nothing is left to monitor" not in output.err


def test_a_monitor_of_all_says_once_that_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = settings([])
    world = Cloud(empty)
    enter(monkeypatch, world, empty, file=[])
    Run(stopWhenDone=True).begin().steps(3)
    world.statuses["tpu-us-east5-b-0"] = DONE
    looks = itertools.count()

    def enough(_: float) -> None:
        if next(looks) > 5:
            raise KeyboardInterrupt

    replace_time(monkeypatch, "sleep", enough)
    assert fleet(["monitor", "dev", "--monitor-interval", "1"]) == 130
    output = capsys.readouterr()
    assert output.err.count("nothing is left to monitor: Ctrl+C") == 1
    assert output.err.count("mine has ended (done); output: tpu logs dev mine") == 1


@pytest.mark.parametrize(("flags", "deletions"), [([], 2), (["--zones", "us-east5-a"], 0)])
def test_a_monitor_of_a_part_of_an_ended_fleet_deletes_none_of_it(
    flags: list[str], deletions: int, world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = {**ITEM, "zones": ["us-east5-a", "us-east5-b"], "count": 2, "stopWhenDone": True}
    AdHoc(world, OWNER.stack).keep("mine", item)  # type: ignore[arg-type]
    assert fleet(["create", "dev", "--slice", "mine", "--yes"]) == 0
    world.statuses = dict.fromkeys((name for _, name in world.requests), DONE)

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(monitor, "rest", end)  # after its first step
    assert fleet(["monitor", "dev", "--slice", "mine", *flags]) == 130
    assert [verb for verb, _ in world.requests].count("delete") == deletions


def test_a_monitor_that_took_it_down_leaves_nothing_to_do(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(stopWhenDone=True).begin()
    run.steps(3)
    other = BucketStore(world, OWNER.stack)  # type: ignore[arg-type]
    other.write(other.read())

    def taken_down(_: float) -> None:
        saved = AdHoc(world, OWNER.stack)  # type: ignore[arg-type]
        saved.keep("mine", saved.read()["mine"], Phase.ENDED, "done")

    replace_time(monkeypatch, "sleep", taken_down)
    run.of.take_down("done")
    assert ("delete", NODE) not in world.requests


def test_who_has_lost_the_lease_looks_on(world: Cloud) -> None:
    run = Run().begin()
    run.of.step()
    time.sleep(0.1)
    assert world.requests == [("create", NODE)], "it holds the lease"
    text, generation = world.objects[object_of(OWNER.stack)]
    leader = {"id": "another", "host": "elsewhere", "process": 1, "at_s": time.time()}
    world.objects[object_of(OWNER.stack)] = json.dumps({**json.loads(text), "leader": leader}), generation + 1
    world.states[NODE] = "PREEMPTED"
    before = len(world.requests)
    run.steps(4)
    assert world.requests[before:] == [], "nothing is asked of Google without it"
    assert any("another controller acts, on elsewhere" in line for line in run.reports)


def test_a_bucket_that_does_not_answer_is_asked_again(world: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run().begin()
    read = world.read

    def silent(name: str) -> Any:
        if name == object_of(OWNER.stack):
            raise RequestError(Failure(Kind.TRANSIENT, "503"))
        return read(name)

    monkeypatch.setattr(world, "read", silent)
    assert not run.steps(2)
    assert world.requests == []
    monkeypatch.setattr(world, "read", read)
    assert not run.steps(3)
    assert world.requests == [("create", NODE)]


FINAL = WorkerStatus(0.0, "ready", "launch", "failed", final=True)
WORKS, FAILS = Attested("ready", job="running"), Attested("ready", job="failed")


@pytest.mark.parametrize(
    ("forged", "attests"),
    [
        (DONE, [WORKS]),
        (DONE, [Attested("ready", job="done"), WORKS]),
        (DONE, []),
        (FINAL, [WORKS]),
        (FINAL, [FAILS]),  # which is started again
    ],
)
def test_a_heartbeat_that_its_node_does_not_attest_ends_and_deletes_nothing(
    forged: WorkerStatus, attests: list[Attested], world: Cloud, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Any host can write any node's heartbeat."""
    run = Run(stopWhenDone=True).begin()
    run.steps(3)
    world.statuses[NODE], world.attests[NODE] = forged, attests
    assert not run.steps(3)
    (line,) = [line for line in run.reports if "isn't believed" in line]
    assert line.startswith(f"{NODE}: work ")
    assert Run(stopWhenDone=True).of.living()[1] is False, "nor is it started again for that"
    rest = iter((None, None))

    def end(*_: object) -> None:
        if next(rest, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr(monitor, "rest", end)
    assert fleet(["monitor", "dev"]) == 130
    assert f"mine: not deleted: {NODE}: work " in caplog.text
    assert [verb for verb, _ in world.requests] == ["create"]
    assert {*known(world)} == {"mine"}


def test_a_node_that_google_took_away_needs_no_other_proof(world: Cloud) -> None:
    run = Run(stopWhenDone=True).begin()
    run.steps(3)
    world.statuses[NODE], world.attests[NODE] = DONE, []
    seen = world.observe

    def preempted(zones: Any) -> Any:
        world.states[NODE] = "READY"
        statuses = seen(zones).statuses
        world.states[NODE] = "PREEMPTED"
        return replace(seen(zones), statuses=statuses)

    world.observe = preempted  # type: ignore[method-assign]
    assert run.of.over(run.of.step())


@pytest.mark.parametrize("phase", [Phase.ENDING, Phase.ENDED, None])
def test_who_is_attached_creates_nothing_once_its_record_does_not_want_it(
    phase: Phase | None, world: Cloud
) -> None:
    run = Run().begin()
    run.steps(3)
    saved, before = AdHoc(world, OWNER.stack), len(world.requests)  # type: ignore[arg-type]
    if phase:
        saved.keep("mine", saved.read()["mine"], phase, "deleted by a command")
    else:
        world.objects.pop(f"{OWNER.stack}/fleets/mine.json")
    world.states[NODE] = ""
    with pytest.raises(EndedError, match="nothing is created") as ended:
        run.steps(3)
    assert ("tpu fleet delete dev --slice mine" in str(ended.value)) == (phase is Phase.ENDING)
    assert not ended.value.done
    assert world.requests[before:] == []


def test_who_is_attached_leaves_it_to_another_commands_program(world: Cloud) -> None:
    run = Run().begin()
    run.steps(3)
    Run(bundle="ef" * 32).begin().steps(3)
    with pytest.raises(EndedError, match="another program now"):
        run.steps(3)
    assert world.updated == [NODE], "by the other alone"
    with pytest.raises(EndedError, match="another program now"):
        run.of.take_down("done")
    assert world.states[NODE] == "READY"


def test_a_record_that_can_not_be_read_creates_nothing_and_ends_nothing(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read = Run().begin(), world.read

    def silent(name: str) -> Any:
        if "/fleets/" in name:
            raise RequestError(Failure(Kind.TRANSIENT, "503"))
        return read(name)

    with monkeypatch.context() as outage:
        outage.setattr(world, "read", silent)
        assert not run.steps(3)
        assert world.requests == []
    assert not run.steps(3)
    assert world.requests == [("create", NODE)]


def test_a_deletion_that_dies_after_its_mark_is_completed_by_a_monitor(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(stopWhenDone=True).begin()
    run.steps(3)
    world.statuses[NODE] = DONE
    assert run.steps(1)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(world, "delete", dies)
        with pytest.raises(KeyboardInterrupt):
            run.of.take_down("done")
    assert (run.of.phase, known(world)["mine"]["phase"]) == (Phase.ENDING, "ending")
    world.states[NODE] = "PREEMPTED"
    monkeypatch.setattr(monitor, "rest", dies)
    assert fleet(["monitor", "dev"]) == 130
    assert [verb for verb, _ in world.requests] == ["create", "delete"]
    assert known(world) == {}
    with pytest.raises(EndedError, match="ended elsewhere") as ended:
        run.steps(1)
    assert ended.value.done
