"""Fleets that stand in no file: described by flags, kept in a bucket, and known to every command."""

import json

import pytest

from fleet.adhoc import AdHoc
from fleet.errors import FleetError
from infra.errors import SettingsError
from tests.fleet.command import fleet
from tests.fleet.conftest import OWNER
from tests.fleet.world import SLICES, Cloud, _world, settings  # noqa: F401

FLAGS = ["--tpu-type", "v6e-8", "--zones", "us-east5-a,us-east5-b", "--workers-per-zone", "2"]
CREATE = ["create", "dev", *FLAGS]
MADE = [f"tpu-us-east5-{zone}-{number}" for zone in "ab" for number in (2, 3)]


def test_a_fleet_is_made_from_flags_beside_those_of_the_file(world: Cloud) -> None:
    assert fleet([*CREATE, "--run", "extract qwen2.5-0.5b.toml", "--yes"]) == 0
    assert sorted(world.requests) == [("create", name) for name in MADE], "by names that nobody has"
    for number, name in enumerate([MADE[0], MADE[2], MADE[1], MADE[3]]):
        labels = world.labels[name]
        assert (labels["fleet"], labels["member"], labels["stack"]) == ("adhoc", str(number), OWNER.stack)
    (item,) = AdHoc(world, OWNER.stack).read().values()  # type: ignore[arg-type]
    assert item == {
        "name": "adhoc", "acceleratorType": "v6e-8", "zones": ["us-east5-a", "us-east5-b"], "count": 4,
        "spot": True, "run": "extract qwen2.5-0.5b.toml",
    }  # fmt: skip


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


@pytest.mark.parametrize("more", [["--on-demand"], ["--run", "extract qwen2.5-0.5b.toml"]])
def test_one_of_its_name_with_other_values_is_refused(
    more: list[str], world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet([*CREATE, "--yes"]) == 0
    before = dict(world.objects)
    assert fleet([*CREATE, *more, "--yes"]) == 1
    output = capsys.readouterr().err
    assert "adhoc is a fleet already, of 4 x v6e-8 in us-east5-a, us-east5-b" in output
    assert "fix: tpu fleet delete dev --slice adhoc, or --slice ANOTHER" in output
    assert world.objects == before
    assert fleet([*CREATE, *more, "--slice", "mine", "--yes"]) == 0


@pytest.mark.parametrize("name", ["train", "extract"])
def test_one_of_the_files_names_is_refused(
    name: str, world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet([*CREATE, "--slice", name, "--yes"]) == 1
    assert f'2 slices called "{name}"' in capsys.readouterr().err
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
    assert fleet(["create", "dev", *flags, "--yes"]) == 1
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


def test_one_that_got_no_chips_can_be_forgotten_too(world: Cloud) -> None:
    world.dry = {"us-east5-a", "us-east5-b"}
    assert fleet([*CREATE, "--yes"]) == 1
    assert fleet(["delete", "dev", "--slice", "adhoc", "--yes"]) == 0
    assert AdHoc(world, OWNER.stack).read() == {}  # type: ignore[arg-type]


def test_a_fleets_description_that_cannot_be_read_is_an_error(world: Cloud) -> None:
    for text in ("", "[]", '"a"'):
        world.objects[f"{OWNER.stack}/fleets/mine.json"] = text, 1
        with pytest.raises(FleetError, match=r"fleets/mine.json: can't be read"):
            AdHoc(world, OWNER.stack).read()  # type: ignore[arg-type]
