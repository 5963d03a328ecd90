"""Fleets that stand in no file: described by flags, kept in a bucket, and known to every command."""

import itertools
import json
from dataclasses import replace

import pytest

from fleet import monitor
from fleet.adhoc import AdHoc, ConcurrentChangeError, Phase, wanted
from fleet.errors import FleetError
from infra.errors import SettingsError
from tests.fleet.command import fleet
from tests.fleet.conftest import OWNER
from tests.fleet.world import SLICES, Cloud, _world, enter, settings  # noqa: F401
from tests.virtual_time import replace_time

FLAGS = ["--tpu-type", "v6e-8", "--zones", "us-east5-a,us-east5-b", "--workers-per-zone", "2"]
CREATE = ["create", "dev", *FLAGS]
MADE = [f"tpu-us-east5-{zone}-{number}" for zone in "ab" for number in (2, 3)]


def test_a_fleet_is_made_from_flags_beside_those_of_the_file(world: Cloud) -> None:
    assert fleet([*CREATE, "--run", "extract qwen2.5-0.5b.toml --stream gs://b/x", "--yes"]) == 0
    assert sorted(world.requests) == [("create", name) for name in MADE], "by names that nobody has"
    for number, name in enumerate([MADE[0], MADE[2], MADE[1], MADE[3]]):
        labels = world.labels[name]
        assert (labels["fleet"], labels["member"], labels["stack"]) == ("adhoc", str(number), OWNER.stack)
    (item,) = AdHoc(world, OWNER.stack).read().values()  # type: ignore[arg-type]
    assert wanted(item) == {
        "name": "adhoc", "acceleratorType": "v6e-8", "zones": ["us-east5-a", "us-east5-b"], "count": 4,
        "spot": True, "run": "extract qwen2.5-0.5b.toml --stream gs://b/x",
    }  # fmt: skip
    assert (item["phase"], item["owner"], item["environment"]) == ("wanted", world.login, "dev")
    assert {world.labels[name]["record"] for name in MADE} == {item["id"]}


def test_every_command_knows_it_from_then_on(world: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet([*CREATE, "--yes"]) == 0
    capsys.readouterr()
    assert fleet(["status", "dev", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert {*MADE} < {row["node"] for row in reported["members"]}
    assert reported["orphans"] == []
    world.states[MADE[0]] = "PREEMPTED"
    assert fleet(["recover", "dev", "--slice", "adhoc", "--yes"]) == 0
    assert world.requests[4:] == [("delete", MADE[0]), ("create", MADE[0])]
    assert fleet([*CREATE, "--yes"]) == 0
    assert len(world.requests) == 6, "the same again is nothing to do"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--on-demand"], "--slice ANOTHER"),
        (["--on-demand", "--replace"], "--slice ANOTHER, or tpu fleet delete dev --slice adhoc"),
        (
            ["--run", "extract qwen2.5-0.5b.toml --stream gs://b/other"],
            "--slice ANOTHER, or --replace, which ends that program",
        ),
    ],
)
def test_one_of_its_name_with_other_values_is_refused_with_its_owner(
    more: list[str], message: str, world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet([*CREATE, "--run", "extract qwen2.5-0.5b.toml --stream gs://b/x", "--yes"]) == 0
    world.login = {"who": "bob@example.com", "from": "bob@desk"}
    before = dict(world.objects)
    assert fleet([*CREATE, *more, "--yes"]) == 2
    output = capsys.readouterr().err
    assert "adhoc is a fleet already: its owner is ann@example.com (ann@laptop), it runs `extract" in output
    assert message in output
    assert world.objects == before
    more = [word for word in more if word != "--replace"]
    assert fleet([*CREATE, *more, "--slice", "mine", "--yes"]) == 0


@pytest.mark.parametrize("name", ["train", "extract"])
def test_one_of_the_files_names_is_refused(
    name: str, world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet([*CREATE, "--slice", name, "--yes"]) == 2
    output = capsys.readouterr().err
    assert f"{name}: Pulumi.dev.yaml has a slice of this name\n    fix: --slice ANOTHER" in output
    assert not world.requests


def test_a_slice_that_is_up_and_not_in_this_folders_file_keeps_its_name(
    world: Cloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "stack", replace(world.stack, slices=frozenset({"tune"})))
    assert fleet([*CREATE, "--slice", "tune", "--yes"]) == 2
    output = capsys.readouterr().err
    assert "tune: a slice of this name is up, and /" in output
    assert (
        "/Pulumi.dev.yaml lacks it\n    fix: --slice ANOTHER, or this command in the folder whose" in output
    )
    assert not world.requests


def test_a_fleet_and_a_named_slice_of_one_name_are_refused_by_the_settings() -> None:
    fleet = {**SLICES[1], "name": "train"}
    with pytest.raises(SettingsError, match='2 slices called "train"'):
        settings([SLICES[0], fleet])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tpu-type", "v6e-8"], "--tpu-type v6e-8: no --zones"),
        (["--tpu-type", "v6e-8", "--zones", "us-east5-a", "--slice", "a", "--slice", "b"], "2 names"),
        (["--tpu-type", "v6e-7", "--zones", "us-east5-a"], "v6e-7"),
    ],
)
def test_what_flags_leave_out_is_said(
    flags: list[str], message: str, world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet(["create", "dev", *flags, "--yes"]) == 2
    assert message in capsys.readouterr().err
    assert world.requests == []
    assert world.objects == {}


def test_a_dry_run_keeps_no_fleet(world: Cloud) -> None:
    assert fleet([*CREATE, "--dry-run"]) == 0
    assert world.requests == []
    assert world.objects == {}


def test_it_is_forgotten_once_all_of_it_is_deleted(world: Cloud) -> None:
    def known() -> set[str]:
        return {*AdHoc(world, OWNER.stack).read()}  # type: ignore[arg-type]

    assert fleet([*CREATE, "--yes"]) == 0
    assert fleet(["delete", "dev", "--slice", "adhoc", "--zones", "us-east5-a", "--yes"]) == 0
    assert known() == {"adhoc"}, "the rest of it would be nobody's"
    assert fleet(["delete", "dev", "--slice", "adhoc", "--workers-per-zone", "1", "--yes"]) == 0
    assert known() == {"adhoc"}
    assert fleet(["delete", "dev", "--slice", "adhoc", "--yes"]) == 0
    assert known() == set()
    assert sorted(name for name, state in world.states.items() if state and name in MADE) == []


@pytest.mark.parametrize("silent", [{"us-east5-b"}, {"us-east5-a", "us-east5-b"}])
def test_it_is_not_forgotten_while_a_zone_that_may_hold_a_member_is_silent(
    silent: set[str], world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet([*CREATE, "--yes"]) == 0
    lives = {name for name in MADE if world.zones[name] in silent}
    world.silent = silent
    assert fleet(["delete", "dev", "--slice", "adhoc", "--yes"]) == 1
    assert "us-east5-b didn't answer: transient" in capsys.readouterr().err
    assert {name for name in MADE if world.states[name]} == lives
    assert {*AdHoc(world, OWNER.stack).read()} == {"adhoc"}, "who lives there would be nobody's"  # type: ignore[arg-type]
    world.silent = set()
    assert fleet(["delete", "dev", "--slice", "adhoc", "--yes"]) == 0
    assert AdHoc(world, OWNER.stack).read() == {}  # type: ignore[arg-type]
    assert not [name for name in MADE if world.states[name]]


def test_a_command_about_a_fleet_that_has_ended_tells_it(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a second deletion, after one that was killed before it printed anything."""
    assert fleet([*CREATE, "--slice", "mine", "--yes"]) == 0
    assert fleet(["delete", "dev", "--slice", "mine", "--yes"]) == 0
    capsys.readouterr()
    assert fleet(["delete", "dev", "--slice", "mine", "--yes"]) == 2
    assert "mine has ended (deleted by a command)\n    fix: nothing is left of it" in capsys.readouterr().err


def test_one_that_got_no_chips_can_be_forgotten_too(world: Cloud) -> None:
    world.dry = {"us-east5-a", "us-east5-b"}
    assert fleet([*CREATE, "--yes"]) == 1
    assert fleet(["delete", "dev", "--slice", "adhoc", "--yes"]) == 0
    assert AdHoc(world, OWNER.stack).read() == {}  # type: ignore[arg-type]


@pytest.mark.parametrize("taken", ["fleet", "slice"])
def test_a_name_that_the_file_gets_too_blocks_nothing(
    taken: str, world: Cloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fleet([*CREATE, "--yes"]) == 0
    item = {**SLICES[0 if taken == "slice" else 1], "name": "adhoc"}
    item.pop("run")
    enter(monkeypatch, world, settings([*SLICES, item]), [*SLICES, item])
    world.states[MADE[0]] = "PREEMPTED"
    for line in ("status dev", "list dev", "recover dev --yes", "delete dev --slice adhoc --yes"):
        capsys.readouterr()
        assert fleet(line.split()) == 0
        output = capsys.readouterr()
        assert "adhoc: Pulumi.dev.yaml has a slice of this name, and an ad hoc fleet has it" in output.err
        assert "fix: tpu fleet delete dev --slice adhoc" in output.err
    assert world.requests[4:6] == [("delete", MADE[0]), ("create", MADE[0])]
    assert not [name for name in MADE if world.states[name]], "the ad hoc one"
    assert AdHoc(world, OWNER.stack).read() == {}  # type: ignore[arg-type]
    assert fleet(["status", "dev"]) == 0
    assert "ad hoc" not in capsys.readouterr().err, "the file's is known from then on"


def test_a_record_is_written_only_on_the_generation_that_was_read(world: Cloud) -> None:
    item = {"name": "mine", "zones": ["us-east5-b"]}
    first, second = (AdHoc(world, OWNER.stack) for _ in range(2))  # type: ignore[arg-type]
    first.keep("mine", item)
    with pytest.raises(ConcurrentChangeError, match="changed concurrently; repeat the command"):
        second.keep("mine", item | {"run": "python other.py"})
    second.read()
    second.keep("mine", item, Phase.ENDING, "done")
    for _ in range(2):  # also by a command that asks again without a reading
        with pytest.raises(ConcurrentChangeError):
            first.keep("mine", item)
    record = second.record("mine")
    assert record is not None
    assert (wanted(record), record["phase"], record["why"]) == (item, "ending", "done")
    second.keep("mine", record, Phase.ENDED, "done")
    assert (second.read(), second.ended) == ({}, {record["id"]})
    assert second.keep("mine", item)["id"] != record["id"], "another fleet of that name"
    assert wanted(second.read()["mine"]) == item


def test_a_record_of_a_newer_version_is_overwritten_by_no_reader(world: Cloud) -> None:
    item, path = {"name": "mine", "zones": ["us-east5-b"]}, f"{OWNER.stack}/fleets/mine.json"
    records = AdHoc(world, OWNER.stack)  # type: ignore[arg-type]
    known = records.keep("mine", item)
    text, generation = world.objects[path]
    newer = text.replace('"version": 2', '"version": 3')
    assert newer != text
    world.write(path, newer, generation)
    for phase in (Phase.ENDING, Phase.ENDED):
        with pytest.raises(FleetError, match="its version is 3"):
            records.keep("mine", known, phase, "done")
    assert records.read() == {}
    assert "mine" in records.unread
    with pytest.raises(FleetError):
        records.keep("mine", item)
    assert world.objects[path][0] == newer


@pytest.mark.parametrize("silent", [False, True])
def test_a_deletion_that_doesnt_end_is_waited_for_so_long_and_completed_by_the_next(
    silent: bool, world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A zone that doesn't answer from then on, or a node that stays in its deletion."""
    assert fleet([*CREATE, "--slice", "mine", "--yes"]) == 0
    names = sorted(name for verb, name in world.requests if verb == "create")
    delete, requests = world.delete, len(world.requests)

    def begin(zone: str, name: str) -> None:
        world.requests.append(("delete", name))
        world.states[name] = "DELETING"
        world.silent |= {zone} if silent else set()

    seconds = itertools.count(step=100)
    replace_time(monkeypatch, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(world, "delete", begin)
    assert fleet(["delete", "dev", "--slice", "mine", "--yes"]) == 1
    output = capsys.readouterr()
    assert f"{names[0]}: is being deleted, and isn't known to be gone after 900 s" in output.out + output.err
    assert "fix: this command again" in output.err
    assert AdHoc(world, OWNER.stack).read()["mine"]["phase"] == "ending"  # type: ignore[arg-type]
    monkeypatch.setattr(world, "delete", delete)
    world.silent.clear()
    world.states |= dict.fromkeys(names, "")
    assert fleet(["delete", "dev", "--slice", "mine", "--yes"]) == 0
    assert AdHoc(world, OWNER.stack).read() == {}  # type: ignore[arg-type]
    assert sorted(world.requests[requests:]) == [("delete", name) for name in names], "each once"


def _dies(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_deletion_that_dies_is_followed_by_a_deletion_and_by_no_creation(
    world: Cloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fleet([*CREATE, "--yes"]) == 0
    delete = world.delete
    with monkeypatch.context() as dying:
        dying.setattr(world, "delete", lambda zone, name: _dies() if name == MADE[1] else delete(zone, name))
        assert fleet(["delete", "dev", "--slice", "adhoc", "--yes"]) == 130
    living = [name for name in MADE if world.states[name]]
    assert 0 < len(living) < len(MADE)
    world.states[living[0]] = "PREEMPTED"
    before = len(world.requests)
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert fleet([*CREATE, "--yes"]) == 1
    assert "adhoc: its deletion has begun" in capsys.readouterr().err
    assert world.requests[before:] == []
    with monkeypatch.context() as short:
        short.setattr(monitor, "rest", _dies)  # after its first pass
        assert fleet(["monitor", "dev"]) == 130
    assert {verb for verb, _ in world.requests[before:]} == {"delete"}
    assert not [name for name in MADE if world.states[name]]
    assert AdHoc(world, OWNER.stack).read() == {}  # type: ignore[arg-type]
    assert fleet([*CREATE, "--yes"]) == 0, "of its name again"


@pytest.mark.parametrize(("flags", "status"), [([], 130), (["--slice", "adhoc"], 0)])
def test_a_monitor_makes_nothing_of_a_fleet_whose_record_is_gone(
    flags: list[str], status: int, world: Cloud, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert fleet([*CREATE, "--yes"]) == 0
    before = len(world.requests)
    passes = 0

    def rest(*_: object) -> None:
        nonlocal passes
        passes += 1
        if passes == 1:
            world.states = {name: "" if name in MADE else state for name, state in world.states.items()}
            world.objects.pop(f"{OWNER.stack}/fleets/adhoc.json")
        if passes == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(monitor, "rest", rest)
    assert fleet(["monitor", "dev", *flags]) == status
    assert world.requests[before:] == []
    assert ("adhoc: its record is gone: nothing is left to monitor" in capsys.readouterr().err) == (
        not status
    )
