"""Commands and flags do what they say, or are refused with their rule."""

import json
import socket
import time

import pytest

from fleet.controller_state import ControllerState
from fleet.environment import selected
from fleet.errors import FleetError
from fleet.request import FleetCommand
from fleet.store import object_of
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from tests.fleet.command import fleet
from tests.fleet.conftest import OWNER
from tests.fleet.world import Cloud, _world, enter, settings  # noqa: F401


def test_flags_narrow_and_never_widen() -> None:
    with pytest.raises(FleetError, match="has 2 in us-east5-a"):
        selected(settings(), FleetCommand("dev", ("extract",), ("us-east5-a",), 3))
    with pytest.raises(FleetError) as caught:
        selected(settings(), FleetCommand("dev", ("extrct",), ("us-west1-c",)))
    assert "--slice extrct" in str(caught.value)
    assert "--zones us-west1-c" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ("--slice train", {"train"}),
        ("--zones us-east5-a", {"tpu-us-east5-a-0", "tpu-us-east5-a-1", "tpu-us-east5-a-7"}),
        ("--slice extract --zones us-east5-b", {"tpu-us-east5-b-0", "tpu-us-east5-b-1"}),
        ("--slice extract --workers-per-zone 1", {"tpu-us-east5-a-0", "tpu-us-east5-b-0"}),
        (
            "--slice extract --workers-per-zone 2",
            {f"tpu-us-east5-{zone}-{number}" for zone in "ab" for number in (0, 1)},
        ),
        ("--workers-per-zone 1", {"train", "tpu-us-east5-a-0", "tpu-us-east5-a-7", "tpu-us-east5-b-7"}),
    ],
)
def test_list_is_narrowed_and_names_orphans_unless_a_slice_is_named(
    flags: str, names: set[str], world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = world
    for z in "ab":
        cloud.stray(f"tpu-us-east5-{z}-7", f"us-east5-{z}")
    assert fleet(["list", "dev", "--json", *flags.split()]) == 0
    assert {load["name"] for load in json.loads(capsys.readouterr().out)} == names


@pytest.mark.parametrize(
    ("flags", "failure", "deleted", "code"),
    [
        ("--yes", None, ["train"], 0),
        ("--yes", Failure(Kind.QUOTA, "no more"), [], 1),
        ("--dry-run", None, [], 0),
    ],
)
def test_delete_for_programs_is_one_object(
    flags: str,
    failure: Failure | None,
    deleted: list[str],
    code: int,
    world: Cloud,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cloud = world
    cloud.failure = failure
    assert fleet(["delete", "dev", "--slice", "train", "--json", flags]) == code
    output = capsys.readouterr()
    why = {"train": str(failure)} if failure else {}
    assert json.loads(output.out) == {"meant": ["train"], "deleted": deleted, "failed": why}
    assert "  delete  train in us-east5-b\n" in output.err


def test_a_node_that_is_not_deleted_is_a_failure_of_the_command_and_the_others_go(
    world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    delete, refused = world.delete, "tpu-us-east5-a-0"

    def refuse(zone: str, name: str) -> None:
        if name == refused:
            raise RequestError(Failure(Kind.QUOTA, "no more"))
        delete(zone, name)

    monkeypatch.setattr(world, "delete", refuse)
    line = ["delete", "dev", "--slice", "extract", "--zones", "us-east5-a", "--yes", "--json"]
    assert fleet(line) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["deleted"], [*report["failed"]]) == (["tpu-us-east5-a-1"], [refused])
    assert (world.states[refused], world.states["tpu-us-east5-a-1"]) == ("READY", "")


def test_delete_for_programs_says_so_where_there_is_nothing(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    world.states["train"] = ""
    assert fleet(["delete", "dev", "--slice", "train", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"meant": [], "deleted": [], "failed": {}}


def test_a_page_whose_port_is_taken_is_refused_before_anything_is_done(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = world
    cloud.states["train"] = "PREEMPTED"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert fleet(["monitor", "dev", "--port", str(port)]) == 1
    output = capsys.readouterr().err
    assert (
        f"--port {port}: must be free for this user: Address already in use\n    fix: another port" in output
    )
    assert not cloud.requests
    assert cloud.kept is None


@pytest.mark.parametrize(
    "line",
    [
        "monitor dev --port 65536",
        "monitor dev --port -1",
        "monitor dev --monitor-interval 0",
        "exec dev --parallel 0 -- true",
        "exec dev --timeout-s 1.5 -- true",
        "deploy dev --max-samples 0",
        "status dev --workers-per-zone ²",
        f"status dev --workers-per-zone {'9' * 5000}",
    ],
)
def test_a_flag_out_of_range_is_a_usage_error(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet(line.split()) == 2
    assert f"Invalid value for '{line.split()[2]}'" in capsys.readouterr().err


def test_orphans_are_found_and_deleted_where_the_file_lists_no_slices_any_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = settings([])
    cloud = Cloud(result)
    cloud.stray("tpu-us-east5-b-7", "us-east5-b")
    enter(monkeypatch, cloud, result)
    assert [fleet([name, "dev"]) for name in ("status", "list")] == [0, 0]
    assert capsys.readouterr().out.count("tpu-us-east5-b-7") == 2
    assert fleet(["delete", "dev", "--orphans", "--yes"]) == 0
    assert cloud.requests == [("delete", "tpu-us-east5-b-7")]
    assert fleet(["create", "dev", "--yes"]) == 2
    assert "Pulumi.dev.yaml lists no slices" in capsys.readouterr().err


def test_recovering_gives_no_living_node_new_settings_and_creating_does(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    world.states["tpu-us-east5-b-1"] = "PREEMPTED"
    world.labels["tpu-us-east5-a-0"] = {**world.labels["tpu-us-east5-a-0"], "spec": "of-before"}
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert ("create", "tpu-us-east5-b-1") in world.requests
    assert not world.updated
    capsys.readouterr()
    assert fleet(["create", "dev", "--yes"]) == 0
    assert world.updated == ["tpu-us-east5-a-0"]
    output = capsys.readouterr().out
    assert "new nodes boot" not in output, "there is none"
    assert "or now: tpu fleet exec dev --slice extract -- sudo systemctl restart google-startup" in output


def test_status_names_the_next_command_where_nobody_recovers_what_was_lost(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    world.states["tpu-us-east5-a-1"] = "PREEMPTED"
    assert fleet(["status", "dev"]) == 0
    line = "tpu-us-east5-a-1: no controller recovers it; next: tpu recover dev; tpu fleet monitor dev also"
    assert line in capsys.readouterr().out
    leader = {"id": "other", "host": "a", "at_s": time.time()}
    world.objects[object_of(OWNER.stack)] = json.dumps({**ControllerState().to_json(), "leader": leader}), 1
    assert fleet(["status", "dev"]) == 0
    assert "no controller recovers" not in capsys.readouterr().out
