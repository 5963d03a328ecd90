"""`fleet monitor`, against a cloud and a stack that answer as they are told."""

import re
import signal
import threading
from typing import Any

import pytest

from fleet import environment
from fleet.errors import FleetError
from fleet.store import BucketStore
from infra.settings.schema import Settings
from tests.fleet.command import fleet
from tests.fleet.conftest import OWNER
from tests.fleet.world import Cloud, _world, enter, settings  # noqa: F401
from tests.virtual_time import replace_time


def test_monitor_recovers_logs_its_actions_with_fields_and_leaves_the_fleet_at_ctrl_c(
    world: Cloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.states["train"] = "PREEMPTED"

    def interrupt(_: float) -> None:
        if world.states["train"] == "READY":
            raise KeyboardInterrupt

    replace_time(monkeypatch, "sleep", interrupt)
    assert fleet(["monitor", "dev"]) == 130
    assert world.requests == [("delete", "train"), ("up", "train")]
    output = capsys.readouterr()
    event = r"INFO fleet.controller: train: replace \(Google says PREEMPTED\)"
    assert re.search(rf"{event} node=train zone=us-east5-b action=replace attempt=1\n", output.err)
    assert "5 slices: 4 working, 1 recovering" in output.out
    assert "to resume: tpu fleet monitor dev" in output.err


@pytest.mark.parametrize(
    ("words", "logged"), [([], True), (["--log-level", "warning"], False), (["--log-level", "debug"], True)]
)
def test_the_level_of_a_monitors_log_is_chosen(
    words: list[str], logged: bool, world: Cloud, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    world.states["train"], world.dry = "PREEMPTED", {"us-east5-b"}

    def interrupt(_: float) -> None:
        if ("up", "train") in world.requests and len(world.looked) > 4:
            raise KeyboardInterrupt

    replace_time(monkeypatch, "sleep", interrupt)
    assert fleet(["monitor", "dev", *words]) == 130
    output = capsys.readouterr().err
    assert ("INFO fleet.controller: train: replace" in output) == logged
    assert "WARNING fleet.controller: train: stock-out: none in us-east5-b node=train" in output


def test_a_service_manager_ends_a_monitor_as_ctrl_c_does(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_time(monkeypatch, "sleep", lambda _: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        fleet(["monitor", "dev"])
    assert ended.value.code == 143
    BucketStore(world, OWNER.stack).read()  # type: ignore[arg-type]


def test_monitor_follows_the_settings_unless_they_are_wrong(
    world: Cloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, dear = settings(), settings(dollarsPerHour=1)
    other = settings([{"name": "other", "acceleratorType": "v6e-8", "zones": ["us-east5-a"], "count": 1}])
    files: list[Settings | Exception] = [before, FleetError("no YAML"), FleetError("no YAML"), dear, other]

    def read(_: str, slices: Any = ()) -> Settings:
        file = files.pop(0) if len(files) > 1 else files[0]
        if isinstance(file, Exception):
            raise file
        return file

    def end(*_: Any) -> None:
        if world.requests and world.states.get("tpu-us-east5-a-2") == "READY":
            raise KeyboardInterrupt

    monkeypatch.setattr(environment, "from_file", read)
    replace_time(monkeypatch, "sleep", end)
    assert fleet(["monitor", "dev"]) == 130
    output = capsys.readouterr().err
    assert output.count("WARNING fleet.controller: the new settings are ignored: no YAML") == 1
    assert "fleet:dollarsPerHour allows $1" in output
    assert "the settings changed: other/0 is new, extract/0 is removed" in output
    assert world.requests == [("create", "tpu-us-east5-a-2")], "by a name that no orphan has"


def test_a_monitor_makes_and_updates_nodes_by_the_settings_of_now(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle that is published while it runs is what hosts boot with from then on."""
    lost, later = "tpu-us-east5-b-1", settings(**{"tpu:bundle": "cd" * 32})
    files, naps, pause = [settings(), settings(), settings(), later], [0], threading.Event()

    def fresh() -> bool:
        carried = {world.labels[name]["bundle"] for name in world.states if name != "train"}
        return carried == {"cdcdcdcdcdcd"} and world.states[lost] == "READY"

    def nap(*_: Any) -> None:
        naps[0] += 1
        if naps[0] == 2:
            world.states[lost] = "PREEMPTED"
        if naps[0] > 100 or (naps[0] > 3 and fresh()):
            raise KeyboardInterrupt
        pause.wait(0.01)

    monkeypatch.setattr(environment, "from_file", lambda *_: files.pop(0) if len(files) > 1 else files[0])
    replace_time(monkeypatch, "sleep", nap)
    assert fleet(["monitor", "dev"]) == 130
    assert fresh()
    assert world.requests == [("delete", lost), ("create", lost)]
    assert sorted(world.updated) == sorted(name for name in world.states if name not in ("train", lost))
