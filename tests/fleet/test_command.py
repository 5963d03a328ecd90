"""The command line, against a cloud and a stack that answer as they are told."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import pytest

from cli.fleet import fleet as group
from fleet import monitor, recovery, store
from fleet.adhoc import AdHoc
from fleet.controller_state import ControllerState
from fleet.environment import Environment
from fleet.model import WorkerStatus, ZoneView
from fleet.store import RENEW_S, BucketStore, object_of
from infra.engine.prices import within_budget
from infra.errors import InfraError
from infra.google.failures import Failure, Kind
from infra.layers.tpu import startup
from infra.slices.names import bundle_blob, bundle_manifest
from infra.slices.nodes import nodes
from tests.fleet.command import fleet
from tests.fleet.conftest import OURS, OWNER
from tests.fleet.world import BUNDLE, Cloud, _world, enter, settings  # noqa: F401
from tests.virtual_time import replace_time

BUNDLES = (BUNDLE, "cd" * 32)


def test_status_shows_every_member_and_the_sums(world: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    cloud = world
    cloud.states["tpu-us-east5-a-1"] = "PREEMPTED"
    assert fleet(["status", "dev"]) == 0
    output = capsys.readouterr().out
    assert len(output.splitlines()) == 9
    assert re.search(r"tpu-us-east5-a-1 +us-east5-a +PREEMPTED +recovering .*Google says PREEMPTED", output)
    assert "5 slices: 4 working, 1 recovering; 5,000 samples, 48 shards, 48.0 GB" in output
    assert not cloud.requests
    assert cloud.kept is None


def test_status_shows_what_is_deleted_as_absent_and_what_the_stack_lost_as_recovering(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    world.states["train"] = ""
    assert fleet(["delete", "dev", "--slice", "extract", "--yes"]) == 0
    capsys.readouterr()
    assert fleet(["status", "dev"]) == 0
    output = capsys.readouterr().out
    assert "5 slices: 1 recovering, 4 absent\n" in output
    assert re.search(r"train +train +us-east5-b +- +recovering .*there is no such node", output)
    assert "of the nodes that exist (of a run's starts: tpu runs)" in output


@pytest.mark.parametrize("selection", [[], ["--slice", "train"]])
def test_a_slice_of_the_stack_that_is_done_is_named_while_others_work(
    selection: list[str], world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    world.statuses["train"] = WorkerStatus(0.0, "ready", "launch", "done")
    assert fleet(["status", "dev", *selection]) == 0
    output = capsys.readouterr().out
    command = "delete the entry in Pulumi.dev.yaml, then tpu up dev"
    assert f"\ntrain: all are done, and paid for until they are deleted: {command}\n" in output
    assert "tpu down" not in output


def test_who_only_looks_waits_for_no_sdk() -> None:
    """Pulumi's takes twice as long to import as all else."""
    reported = "import sys, cli.fleet; print(*{name.partition('.')[0] for name in sys.modules})"
    output = subprocess.run(
        [sys.executable, "-c", reported], capture_output=True, text=True, check=True
    ).stdout
    assert {"requests", "yaml"} <= set(output.split())
    assert not {"pulumi", "pulumi_gcp", "grpc"} & set(output.split())


def test_status_for_programs(world: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    world.silent.add("us-east5-b")
    assert fleet(["status", "dev", "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert reported["unanswered"] == {"us-east5-b": "transient"}
    assert reported["decisions"]["train"] == "wait"
    assert {row["condition"] for row in reported["members"]} == {"working", "unknown"}


def test_list_names_orphans(world: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    world.stray("tpu-us-east5-b-7", "us-east5-b")
    assert fleet(["list", "dev"]) == 0
    assert re.search(r"tpu-us-east5-b-7 +us-east5-b +READY +none: an orphan", capsys.readouterr().out)


def test_only_what_is_gone_is_brought_back(world: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    cloud = world
    cloud.states |= {
        "train": "PREEMPTED", "tpu-us-east5-a-0": "REPAIRING", "tpu-us-east5-b-1": "", "tpu-us-east5-a-1": "",
    }  # fmt: skip
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert cloud.requests == [("delete", "train"), ("up", "train")], "the others were never there, or live"
    output = capsys.readouterr().out
    assert "train: created" in output
    assert "v6e-16" in output, "the price comes first"
    assert json.loads(cloud.kept or "")["attempts"]


def test_a_slice_that_the_stack_does_not_hold_is_left_alone_with_what_to_do(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    world.stack.held.clear()
    world.states["train"] = "PREEMPTED"
    assert fleet(["status", "dev"]) == 0
    output = capsys.readouterr().out
    assert "train: a node of this name is there, and your stack doesn't hold it" in output
    assert "fix: if an update of yours was killed: tpu infra settle dev tpu" in output
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert fleet(["delete", "dev", "--slice", "train", "--yes"]) == 0
    assert not world.requests


def test_a_fleet_of_another_stack_is_left_alone_until_it_is_taken_over_after_a_yes(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = "tpu-us-east5-a-1"
    world.states[lost] = "PREEMPTED"
    for name, result in world.labels.items():
        world.labels[name] = {**result, "stack": "lost"} if "fleet" in result else result
    for line in ("create dev --yes", "recover dev --yes", "delete dev --slice extract --yes --orphans"):
        assert fleet(line.split()) == 0
    assert fleet(["status", "dev"]) == 0
    output = capsys.readouterr().out
    assert (
        "tpu-us-east5-a-0 and 3 more: it is of another stack, lost\n    fix: if no other controller keeps it"
        in output
    )
    assert "orphan" not in output
    assert fleet(["take-over", "dev"]) == 1, "nobody said yes"
    assert fleet(["take-over", "dev", "--dry-run"]) == 0
    assert world.requests == world.updated == []
    assert fleet(["take-over", "dev", "--yes"]) == 0
    assert sorted(world.updated) == sorted(name for name in world.states if name != "train")
    assert {label["stack"] for label in world.labels.values()} == {OWNER.stack}
    assert {*world.labels["tpu-us-east5-b-0"]} > {"fleet", "member", "bundle"}, "the others stay"
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert world.requests == [("delete", lost), ("create", lost)]


@pytest.mark.parametrize("name", ["train", "tpu-us-east5-b-1"])
def test_what_was_lost_and_could_not_be_made_again_is_brought_back_too(name: str, world: Cloud) -> None:
    world.states[name], world.dry = "PREEMPTED", {"us-east5-b"}
    assert fleet(["recover", "dev", "--yes"]) == 1
    assert not world.states[name]
    world.dry = set()
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert world.states[name] == "READY"


@pytest.mark.parametrize("at", ["node", "delete", "create"])
def test_a_recovery_that_was_killed_goes_on_and_rents_nothing_that_was_never_there(
    at: str, world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any of its requests, before it or after it."""
    name, calls = "tpu-us-east5-b-1", [0]
    world.states |= {name: "PREEMPTED", "tpu-us-east5-a-1": ""}
    request = getattr(world, at)

    def killed(*arguments: object) -> object:
        calls[0] += 1
        if calls[0] == 1:
            signal.raise_signal(signal.SIGUSR1)
            time.sleep(0.1)
        return request(*arguments)

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(world, at, killed)
    monkeypatch.setattr(BucketStore, "write", kept_alive(BucketStore.write))
    before = signal.signal(signal.SIGUSR1, kill)
    try:
        with pytest.raises(Killed):
            fleet(["recover", "dev", "--yes"])
    finally:
        signal.signal(signal.SIGUSR1, before)
    time.sleep(0.3)  # what was on its way to Google
    assert json.loads(world.kept or "")["attempts"][-1]["cause"] == "preemption"
    expire(world)
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert (world.states[name], world.states["tpu-us-east5-a-1"]) == ("READY", "")
    assert world.requests.count(("create", name)) == 1


def kept_alive(write: Any) -> Any:
    """A killed process releases no lease."""
    return lambda self, state, renew=True: write(self, state, True) if renew else None


def expire(cloud: Cloud) -> None:
    """The lease in the bucket is old."""
    name = object_of(OWNER.stack)
    text, generation = cloud.objects[name]
    parsed = json.loads(text)
    parsed["leader"]["at_s"] -= 600
    cloud.objects[name] = json.dumps(parsed), generation


@pytest.mark.parametrize("name", ["train", "tpu-us-east5-b-1"])
def test_what_was_deleted_is_made_at_once_when_somebody_asks_and_not_by_recovering(
    name: str, world: Cloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.states[name] = ""
    assert fleet(["create", "dev", "--yes"]) == 0
    both = ["--slice", "train", "--slice", "extract"]
    assert fleet(["delete", "dev", *both, "--zones", "us-east5-b", "--yes"]) == 0
    world.stack.held.clear()  # a refresh
    capsys.readouterr()
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert "nothing to recover" in capsys.readouterr().out
    assert fleet(["create", "dev", "--yes"]) == 0
    assert world.states[name] == "READY"


@pytest.mark.parametrize("begun", [True, False])
def test_create_ends_where_a_zone_stays_silent_and_names_it(
    begun: bool, world: Cloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It falls silent before the creation is requested, or while that is under way."""
    world.states |= {"tpu-us-east5-a-0": "", "tpu-us-east5-b-1": ""}
    when, answer = ("create", world.create) if begun else ("is_there", world.is_there)

    def silenced(*arguments: Any) -> Any:
        if begun == ("us-east5-b" in arguments):
            world.silent.add("us-east5-b")
        return answer(*arguments)

    monkeypatch.setattr(world, when, silenced)
    monkeypatch.setattr(recovery, "_PATIENCE_S", 60.0)
    assert fleet(["create", "dev", "--yes"]) == 1
    output = capsys.readouterr()
    assert ("create", "tpu-us-east5-b-1") in world.requests if begun else world.requests == []
    assert 60 < len(world.looked) < 80, "a zone that answers again is waited for"
    assert "error: extract/3: unknown: us-east5-b didn't answer for 1 min" in output.err
    assert "next: repeat the command, or let tpu fleet monitor dev retry" in output.err
    assert ("extract/0" in output.err) == (not begun), "it may live in the silent one"
    assert "done" not in output.out


def test_a_zone_that_answers_in_between_is_waited_for_anew(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.states["tpu-us-east5-b-1"], zone = "", world.zone

    def flaky(name: str) -> ZoneView:
        silent = name == "us-east5-b" and len(world.looked) not in (1, 50)
        return ZoneView(None, Failure(Kind.TRANSIENT, "unavailable")) if silent else zone(name)

    monkeypatch.setattr(world, "zone", flaky)
    monkeypatch.setattr(recovery, "_PATIENCE_S", 60.0)
    assert fleet(["create", "dev", "--yes"]) == 1
    assert 105 < len(world.looked) < 130


def test_create_says_that_a_zone_it_knows_nothing_of_did_not_answer(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    world.silent.add("us-east5-b")
    world.states["tpu-us-east5-b-1"] = ""
    assert fleet(["create", "dev", "--yes"]) == 1
    assert "us-east5-b didn't answer: transient" in capsys.readouterr().err
    assert not world.requests


def test_create_leaves_what_was_preempted(world: Cloud) -> None:
    cloud = world
    cloud.states |= {"train": "PREEMPTED", "tpu-us-east5-b-1": ""}
    assert fleet(["create", "dev", "--yes"]) == 0
    assert cloud.requests == [("create", "tpu-us-east5-b-1")]


@pytest.mark.parametrize("missing", [bundle_blob(startup.script_sha256()), *map(bundle_manifest, BUNDLES)])
def test_nothing_is_created_while_the_script_or_a_bundle_is_not_published(
    missing: str, world: Cloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    item = {
        "name": "mine",
        "acceleratorType": "v6e-8",
        "zones": ["us-east5-a"],
        "count": 1,
        "bundle": BUNDLES[1],
    }
    AdHoc(world, OWNER.stack).keep("mine", item)  # type: ignore[arg-type]
    world.states["tpu-us-east5-b-1"] = ""
    monkeypatch.setattr(world, "is_there", lambda name: name != missing)
    assert fleet(["create", "dev", "--yes"]) == 1
    assert not world.requests
    output = capsys.readouterr().err
    assert f"gs://{world.bucket}/{missing} does not exist\n    fix: tpu publish dev" in output


def test_what_could_not_be_created_is_said_with_its_reason(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = world
    cloud.states["train"] = ""
    cloud.failure = Failure(Kind.QUOTA, "Quota limit 'TPUV6E' has been exceeded", "TPUV6E")
    assert fleet(["create", "dev", "--yes"]) == 1
    output = capsys.readouterr()
    assert "quota: Quota limit 'TPUV6E' has been exceeded" in output.out
    assert "IAM & Admin > Quotas" in output.err


def test_who_asks_for_a_member_gets_it_in_the_first_zone_that_has_chips(
    world: Cloud, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = [{"name": "extract", "acceleratorType": "v6e-8", "zones": ["us-east5-b"], "count": 1,
               "fallbackZones": ["us-east1-d", "us-east5-a"]}]  # fmt: skip
    target = settings(slices, **{"storage:allowCrossRegion": "true"})
    cloud = Cloud(target)
    enter(monkeypatch, cloud, target)
    cloud.states, cloud.dry = {}, {"us-east5-b", "us-east1-d"}
    assert fleet(["create", "dev", "--yes"]) == 0
    made = "tpu-us-east5-a-0"
    assert (cloud.states[made], cloud.zones[made], len(cloud.requests)) == ("READY", "us-east5-a", 3)
    assert fleet(["create", "dev", "--yes"]) == 0
    assert len(cloud.requests) == 3, "it stays there"
    assert fleet(["delete", "dev", "--yes"]) == 0
    cloud.dry.add("us-east5-a")
    assert fleet(["create", "dev", "--yes"]) == 1
    assert len(cloud.requests) == 7, "each zone once"
    assert "error: extract/0: stock-out: none in" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["create", "recover", "delete"])
def test_a_dry_run_changes_nothing(name: str, world: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    cloud = world
    cloud.states |= {"train": "PREEMPTED", "tpu-us-east5-b-1": ""}
    assert fleet([name, "dev", "--dry-run"]) == 0
    assert not cloud.requests
    assert cloud.kept is None
    output = capsys.readouterr().out
    assert ("$/hour" in output) == (name != "delete"), "the price comes before anything is created"
    assert "train" in output or name == "create"


@pytest.mark.parametrize("name", ["create", "recover", "delete"])
def test_without_a_terminal_and_yes_nothing_is_changed(
    name: str, world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = world
    cloud.states |= {"train": "PREEMPTED", "tpu-us-east5-b-1": ""}
    assert fleet([name, "dev"]) == 1
    assert not cloud.requests
    assert "fix: --yes" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["recover dev --yes", "delete dev --yes", "monitor dev"])
def test_beside_another_controller_nothing_is_done(
    line: str, world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = world
    cloud.states["train"] = "PREEMPTED"
    BucketStore(cloud, OWNER.stack).write(ControllerState())  # type: ignore[arg-type]
    assert fleet(line.split()) == 1
    assert not cloud.requests
    assert "another controller acts, on" in capsys.readouterr().err


def test_a_controller_that_waits_long_between_looks_renews_its_lease(
    world: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another would take its place after three minutes."""
    now, signs = [0.0], list[float]()
    item = Environment(settings(), nodes(settings()), world, world.stack).controller(lead=True)  # type: ignore[arg-type]
    monkeypatch.setattr(item, "renew", lambda: signs.append(now[0]))
    replace_time(monkeypatch, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monitor.rest(item, 600)
    assert now[0] == 600
    assert max(after - before for before, after in pairwise([0.0, *signs])) <= RENEW_S


@pytest.mark.parametrize("at", ["delete", "observe"])
def test_a_delete_that_takes_long_renews_its_lease_and_stops_where_another_has_taken_it(
    at: str, world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a monitor begins after three minutes, and makes again what is still being deleted."""
    answer, name, taken = getattr(world, at), object_of(OWNER.stack), list[bool]()

    def take(*arguments: Any) -> Any:
        if world.kept and not taken:  # in the midst of it
            taken.append(True)
            text, generation = world.objects[name]
            stored = json.loads(text)
            world.objects[name] = (
                json.dumps(stored | {"leader": {**stored["leader"], "id": "2"}}),
                generation + 1,
            )
        return answer(*arguments)

    def begin(_: str, node: str) -> None:
        world.requests.append(("delete", node))
        world.states[node] = "DELETING"

    monkeypatch.setattr(store, "RENEW_S", -1.0)
    if at == "observe":
        monkeypatch.setattr(world, "delete", begin)
    monkeypatch.setattr(world, at, take)
    assert fleet(["delete", "dev", "--slice", "extract", "--yes"]) == 1
    assert taken
    assert len(world.requests) == (1 if at == "delete" else 4)
    assert "another controller acts" in capsys.readouterr().err
    assert json.loads(world.kept or "")["leader"]["id"] == "2"


def test_an_interrupted_delete_gives_its_lease_up(world: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(world, "delete", interrupt)
    assert fleet(["delete", "dev", "--slice", "train", "--yes"]) == 130
    BucketStore(world, OWNER.stack).read()  # type: ignore[arg-type]


def test_an_interrupted_creation_says_that_it_goes_on_and_gives_its_lease_up(
    world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    world.states["tpu-us-east5-b-1"] = ""
    replace_time(monkeypatch, "sleep", interrupt)
    assert fleet(["create", "dev", "--yes"]) == 130
    assert "extract/3: operations continue" in capsys.readouterr().err
    BucketStore(world, OWNER.stack).read()  # type: ignore[arg-type]


def test_other_fleets_are_no_orphans_where_a_command_is_narrowed(
    world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    world.states["tpu-us-east5-b-0"] = "PREEMPTED"
    assert fleet(["status", "dev", "--slice", "train"]) == 0
    assert "orphan" not in capsys.readouterr().out
    world.states["train"] = "PREEMPTED"
    assert fleet(["recover", "dev", "--slice", "train", "--yes"]) == 0
    assert world.requests == [("delete", "train"), ("up", "train")]


def test_leftovers_are_swept_and_healthy_orphans_are_not(world: Cloud) -> None:
    cloud = world
    cloud.states["train"] = "PREEMPTED"
    world.stray("tpu-us-east5-b-7", "us-east5-b", "PREEMPTED")
    world.stray("tpu-us-east5-b-8", "us-east5-b", "READY")
    world.stray("somebody-elses", "us-east5-b", "PREEMPTED", {"environment": "dev"})
    world.stray("another-stacks", "us-east5-b", "PREEMPTED", {**OURS, "stack": "another"})
    assert fleet(["recover", "dev", "--yes"]) == 0
    assert set(cloud.requests) == {("delete", "tpu-us-east5-b-7"), ("delete", "train"), ("up", "train")}


def test_a_budget_refuses_before_anything_is_created() -> None:
    known = within_budget(settings())
    assert known is not None
    tight = settings(dollarsPerHour=int(known) - 1)
    with pytest.raises(InfraError, match="fleet:dollarsPerHour allows"):
        within_budget(tight)


def test_examples_in_the_help_are_understood() -> None:
    for name, command in group.commands.items():
        for line in command.examples:  # type: ignore[attr-defined]
            command.make_context(name, shlex.split(line))
