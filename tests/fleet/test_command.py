"""The command line, against a cloud and a stack that answer as they are told."""

import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fleet.books import SIGN_S, BucketBooks

from fleet import __main__ as command
from fleet import handbook, provision
from fleet.errors import FleetError
from fleet.failures import Failure, Kind
from fleet.google import AskedError, Google
from fleet.memory import Memory
from fleet.roster import within_budget
from fleet.state import Place, Seen, View, Word, ZoneView
from infra.nodes import nodes
from infra.settings import Settings
from infra.settings.parser import parse

LABELS = {"environment": "dev", "layer": "tpu"}
DOCS = Path(__file__).parents[2] / "docs"


def settings(**more: Any) -> Settings:
    slices = [
        {"name": "train", "acceleratorType": "v6e-16", "zones": ["us-east5-b"], "run": "train tiny.toml"},
        {
            "name": "extract", "acceleratorType": "v6e-8", "zones": ["us-east5-a", "us-east5-b"], "count": 4,
            "spot": True, "run": "extract qwen2.5-0.5b.toml --stream gs://b/streams",
        },
    ]  # fmt: skip
    values = {
        "gcp:project": "my-project",
        "storage:bucketName": "my-project-checkpoints",
        "storage:location": "us-east5",
        "tpu:slices": json.dumps(slices),
        **{key if ":" in key else f"fleet:{key}": str(value) for key, value in more.items()},
    }
    return parse("dev", values, "Pulumi.dev.yaml")


class Cloud:
    """Shows nodes in given states, READY and working unless said otherwise."""

    def __init__(self, meant: Settings):
        self.states = {one.name: "READY" for one in nodes(meant)}
        self.zones = {one.name: one.zone for one in nodes(meant)}
        self.strays: list[Seen] = []
        self.silent: set[str] = set()
        self.kept: str | None = None
        self.generation = 0
        self.swept: list[str] = []
        self.at_s = 1_000_000.0

    def look(self, zones: Any) -> View:
        self.at_s += 60
        views: dict[str, ZoneView] = {}
        for zone in {*zones, *self.zones.values()}:
            there = {
                name: Seen(name, zone, state, "1", self.at_s - 7200, LABELS)
                for name, state in self.states.items()
                if self.zones[name] == zone and state
            } | {one.name: one for one in self.strays if one.zone == zone}
            views[zone] = ZoneView(there)
            if zone in self.silent:
                views[zone] = ZoneView(None, Failure(Kind.TRANSIENT, "unavailable"))
        words = {
            name: [Word(self.at_s - 5, "ready", "launch", "running", 1250, 5000, 12, 12_000_000_000)]
            for name, state in self.states.items()
            if state == "READY"
        }
        return View(self.at_s, views, words)

    def sweep(self, leftover: Seen) -> None:
        self.swept.append(leftover.name)
        self.strays.remove(leftover)

    def read(self, name: str) -> tuple[str, int] | None:
        return None if self.kept is None else (self.kept, self.generation)

    def write(self, name: str, text: str, generation: int) -> int:
        if generation != self.generation:
            raise AskedError(Failure(Kind.INVALID, "conditionNotMet"))
        self.kept, self.generation = text, generation + 1
        return self.generation


class Stack:
    """A stack and its updates: brings nodes up at once, or fails as it is told."""

    def __init__(self, cloud: Cloud):
        self.cloud, self.asked = cloud, list[tuple[str, tuple[str, ...]]]()
        self.failure: Failure | None = None
        self.dry: set[str] = set()
        self.outcome: provision.Outcome | None = None
        self.unheld: set[str] = set()
        self.lost: set[str] = set()  # held, though Google has them no more

    def known(self) -> frozenset[str]:
        return frozenset(name for name, state in self.cloud.states.items() if state)

    def held(self) -> dict[str, str]:
        return {name: self.cloud.zones[name] for name in (self.known() | self.lost) - self.unheld}

    def start(self, some: dict[str, Place]) -> None:
        self.asked.append(("bring", tuple(some)))
        self.outcome = {}
        for name, place in some.items():
            zone = place.zone
            failure = Failure(Kind.STOCK_OUT, f"none in {zone}") if zone in self.dry else self.failure
            self.cloud.states[name], self.cloud.zones[name] = "READY" if failure is None else "", zone
            self.outcome[name] = failure

    def remove(self, some: Any) -> None:
        self.asked.append(("remove", tuple(some)))
        self.outcome = dict.fromkeys(some, self.failure)

    def ended(self) -> provision.Outcome | None:
        found, self.outcome = self.outcome, None
        return found


@pytest.fixture(name="world")
def _world(monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Stack]:
    meant = settings()
    cloud = Cloud(meant)
    stack = Stack(cloud)
    cloud.bucket = "my-project-checkpoints"  # type: ignore[attr-defined]
    monkeypatch.setattr(command, "from_file", lambda _: meant)
    monkeypatch.setattr(command, "Google", lambda *_: cloud)
    monkeypatch.setattr(command.provision, "Updates", lambda _: stack)
    monkeypatch.setattr(command.provision, "placed", lambda *_: stack.held())
    monkeypatch.setattr(command, "_POLL_S", 0.01)
    return cloud, stack


def test_status_shows_every_member_and_the_sums(
    world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, stack = world
    cloud.states["tpu-us-east5-a-1"] = "PREEMPTED"
    assert command.main(["status", "dev"]) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 7
    assert re.search(r"tpu-us-east5-a-1 +us-east5-a +PREEMPTED +recovering .*Google says PREEMPTED", said)
    assert "5 slices: 4 working, 1 recovering; 5,000 samples, 48 shards, 48.0 GB" in said
    assert not stack.asked
    assert cloud.kept is None


def test_who_only_looks_waits_for_no_sdk() -> None:
    """Pulumi's takes twice as long to import as all else."""
    told = "import sys, fleet.__main__; print(*{name.partition('.')[0] for name in sys.modules})"
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout
    assert {"requests", "yaml"} <= set(said.split())
    assert not {"pulumi", "pulumi_gcp", "grpc"} & set(said.split())


def test_status_for_programs(world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str]) -> None:
    world[0].silent.add("us-east5-b")
    assert command.main(["status", "dev", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["unanswered"] == {"us-east5-b": "transient"}
    assert told["decisions"]["train"] == "wait"
    assert {row["condition"] for row in told["members"]} == {"working", "unknown"}


def test_list_names_orphans(world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str]) -> None:
    world[0].strays.append(Seen("tpu-us-east5-b-7", "us-east5-b", "READY", labels=LABELS))
    assert command.main(["list", "dev"]) == 0
    assert re.search(r"tpu-us-east5-b-7 +us-east5-b +READY +nobody: an orphan", capsys.readouterr().out)


def test_only_what_is_gone_is_brought_back(
    world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, stack = world
    cloud.states |= {
        "train": "PREEMPTED", "tpu-us-east5-a-0": "REPAIRING", "tpu-us-east5-b-1": "", "tpu-us-east5-a-1": "",
    }  # fmt: skip
    stack.lost = {"tpu-us-east5-b-1"}
    assert command.main(["recreate-preempted", "dev", "--yes"]) == 0
    assert [(verb, set(some)) for verb, some in stack.asked] == [("bring", {"train", "tpu-us-east5-b-1"})]
    said = capsys.readouterr().out
    assert "train: created" in said
    assert "v6e-16" in said, "the price comes first"
    assert json.loads(cloud.kept or "")["attempts"]


def test_what_the_stack_does_not_hold_is_shown_and_taken_in(
    world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str]
) -> None:
    _, stack = world
    stack.unheld = {"train"}
    assert command.main(["status", "dev"]) == 0
    assert "the stack doesn't hold it: taken in as it is" in capsys.readouterr().out
    assert command.main(["create", "dev", "--yes"]) == 0
    assert stack.asked == [("bring", ("train",))]
    assert "train: taken in" in capsys.readouterr().out
    assert command.main(["delete", "dev", "--slice", "train", "--yes"]) == 0
    assert stack.asked[1:] == [("remove", ("train",))]


def test_what_was_lost_and_could_not_be_made_again_is_brought_back_too(world: tuple[Cloud, Stack]) -> None:
    cloud, stack = world
    cloud.states["train"], stack.dry = "PREEMPTED", {"us-east5-b"}
    assert command.main(["recreate-preempted", "dev", "--yes"]) == 1
    assert not cloud.states["train"]
    stack.dry = set()
    assert command.main(["recreate-preempted", "dev", "--yes"]) == 0
    assert cloud.states["train"] == "READY"


def test_what_was_deleted_is_made_at_once_when_somebody_asks_and_not_by_recovering(
    world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, _ = world
    look = cloud.look
    cloud.look = lambda zones: replace(look(zones), at_s=1e6 + 120)  # type: ignore[method-assign]
    cloud.states["train"] = ""
    assert command.main(["create", "dev", "--yes"]) == 0
    assert command.main(["delete", "dev", "--slice", "train", "--yes"]) == 0
    cloud.states["train"] = ""
    assert command.main(["recreate-preempted", "dev", "--yes"]) == 0
    assert "nothing to bring back" in capsys.readouterr().out
    assert command.main(["create", "dev", "--yes"]) == 0
    assert cloud.states["train"] == "READY"


def test_create_leaves_what_was_preempted(world: tuple[Cloud, Stack]) -> None:
    cloud, stack = world
    cloud.states |= {"train": "PREEMPTED", "tpu-us-east5-b-1": ""}
    assert command.main(["create", "dev", "--yes"]) == 0
    assert stack.asked == [("bring", ("tpu-us-east5-b-1",))]


def test_what_could_not_be_created_is_said_with_its_reason(
    world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, stack = world
    cloud.states["train"] = ""
    stack.failure = Failure(Kind.QUOTA, "Quota limit 'TPUV6E' has been exceeded", "TPUV6E")
    assert command.main(["create", "dev", "--yes"]) == 1
    said = capsys.readouterr()
    assert "quota: Quota limit 'TPUV6E' has been exceeded" in said.out
    assert "IAM & Admin > Quotas" in said.err


def test_who_asks_for_a_slice_gets_it_in_the_first_zone_that_has_chips(
    world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, stack = world
    slices = [{"name": "train", "acceleratorType": "v6e-16", "zones": ["us-east5-b"],
               "otherZones": ["us-east1-d", "us-east5-a"]}]  # fmt: skip
    meant = settings(**{"tpu:slices": json.dumps(slices), "storage:allowCrossRegion": "true"})
    monkeypatch.setattr(command, "from_file", lambda _: meant)
    cloud.states, cloud.zones = {"train": ""}, {"train": "us-east5-b"}
    stack.dry = {"us-east5-b", "us-east1-d"}
    assert command.main(["create", "dev", "--yes"]) == 0
    assert (cloud.states["train"], cloud.zones["train"], len(stack.asked)) == ("READY", "us-east5-a", 3)
    cloud.states["train"] = ""
    cloud.at_s += 600
    stack.dry.add("us-east5-a")
    assert command.main(["create", "dev", "--yes"]) == 1
    assert len(stack.asked) == 6, "each zone once"
    assert "error: train: stock-out: none in us-east5-a" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["create", "recreate-preempted", "delete"])
def test_a_dry_run_changes_nothing(
    name: str, world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, stack = world
    cloud.states |= {"train": "PREEMPTED", "tpu-us-east5-b-1": ""}
    assert command.main([name, "dev", "--dry-run"]) == 0
    assert not stack.asked
    assert cloud.kept is None
    said = capsys.readouterr().out
    assert ("$/hour" in said) == (name != "delete"), "the price comes before anything is created"
    assert "train" in said or name == "create"


@pytest.mark.parametrize("name", ["create", "recreate-preempted", "delete"])
def test_without_a_terminal_and_yes_nothing_is_changed(
    name: str, world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, stack = world
    cloud.states |= {"train": "PREEMPTED", "tpu-us-east5-b-1": ""}
    assert command.main([name, "dev"]) == 1
    assert not stack.asked
    assert "fix: --yes" in capsys.readouterr().err


def test_delete_takes_what_was_named(world: tuple[Cloud, Stack]) -> None:
    assert command.main(["delete", "dev", "--zones", "us-east5-b", "--slice", "extract", "--yes"]) == 0
    assert world[1].asked == [("remove", ("tpu-us-east5-b-0", "tpu-us-east5-b-1"))]


@pytest.mark.parametrize("line", ["recreate-preempted dev --yes", "delete dev --yes", "monitor dev"])
def test_beside_another_keeper_nothing_is_done(
    line: str, world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, stack = world
    cloud.states["train"] = "PREEMPTED"
    BucketBooks(cloud).write(Memory())  # type: ignore[arg-type]
    assert command.main(line.split()) == 1
    assert not stack.asked
    assert "another `fleet` acts, on" in capsys.readouterr().err


def test_a_keeper_that_waits_long_between_looks_shows_that_it_lives(
    world: tuple[Cloud, Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another would take its place after three minutes."""
    now, signs = [0.0], list[float]()
    keeper = command.Fleet(settings(), nodes(settings()), world[0]).keeper()  # type: ignore[arg-type]
    monkeypatch.setattr(keeper, "sign", lambda: signs.append(now[0]))
    monkeypatch.setattr(command.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    command._rest(keeper, 600)
    assert now[0] == 600
    assert max(after - before for before, after in pairwise([0.0, *signs])) <= SIGN_S


def test_an_interrupted_delete_says_that_it_goes_on_and_gives_its_place_up(
    world: tuple[Cloud, Stack], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, stack = world

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stack, "ended", interrupt)
    assert command.main(["delete", "dev", "--slice", "train", "--yes"]) == 130
    assert stack.asked == [("remove", ("train",))]
    assert "train: the update goes on" in capsys.readouterr().err
    BucketBooks(cloud).read()  # type: ignore[arg-type]


def test_other_fleets_are_no_orphans_where_a_command_is_narrowed(
    world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str]
) -> None:
    world[0].states["tpu-us-east5-b-0"] = "PREEMPTED"
    assert command.main(["status", "dev", "--slice", "train"]) == 0
    assert "orphan" not in capsys.readouterr().out
    world[0].states["train"] = "PREEMPTED"
    assert command.main(["recreate-preempted", "dev", "--slice", "train", "--yes"]) == 0
    assert not world[0].swept


def test_leftovers_are_swept_and_healthy_orphans_are_not(world: tuple[Cloud, Stack]) -> None:
    cloud, _ = world
    cloud.states["train"] = "PREEMPTED"
    for name, state in (("tpu-us-east5-b-7", "PREEMPTED"), ("tpu-us-east5-b-8", "READY")):
        cloud.strays.append(Seen(name, "us-east5-b", state, labels=LABELS))
    cloud.strays.append(Seen("somebody-elses", "us-east5-b", "PREEMPTED", labels={"environment": "dev"}))
    assert command.main(["recreate-preempted", "dev", "--yes"]) == 0
    assert cloud.swept == ["tpu-us-east5-b-7"]


def test_monitor_brings_back_by_itself_and_leaves_the_fleet_at_ctrl_c(
    world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, stack = world
    cloud.states["train"] = "PREEMPTED"

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while (not stack.asked or stack.outcome is not None) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)  # for what the look after it says
        signal.raise_signal(signal.SIGINT)

    # Whoever began these tests with & made them ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    assert command.main(["monitor", "dev", "--monitor-interval", "1"]) == 130
    signal.signal(signal.SIGINT, before)
    said = capsys.readouterr()
    assert stack.asked == [("bring", ("train",))]
    assert "train: replace (Google says PREEMPTED)" in said.out
    assert "train: created" in said.out
    assert "to come back: python -m fleet monitor dev" in said.err


def test_a_service_manager_ends_a_monitor_as_ctrl_c_does(
    world: tuple[Cloud, Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(command.time, "sleep", lambda _: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        command.main(["monitor", "dev"])
    signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    BucketBooks(world[0]).read()  # type: ignore[arg-type]


def test_monitor_follows_the_settings_unless_they_are_wrong(
    world: tuple[Cloud, Stack], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, stack = world
    before, dear = settings(), settings(dollarsPerHour=1)
    slices = [{"name": "other", "acceleratorType": "v6e-8", "zones": ["us-east5-a"]}]
    other = settings(**{"tpu:slices": json.dumps(slices)})
    files: list[Settings | Exception] = [before, FleetError("no YAML"), FleetError("no YAML"), dear, other]

    def read(_: str) -> Settings:
        file = files.pop(0) if len(files) > 1 else files[0]
        if isinstance(file, Exception):
            raise file
        return file

    def end(*_: Any) -> None:
        if stack.asked and stack.outcome is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "from_file", read)
    monkeypatch.setattr(command.time, "sleep", end)
    assert command.main(["monitor", "dev"]) == 130
    said = capsys.readouterr().out
    assert said.count("the settings aren't followed: no YAML") == 1
    assert "fleet:dollarsPerHour allows $1" in said
    assert "the settings changed: other is new, tpu-us-east5-a-0 is asked for no more" in said
    assert stack.asked == [("bring", ("other",))]


def test_a_budget_refuses_before_anything_is_created() -> None:
    known = within_budget(settings())
    assert known is not None
    tight = replace(settings(), fleet=replace(settings().fleet, dollars_per_hour=int(known) - 1))
    with pytest.raises(FleetError, match="fleet:dollarsPerHour allows"):
        within_budget(tight)


def test_every_command_of_the_page_is_one() -> None:
    lines = re.findall(r"^    python -m fleet (.+?)(?:  .*)?$", (DOCS / "fleet.md").read_text(), re.MULTILINE)
    assert {line.split()[0] for line in lines} == set(command.COMMANDS)
    for line in lines:
        command.parser(command.COMMANDS).parse_args(shlex.split(line.partition(" -- ")[0]))
    for name, (_, example) in command.COMMANDS.items():
        command.parser(command.COMMANDS).parse_args([name, *shlex.split(example.partition(" -- ")[0])])


def test_the_table_of_failures_is_the_codes() -> None:
    assert handbook.main([]) == 0


def test_without_credentials_one_sentence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    with pytest.raises(FleetError, match="gcloud auth application-default login"):
        Google("p", "b")
