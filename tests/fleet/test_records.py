"""Bad records, leases of wrong clocks, nodes twice: a message with the next command, and nothing done."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fleet.adhoc import AdHoc, Phase
from fleet.controller_state import ControllerState
from fleet.errors import FleetError
from fleet.store import BucketStore, LeaseHeldError, object_of
from infra.core import names
from infra.engine import refusals
from tests.cli.call import call
from tests.fleet.command import fleet
from tests.fleet.conftest import OWNER
from tests.fleet.test_supervise import ITEM, NODE, Run, known
from tests.fleet.world import Cloud, _world, settings  # noqa: F401

OBJECT = f"{OWNER.stack}/fleets/mine.json"


def stored(world: Cloud, **more: Any) -> None:
    """Change the record as another program would."""
    text, generation = world.objects[OBJECT]
    world.objects[OBJECT] = json.dumps({**json.loads(text), **more}), generation + 1


ENTRY = {"zone": "us-east5-b", "name": "mine-0", "id": "7"}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "newer version": ({"version": 3}, "its version is 3, known is 2\n    fix: update this checkout"),
    "earlier version": (
        {"version": 1},
        "its version is 1, known is 2\n    fix: end the fleet with the version",
    ),
    "newer phase": ({"phase": "resting"}, "its phase 'resting' isn't known\n    fix: update this checkout"),
    "other environment": (
        {"environment": "prod"},
        "is of the environment prod\n    fix: tpu fleet list prod",
    ),
    "other name": ({"name": "yours"}, "its name is 'yours'\n    fix: repair it, or delete it"),
    "no schema": ({"owner": 5}, "can't be read: owner = int: must be an object"),
    "two nodes of one id": (
        {"nodes": {"0": ENTRY, "1": {**ENTRY, "name": "other"}}},
        "its nodes 0 and 1 have both the id 7\n    fix: gcloud compute tpus tpu-vm describe NODE",
    ),
    "two nodes of one place": (
        {"nodes": {"0": ENTRY, "1": {**ENTRY, "id": "8"}}},
        "its nodes 0 and 1 have both the place us-east5-b/mine-0\n    fix: gcloud compute tpus tpu-vm",
    ),
    "no nodes": ({"nodes": {"first": ENTRY}}, "nodes = 'first': must be objects by a member's number"),
    "a number twice": (
        {"nodes": {"1": ENTRY, "01": {**ENTRY, "name": "other", "id": "8"}}},
        "nodes = '01': must be objects by a member's number",
    ),
    "no id": ({"id": ""}, "its id is missing\n    fix: repair it, or delete it"),
    "no slice": ({"acceleratorType": "v6e-7"}, "the record of mine isn't followed"),
}


@pytest.mark.parametrize("name", [*BROKEN, "no JSON"])
def test_a_record_that_cannot_be_followed_is_named_and_left_alone(
    name: str, world: Cloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others go on; its nodes are no orphans."""
    Run().begin().steps(3)
    more, message = BROKEN.get(name, ({}, "can't be read: is no JSON\n    fix: repair it, or delete it"))
    stored(world, **more)
    if name == "no JSON":
        world.objects[OBJECT] = "[]", 9
        message = "can't be read: is no JSON object\n    fix: repair it, or delete it"
    before, record = len(world.requests), world.objects[OBJECT]
    world.states["train"] = "PREEMPTED"
    for line in (
        "status dev",
        "list dev",
        "recover dev --yes",
        "delete dev --orphans --slice train --dry-run",
    ):
        assert fleet(line.split()) == 0, line
        output = capsys.readouterr()
        assert message in output.err
        assert NODE not in output.out
    assert world.requests[before:] == [("delete", "train"), ("up", "train")]
    assert fleet(["delete", "dev", "--slice", "mine", "--yes"]) == 1
    assert message in capsys.readouterr().err
    with pytest.raises(FleetError) as refused:
        Run()
    assert message in str(refused.value)
    world.states[NODE] = "PREEMPTED"
    looks = iter((None, None))
    monkeypatch.setattr("fleet.monitor.rest", lambda *_: next(looks, None) or _looked(looks))
    assert fleet(["monitor", "dev"]) == 130
    assert capsys.readouterr().err.count(message.partition("\n")[0]) == 2, "at the start, and once in the log"
    assert world.requests[before + 2 :] == []
    assert world.objects[OBJECT] == record


def _looked(looks: Any) -> None:
    if next(looks, "over") == "over":
        raise KeyboardInterrupt


def _monitored(monkeypatch: pytest.MonkeyPatch, actions: Mapping[int, Callable[[], object]]) -> None:
    """Let a monitor look six times; after some looks something happens."""
    looks = 0

    def rest(*_: object) -> None:
        nonlocal looks
        looks += 1
        actions.get(looks, lambda: None)()
        if looks == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr("fleet.monitor.rest", rest)
    assert fleet(["monitor", "dev"]) == 130
    assert looks == 6


def _break_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise FleetError("no YAML")

    monkeypatch.setattr("fleet.environment.from_file", broken)


def test_a_monitor_that_runs_keeps_the_rest_when_a_record_breaks(
    world: Cloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Run().begin().steps(3)
    before = len(world.requests)

    def breaks() -> None:
        stored(world, version=3)
        world.states[NODE] = world.states["train"] = "PREEMPTED"

    _monitored(monkeypatch, {1: breaks})
    assert capsys.readouterr().err.count("its version is 3, known is 2") == 1
    assert world.requests[before : before + 1] == [("delete", "train")]
    assert NODE not in [name for _, name in world.requests[before:]]


@pytest.mark.parametrize("phase", ["ending", "ended", "gone"])
def test_a_fleet_that_ends_is_requested_no_more_though_the_settings_break_at_that_moment(
    phase: str, world: Cloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Run().begin().steps(3)
    before = len(world.requests)

    def ends() -> None:
        _break_settings(monkeypatch)
        if phase == "gone":
            del world.objects[OBJECT]
        else:
            stored(world, phase=phase, why="deleted by a command")
        world.states[NODE] = "READY" if phase == "ending" else ""

    _monitored(monkeypatch, {1: ends})
    assert capsys.readouterr().err.count("the new settings are ignored: no YAML") == 1
    assert world.requests[before:] == ([("delete", NODE)] if phase == "ending" else [])
    if phase == "ending":
        assert known(world) == {}, "its end was completed"


def test_the_next_record_of_a_name_is_left_alone_while_the_settings_are_broken(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A monitor knows the earlier one, whose deletion had begun."""
    Run().begin().steps(3)
    before = len(world.requests)

    def ends() -> None:
        _break_settings(monkeypatch)
        world.silent = {world.zones[NODE]}  # it can't be over yet
        stored(world, phase="ending", why="deleted by a command")

    def begins_anew() -> None:
        world.silent = set()
        stored(world, phase="wanted", id="b" * 12, run="python other.py")

    _monitored(monkeypatch, {1: ends, 3: begins_anew})
    record = json.loads(world.objects[OBJECT][0])
    assert (record["phase"], record["id"]) == ("wanted", "b" * 12)
    assert world.requests[before:] == []


@pytest.mark.parametrize(("days", "left"), [(0.9, True), (1.1, False)])
def test_a_record_is_removed_a_day_after_its_end(
    days: float, left: bool, world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    AdHoc(world, OWNER.stack).keep("mine", ITEM, Phase.ENDED, "done")  # type: ignore[arg-type]
    stored(world, writtenS=time.time() - 86_400 * days)

    def ends(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fleet.monitor.rest", ends)
    assert fleet(["monitor", "dev"]) == 130
    assert (OBJECT in world.objects) is left


@pytest.mark.parametrize(("empty", "flags"), [(True, []), (False, ["--slice", "mine"])])
def test_a_monitor_of_an_environment_without_slices_idles_and_one_of_an_ended_fleet_ends(
    empty: bool, flags: list[str], world: Cloud, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if empty:
        world.states = {}
        monkeypatch.setattr("fleet.environment.from_file", lambda *_, slices=(): settings([*slices]))
    else:
        Run().begin().steps(3)
    looks = 0

    def rest(*_: object) -> None:
        nonlocal looks
        looks += 1
        if looks == 2 and not empty:
            stored(world, phase="ended", why="done")
        if looks == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("fleet.monitor.rest", rest)
    assert fleet(["monitor", "dev", *flags]) == (130 if empty else 0)
    ends = "mine has ended (done): nothing is left to monitor" in capsys.readouterr().err
    assert ends is not empty
    BucketStore(world, OWNER.stack).read()  # type: ignore[arg-type]  # its lease is released


@pytest.mark.parametrize(
    ("dated_s", "written_s", "held"),
    [(18_000, 20.0, True), (18_000, 400.0, False), (18_000, None, True), (-18_000, 20.0, True),
     (-18_000, 400.0, False), (-18_000, None, False), (30, None, True)],
)  # fmt: skip
def test_a_lease_of_a_wrong_clock_is_judged_by_googles(
    dated_s: float, written_s: float | None, held: bool, world: Cloud
) -> None:
    BucketStore(world, OWNER.stack, lambda: 1e9 + dated_s).write(ControllerState())  # type: ignore[arg-type]
    world.written_s = written_s
    other = BucketStore(world, OWNER.stack, lambda: 1e9)  # type: ignore[arg-type]
    before = dict(world.objects)
    if not held:
        other.read()
        return
    with pytest.raises(LeaseHeldError) as refused:
        other.read()
    text = str(refused.value)
    odd = abs(dated_s) > 60
    assert ("its lease is dated 300 min " in text) == odd
    assert ("fix: set the clock of this machine or of " in text) == odd
    assert world.objects == before


def test_two_nodes_of_one_member_are_named_with_the_command_and_both_left_alone(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    Run().begin().steps(3)
    world.stray("second", "us-east5-b", labels=world.labels[NODE])
    before = len(world.requests)
    assert fleet(["status", "dev"]) == 0
    output = capsys.readouterr().out
    assert f"mine/0 has two nodes: {NODE} is kept, second in us-east5-b is left alone" in output
    assert "fix: tpu fleet delete dev --orphans" in output
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert world.requests[before:] == []
    assert fleet(["delete", "dev", "--slice", "mine", "--yes"]) == 0
    assert sorted(world.requests[before:]) == [("delete", "second"), ("delete", NODE)], "its end is all of it"


def test_a_node_whose_labels_somebody_took_is_named_and_not_created_a_second_time(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its id is in its record."""
    Run().begin().steps(6)
    labels = dict(world.labels[NODE])
    world.labels[NODE] = {"cost-center": "ml"}
    before = len(world.requests)
    world.at_s += 7200  # no list is that late
    for command in (["create", "dev", "--slice", "mine", "--yes"], ["recover", "dev", "--yes"]):
        fleet(command)
        output = "".join(capsys.readouterr())
        assert f"{NODE}: a node of this name is there without our labels" in output
        assert f"stack={OWNER.stack},fleet=mine,member=0,record=" in output
    assert world.requests[before:] == []
    world.labels[NODE] = labels
    assert fleet(["create", "dev", "--slice", "mine", "--yes"]) == 0
    assert world.requests[before:] == []


@pytest.mark.parametrize("phase", ["wanted", "ending"])
def test_tpu_down_is_refused_while_an_ad_hoc_fleet_stands_on_the_stack(
    phase: str, world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that waits for chips, without a node."""
    from cli import updates

    AdHoc(world, OWNER.stack).keep("mine", ITEM)  # type: ignore[arg-type]
    stored(world, phase=phase)
    resources = [{"type": names.STACK_TYPE, "urn": "urn:x", "outputs": {"stackId": OWNER.stack}}]
    monkeypatch.setattr(refusals, "refuse", lambda *_: {"tpu": resources})
    monkeypatch.setattr(updates, "from_file", lambda *_: settings())
    monkeypatch.setattr("fleet.removal.from_file", lambda *_: settings())
    monkeypatch.setattr(updates.stacks, "down", lambda *_, **__: pytest.fail("destroyed"))
    with pytest.raises(FleetError) as refused:
        call(updates.down, ["dev", "--yes"])
    text = str(refused.value)
    assert f"mine: ad hoc, of ann@example.com (ann@laptop), {phase}" in text
    assert "fix: tpu fleet delete dev --slice mine, then this command again" in text
    assert object_of(OWNER.stack) not in world.objects
