"""Ids of nodes in a fleet's record: what somebody else made or took is neither used nor deleted."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fleet.adhoc import AdHoc, ConcurrentChangeError, slices
from fleet.ids import RecordedNode
from fleet.model import View
from fleet.recorded import FleetRecords
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.slices.nodes import nodes
from tests.fleet.command import fleet
from tests.fleet.conftest import OWNER
from tests.fleet.test_owners import _ends
from tests.fleet.test_records import OBJECT, stored
from tests.fleet.test_supervise import ITEM, NODE, Run, known
from tests.fleet.world import Cloud, _world, settings  # noqa: F401

ZONE = "us-east5-b"
DELETE = ["delete", "dev", "--slice", "mine", "--yes"]


def entries(world: Cloud) -> dict[str, Any]:
    """Return the nodes of the record, as they are stored."""
    nodes: dict[str, Any] = json.loads(world.objects[OBJECT][0])["nodes"]
    return nodes


def make_anew(world: Cloud, labels: Mapping[str, str]) -> None:
    """Put another one's node in the place of the fleet's."""
    world.instances[NODE], world.labels[NODE] = 5000, labels


def monitored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a monitor look once."""
    with monkeypatch.context() as once:
        once.setattr("fleet.monitor.rest", _ends)
        assert fleet(["monitor", "dev"]) == 130


def test_a_node_is_in_the_record_before_its_request_and_its_id_after(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, create, delete = list[Any](), world.create, world.delete

    def created(*arguments: Any) -> str:
        before.append(entries(world))
        return create(*arguments)

    def deleted(*arguments: Any) -> None:
        before.append(entries(world))
        delete(*arguments)

    monkeypatch.setattr(world, "create", created)
    monkeypatch.setattr(world, "delete", deleted)
    run, place = Run().begin(), {"zone": ZONE, "name": NODE}
    run.steps(3)
    first = {**place, "id": str(world.instances[NODE])}
    assert entries(world) == {"0": first}
    world.states[NODE] = "PREEMPTED"
    run.steps(4)
    assert entries(world) == {"0": {**place, "id": str(world.instances[NODE])}}
    going = {"0": {**first, "requested": True}}
    assert before == [{"0": {**place, "id": "", "requested": True}}, going, going]


@pytest.mark.parametrize("state", ["READY", "PREEMPTED"])
@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("beside", [True, False])
def test_a_node_that_somebody_else_made_in_its_place_is_named_and_never_touched(
    beside: bool,
    copied: bool,
    state: str,
    world: Cloud,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also after the end of the fleet, whose labels it has."""
    Run().begin().steps(3)
    known_id = entries(world)["0"]["id"]
    make_anew(world, dict(world.labels[NODE]) if copied else {})
    world.states[NODE] = state
    before, world.at_s = len(world.requests), world.at_s + 7200  # no list is that late
    capsys.readouterr()
    message = (
        f"a node of this name is there with the id 5000, which somebody else made: the record has {known_id}"
        if copied else "a node of this name is there without our labels"
    )  # fmt: skip
    for command in ("status dev", "create dev --slice mine --yes", "recover dev --yes"):
        fleet(command.split())
        assert message in "".join(capsys.readouterr()), command
    if beside:  # also where nobody acts before the end
        monitored(monkeypatch)
    assert entries(world)["0"]["id"] == known_id
    assert fleet([*DELETE]) == 0
    assert f"leave   {NODE} in {ZONE}: {message}" in capsys.readouterr().out
    assert known(world) == {}
    monitored(monkeypatch)
    assert fleet(["delete", "dev", "--orphans", "--slice", "train", "--dry-run"]) == 0
    assert NODE not in capsys.readouterr().out
    assert world.requests[before:] == []
    assert world.updated == []


def test_a_node_that_somebody_else_made_stays_theirs_under_the_next_record_of_that_name(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the labels of the earlier record; that one stays until then."""
    Run().begin().steps(3)
    make_anew(world, dict(world.labels[NODE]))
    world.at_s += 7200
    assert fleet([*DELETE]) == 0
    monkeypatch.setattr("fleet.adhoc._KEPT_S", 0.0)
    monitored(monkeypatch)
    assert OBJECT in world.objects
    before, again = len(world.requests), Run(bundle="ef" * 32).begin()
    for state in ("READY", "PREEMPTED"):
        world.states[NODE] = state
        again.steps(3)
        again.of.leave()
        monitored(monkeypatch)
    assert [verb for verb, _ in world.requests[before:]] == ["create"]
    assert world.instances[NODE] == 5000
    assert entries(world)["0"]["others"] == ["5000"]


def test_a_preempted_node_of_another_fleet_s_record_is_left_to_that_record(world: Cloud) -> None:
    """As of a fleet that began after this command, in whose place somebody else made a node."""
    run = Run().begin()
    run.steps(3)
    world.stray("other", ZONE, "PREEMPTED", {**world.labels[NODE], "fleet": "other", "record": "0" * 12})
    world.stray("second", ZONE, "PREEMPTED", {**world.labels[NODE], "member": "7"})
    world.states[NODE] = "PREEMPTED"
    run.steps(3)
    assert ("delete", "second") in world.requests
    assert ("delete", "other") not in world.requests


def test_once_such_a_node_is_gone_the_fleet_has_its_own_again(world: Cloud) -> None:
    run = Run().begin()
    run.steps(3)
    make_anew(world, dict(world.labels[NODE]))
    run.steps(2)
    world.states[NODE] = ""
    world.at_s += 7200
    run.steps(4)
    assert world.requests == [("create", NODE)] * 2
    assert entries(world)["0"]["id"] == str(world.instances[NODE])


def test_a_node_that_is_made_anew_while_its_deletion_is_confirmed_stays(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run().begin().steps(3)
    before = len(world.requests)

    def confirm(*_: object) -> None:
        make_anew(world, dict(world.labels[NODE]))

    monkeypatch.setattr("fleet.removal.confirm", confirm)
    assert fleet([*DELETE]) == 0
    assert known(world) == {}
    monitored(monkeypatch)
    assert world.requests[before:] == []


def test_a_fleet_whose_node_is_recovered_while_its_deletion_is_confirmed_has_not_ended(
    world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run().begin()
    run.steps(3)

    def confirm(*_: object) -> None:
        world.states[NODE] = "PREEMPTED"
        run.steps(5)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("fleet.removal.confirm", confirm)
        assert fleet([*DELETE]) == 1
    assert world.requests == [("create", NODE), ("delete", NODE), ("create", NODE)]
    assert "made anew by its fleet's controller meanwhile" in capsys.readouterr().out
    assert known(world)["mine"]["phase"] == "ending"
    assert fleet([*DELETE]) == 0
    assert (world.states[NODE], known(world)) == ("", {})


def test_a_fleet_whose_first_node_is_made_while_its_deletion_is_confirmed_has_not_ended(
    world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run().begin()

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("fleet.removal.confirm", lambda *_: run.steps(3))
        assert fleet([*DELETE]) == 1
    assert (world.requests, world.states[NODE]) == ([("create", NODE)], "READY")
    problem = "created since the question; nothing was deleted\n    fix: this command again\n"
    assert problem in capsys.readouterr().err
    assert known(world)["mine"]["phase"] == "wanted"
    assert fleet([*DELETE]) == 0
    assert (world.states[NODE], known(world)) == ("", {})


def test_a_fleet_has_not_ended_before_a_node_that_somebody_else_made_is_in_its_record(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run().begin().steps(3)
    delete, write, failures = world.delete, world.write, list[str]()

    def deleted(zone: str, name: str) -> None:
        delete(zone, name)
        make_anew(world, dict(world.labels[NODE]))
        world.states[NODE] = "READY"

    def written(name: str, text: str, generation: int) -> int:
        if name == OBJECT and "5000" in text and not failures:
            failures.append(name)
            raise RequestError(Failure(Kind.TRANSIENT, "503"))
        return write(name, text, generation)

    monkeypatch.setattr(world, "delete", deleted)
    monkeypatch.setattr(world, "write", written)
    assert fleet([*DELETE]) == 1
    assert failures == [OBJECT]
    assert known(world)["mine"]["phase"] == "ending"
    assert fleet([*DELETE]) == 0
    before = len(world.requests)
    monitored(monkeypatch)
    assert (world.requests[before:], world.states[NODE]) == ([], "READY")


def test_a_fleet_does_not_end_while_its_record_refuses_the_id_of_a_node_that_somebody_else_made(
    world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Run(count=2).begin().steps(3)
    make_anew(world, dict(world.labels[NODE]))
    world.states[NODE], world.at_s = "READY", world.at_s + 7200
    write, failures, before = world.write, list[str](), len(world.requests)

    def written(name: str, text: str, generation: int) -> int:
        if name == OBJECT and "5000" in text and len(failures) < 2:
            failures.append(name)
            raise RequestError(Failure(Kind.TRANSIENT, "503"))
        return write(name, text, generation)

    monkeypatch.setattr(world, "write", written)
    assert fleet([*DELETE]) == 1
    assert failures == [OBJECT] * 2
    assert "nothing was deleted; fix: this command again" in capsys.readouterr().err
    assert (known(world)["mine"]["phase"], world.requests[before:]) == ("wanted", [])
    assert fleet([*DELETE]) == 0
    assert (world.states[NODE], known(world)) == ("READY", {})


def test_nodes_that_somebody_else_makes_one_after_another_during_a_deletion_all_stay(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run(count=2).begin().steps(3)
    left, observe = [item["name"] for item in entries(world).values()], world.observe
    assert len(left) == 2

    def deleted(zone: str, name: str) -> None:
        world.states[name] = "DELETING"

    def observed(zones: Sequence[str]) -> View:
        if left and world.states[left[0]] == "DELETING":
            name = left.pop(0)
            world.instances[name], world.states[name] = 5000 + len(left), "READY"
        return observe(zones)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(world, "delete", deleted)
        meanwhile.setattr(world, "observe", observed)
        assert fleet([*DELETE]) == 0
    assert (left, known(world)) == ([], {})
    before = len(world.requests)
    monitored(monkeypatch)
    assert world.requests[before:] == [], "they are nobody's late nodes"


def test_a_node_that_is_made_anew_while_its_take_over_is_confirmed_keeps_its_labels(
    world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "tpu-us-east5-b-0"
    labels = world.labels[name] = {**world.labels[name], "stack": "another"}
    monkeypatch.setattr("fleet.removal.confirm", lambda *_: world.instances.update({name: 5000}))
    assert fleet(["take-over", "dev"]) == 1
    assert f"{name} is left alone: it has changed since it was read" in capsys.readouterr().err
    assert (world.updated, world.labels[name]) == ([], labels)


def test_two_records_with_one_id_are_named_and_left_alone(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    Run().begin().steps(3)
    copy = {**json.loads(world.objects[OBJECT][0]), "name": "copy"}
    world.objects[OBJECT.replace("mine", "copy")] = json.dumps(copy), 1
    before = len(world.requests)
    world.states[NODE] = "PREEMPTED"
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert "mine and copy have both the id 1" in "".join(capsys.readouterr()).replace(
        "copy and mine", "mine and copy"
    )
    assert fleet([*DELETE]) == 1
    assert "fix: gcloud compute tpus tpu-vm describe NODE --zone=ZONE" in capsys.readouterr().err
    assert world.requests[before:] == []


def test_a_member_that_gets_the_place_of_one_that_is_gone_takes_it_in_the_record_too(world: Cloud) -> None:
    """As by a monitor of a part of the fleet."""
    saved = AdHoc(world, OWNER.stack)  # type: ignore[arg-type]
    item = saved.keep("mine", {**ITEM, "zones": [ZONE], "count": 2})
    saved.enter("mine", {0: RecordedNode(ZONE, NODE, "1"), 1: RecordedNode(ZONE, "second", "2")})
    (second,) = (node for node in nodes(settings(slices([item]))) if node.key == "mine/1")
    records = FleetRecords(saved, {"mine": item}, [second], ())
    records.read()
    assert records.enter({second.key: RecordedNode(ZONE, NODE, requested=True)}) == {}
    assert entries(world) == {"1": {"zone": ZONE, "name": NODE, "id": "", "requested": True}}
    assert "mine" in saved.read()


def test_nothing_is_requested_by_a_record_that_changes_before_the_request_is_entered(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, write = Run().begin(), world.write

    def written(name: str, text: str, generation: int) -> int:
        if name == OBJECT:
            stored(world, phase="ending", why="deleted by a command")
        return write(name, text, generation)

    monkeypatch.setattr(world, "write", written)
    run.of.step()
    assert world.requests == []
    assert any("changed concurrently" in line for line in run.reports)


def test_a_command_that_read_a_record_before_an_id_was_entered_keeps_the_id(world: Cloud) -> None:
    Run().begin().steps(3)
    first, second = (AdHoc(world, OWNER.stack) for _ in range(2))  # type: ignore[arg-type]
    item, _ = first.read()["mine"], second.read()
    other = RecordedNode(ZONE, NODE, "77")
    second.enter("mine", {0: other})
    first.keep("mine", {**item, "run": "python other.py"})
    assert entries(world)["0"]["id"] == "77"
    with pytest.raises(ConcurrentChangeError):
        second.keep("mine", {**item, "run": "python third.py"})
    first.read()
    first.keep("mine", {**ITEM, "run": "python fourth.py"})
    assert entries(world) == {}, "of another fleet of that name"
