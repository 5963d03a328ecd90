"""Names that another person's program holds: refused with whose they are, taken over by --replace."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from fleet.adhoc import AdHoc, ConcurrentChangeError, Phase
from fleet.errors import FleetError
from fleet.supervise import EndedError
from infra.engine.prices import within_budget
from infra.errors import InfraError
from infra.settings.schema import Settings
from tests.fleet.command import fleet
from tests.fleet.conftest import OWNER
from tests.fleet.test_supervise import DONE, ITEM, NODE, Run, known
from tests.fleet.world import SLICES, Cloud, _world, enter, settings  # noqa: F401

BOB = {"who": "bob@example.com", "from": "bob@desk"}
CREATE = ["create", "dev", "--tpu-type", "v6e-8", "--zones", "us-east5-a", "--yes"]
OBJECT = f"{OWNER.stack}/fleets/mine.json"


def bundles(world: Cloud) -> list[str]:
    """Record the bundle of each update of the node."""
    seen, update = list[str](), world.update

    def updated(zone: str, name: str, body: Any) -> None:
        seen.append(str(body["labels"]["bundle"])[:2])
        update(zone, name, body)

    world.update = updated  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize(("login", "whose"), [(BOB, "isn't its owner's"), (None, "is another program")])
def test_a_name_that_a_program_holds_is_refused_with_whose_it_is(
    login: dict[str, str] | None, whose: str, world: Cloud
) -> None:
    Run().begin().steps(3)
    world.login = login or world.login
    before = dict(world.objects)
    for more in ({"bundle": "ef" * 32}, {"run": "python other.py"}):
        with pytest.raises(FleetError) as refused:
            Run(**more).of.require_free(replace=False)
        text = str(refused.value)
        assert "its owner is ann@example.com (ann@laptop), it runs `python train.py`, bundle cdcdcdcd" in text
        assert whose in text
        assert "fix: --name ANOTHER, or --replace" in text
    Run(bundle="ef" * 32).of.require_free(replace=False, bundle="")
    assert world.objects == before


def test_the_same_program_attaches_and_leaves_the_record_as_it_is(world: Cloud) -> None:
    first = Run().begin()
    first.steps(3)
    world.login = BOB
    second = Run(stopWhenDone=True)
    second.of.require_free(replace=False)
    before = world.objects[OBJECT]
    second.begin().steps(2)
    first.steps(2)
    assert world.objects[OBJECT] == before
    world.login = {"who": "ann@example.com", "from": "ann@laptop"}
    Run(stopWhenDone=True).begin()
    assert known(world)["mine"]["stopWhenDone"] is True, "as she asked"
    first.steps(2)
    assert world.updated == []


def test_a_program_that_was_taken_over_ends_with_a_sentence_and_the_bundle_changes_once(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = bundles(world)
    first = Run().begin()
    first.steps(3)
    world.login = BOB
    second = Run(bundle="ef" * 32)
    second.of.require_free(replace=True)
    second.begin()
    with pytest.raises(EndedError, match=r"another program now, of bob@example.com \(bob@desk\)"):
        first.steps(3)
    second.steps(6)
    with pytest.raises(EndedError):
        first.steps(1)
    assert seen == ["ef"]
    assert world.requests == [("create", NODE)]
    record = known(world)["mine"]
    assert (record["owner"], record["bundle"]) == (BOB, "ef" * 32)
    assert world.labels[NODE]["record"] == record["id"], "its nodes stay its own"


def test_a_record_that_changes_after_it_was_read_is_not_replaced(world: Cloud) -> None:
    Run().begin().steps(3)
    second, third = Run(bundle="ef" * 32), Run(bundle="aa" * 32)
    second.begin()
    with pytest.raises(ConcurrentChangeError, match="changed concurrently"):
        third.of.keep()


def test_a_program_of_ones_own_that_has_ended_needs_no_replace(world: Cloud) -> None:
    Run().begin().steps(3)
    world.statuses[NODE] = DONE
    Run(bundle="ef" * 32).of.require_free(replace=False)
    world.login = BOB
    with pytest.raises(FleetError, match="isn't its owner's"):
        Run(bundle="ef" * 32).of.require_free(replace=False)


@pytest.mark.parametrize("later", [False, True])
def test_the_end_of_an_earlier_program_is_no_end_of_the_one_that_took_its_slice_over(
    later: bool, world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hosts attest it until they run the new one, and a monitor may look in between."""
    Run().begin().steps(3)
    world.statuses[NODE] = DONE
    Run(bundle="ef" * 32, stopWhenDone=True).begin()
    since_s = known(world)["mine"]["sinceS"]
    assert since_s > 0
    if not later:  # no heartbeat follows the one that says done
        seen = world.observe

        def observe(zones: Any) -> Any:
            view = seen(zones)
            (status,) = view.statuses[NODE]
            return replace(view, statuses={**view.statuses, NODE: [replace(status, at_s=since_s)]})

        monkeypatch.setattr(world, "observe", observe)
    monkeypatch.setattr("fleet.monitor.rest", _ends)
    assert fleet(["monitor", "dev"]) == 130
    assert ({*known(world)} == {"mine"}) is not later


def test_a_program_that_is_started_again_elsewhere_is_left_alone_by_who_saw_its_end(world: Cloud) -> None:
    first = Run(stopWhenDone=True).begin()
    first.steps(3)
    world.statuses[NODE] = DONE
    assert first.steps(1)
    Run(stopWhenDone=True).begin()
    with pytest.raises(EndedError, match="started again, by another command"):
        first.of.take_down("done")
    assert world.states[NODE] == "READY"


def test_create_takes_a_fleet_over_on_the_generation_that_it_read(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = "extract qwen2.5-0.5b.toml --stream gs://b/x", "extract qwen2.5-0.5b.toml --stream gs://b/y"
    assert fleet([*CREATE, "--run", run]) == 0
    world.login = BOB
    assert fleet([*CREATE, "--run", other]) == 2
    assert "ann@example.com (ann@laptop)" in capsys.readouterr().err
    assert fleet([*CREATE, "--run", other, "--replace"]) == 0
    (record,) = AdHoc(world, OWNER.stack).read().values()  # type: ignore[arg-type]
    assert (record["owner"], record["run"]) == (BOB, other)
    assert [verb for verb, _ in world.requests] == ["create"]
    assert world.updated == [world.requests[0][1]]


def test_status_and_list_show_the_owner(world: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet([*CREATE]) == 0
    capsys.readouterr()
    for command in ("status", "list"):
        assert fleet([command, "dev"]) == 0
        assert "ann@example.com (ann@laptop)" in capsys.readouterr().out
    assert fleet(["list", "dev", "--slice", "adhoc", "--json"]) == 0
    assert [node["owner"] for node in json.loads(capsys.readouterr().out)] == ["ann@example.com (ann@laptop)"]
    assert fleet(["status", "dev", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["adhoc"]
    assert shown == {"adhoc": {"owner": "ann@example.com (ann@laptop)", "phase": "wanted"}}


def test_an_owner_who_is_gone_is_named_and_replaced_or_deleted(world: Cloud) -> None:
    """The command that added it died long ago; nobody is attached."""
    Run().begin().steps(3)
    record = known(world)["mine"]
    for owner, shown in ((None, "an unknown owner"), ({"who": "gone@x.com", "from": ""}, "gone@x.com")):
        text = json.dumps({**record, "owner": owner})
        world.objects[OBJECT] = text, world.objects[OBJECT][1] + 1
        with pytest.raises(FleetError, match=f"its owner is {shown}"):
            Run(bundle="ef" * 32).of.require_free(replace=False)
    again = Run(bundle="ef" * 32)
    again.of.require_free(replace=True)
    again.begin().steps(3)
    assert known(world)["mine"]["owner"] == world.login
    assert fleet(["delete", "dev", "--slice", "mine", "--yes"]) == 0
    assert known(world) == {}


def labels_of_an_ended_fleet(world: Cloud) -> dict[str, str]:
    """Run a program to its end; return the labels that its node had."""
    run = Run().begin()
    run.steps(3)
    labels = dict(world.labels[NODE])
    run.of.take_down("done")
    return labels


def test_a_node_that_appears_after_its_record_has_ended_is_deleted_by_the_next_look(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a request that was under way; an orphan of the settings, or of nobody, is left alone."""
    labels = labels_of_an_ended_fleet(world)
    assert known(world) == {}
    world.stray("late", "us-east5-b", labels=labels)
    world.stray("other", "us-east5-b", labels={**labels, "record": "0" * 12})
    with monkeypatch.context() as once:
        once.setattr("fleet.monitor.rest", _ends)
        assert fleet(["monitor", "dev"]) == 130
    assert (world.states["late"], world.states["other"]) == ("", "READY")


def test_a_late_node_is_not_taken_for_one_of_another_fleet_of_that_name(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs the program of a record that has ended."""
    labels = labels_of_an_ended_fleet(world)
    again = Run(bundle="ef" * 32).begin()
    assert known(world)["mine"]["id"] != labels["record"]
    world.stray("late", "us-east5-b", labels=labels)
    again.of.leave()
    looks = iter(range(6))
    monkeypatch.setattr(
        "fleet.monitor.rest", lambda *_: time.sleep(0.02) or next(looks, None) or _last(looks)
    )
    assert fleet(["monitor", "dev"]) == 130
    assert world.states["late"] == ""
    assert world.labels[NODE]["bundle"] == "efefefefefef"
    assert [(verb, name) for verb, name in world.requests if name == "late"] == [("delete", "late")]


def _last(looks: Any) -> None:
    if next(looks, "over") == "over":
        raise KeyboardInterrupt


def _ends(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_fleet_that_would_exceed_the_budget_is_refused_before_its_record_is_written(
    world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dear = settings(dollarsPerHour=1)
    enter(monkeypatch, world, dear)
    monkeypatch.setattr("fleet.supervise.from_file", lambda *_, **__: dear)
    monkeypatch.setattr("fleet.environment.from_file", _with_limit)
    assert fleet([*CREATE]) == 2
    assert "fleet:dollarsPerHour allows $1" in capsys.readouterr().err
    monkeypatch.setattr("fleet.supervise.from_file", _with_limit)
    run = Run()
    with pytest.raises(InfraError, match=r"fleet:dollarsPerHour allows \$1"):
        run.of.keep()
    assert world.objects == {}
    assert world.requests == []


def _with_limit(_: str, slices: Any = ()) -> Settings:
    return settings([*SLICES, *slices], dollarsPerHour=1)


def test_a_monitor_above_the_budget_creates_nothing_and_does_the_rest(
    world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keep what was added above the budget, as by an earlier version; a new monitor does it, too."""
    Run(stopWhenDone=True).begin().steps(3)
    world.statuses[NODE] = DONE
    limit = [1]
    monkeypatch.setattr(
        "fleet.environment.from_file",
        lambda _, slices=(): settings([*SLICES, *slices], dollarsPerHour=limit[0]),
    )
    lost, other = "tpu-us-east5-a-0", "tpu-us-east5-a-1"
    world.states[lost] = "PREEMPTED"
    looks = 0

    def rest(*_: object) -> None:
        nonlocal looks
        looks += 1
        time.sleep(0.02)  # requests are sent by threads
        if looks == 4:
            assert world.states[lost] == "", "what Google took away is deleted"
            world.states[other] = "PREEMPTED"
        if looks == 8:
            assert world.states[other] == ""
            limit[0] = 1000
        if looks > 8 and "" not in (world.states[lost], world.states[other]):
            raise KeyboardInterrupt
        assert looks < 100

    monkeypatch.setattr("fleet.monitor.rest", rest)
    before = len(world.requests)
    assert fleet(["monitor", "dev"]) == 130
    assert world.requests[before : before + 2] in (
        [("delete", lost), ("delete", NODE)], [("delete", NODE), ("delete", lost)],
    )  # fmt: skip
    assert ("create", lost) in world.requests
    output = capsys.readouterr().err
    for total in ("$110.56", "$88.11"):
        assert output.count(f"nothing is created: {total} an hour, fleet:dollarsPerHour allows $1") == 1
    assert known(world) == {}


def test_two_who_add_at_once_are_held_by_the_budget_of_both(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither saw the other's record before it wrote its own."""
    price = within_budget(settings([*SLICES, ITEM]))
    assert price is not None

    def limited(_: str, slices: Any = ()) -> Settings:
        return settings([*SLICES, *slices], dollarsPerHour=int(price) + 1)

    for module in ("environment", "supervise"):
        monkeypatch.setattr(f"fleet.{module}.from_file", limited)
    first, second = Run(), Run(name="other", checkpointFolder="jobs/other")
    first.begin()
    second.begin()
    assert {*known(world)} == {"mine", "other"}
    first.steps(3)
    second.steps(3)
    assert world.requests == []
    saved = AdHoc(world, OWNER.stack)  # type: ignore[arg-type]
    saved.keep("other", saved.read()["other"], Phase.ENDED, "deleted by a command")
    first.steps(3)
    assert world.requests == [("create", NODE)]
