"""A disk that fills, a job that stands still and wakes up late: what the steps take for proof."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import disturbing
from rehearsal.scenario.bucket import ObjectFacts
from rehearsal.scenario.record import Record
from rehearsal.scenario.scene import Scene

NODE, HOST, ADDRESS = "tpu-us-east5-a-2", "tpu-us-east5-a-2-w0", "10.0.0.5"
FOLDER = "extractions/one/activations/tpu_4/"
LEASE = "/storage/v1/b/b/o/extractions%2Fone%2Fleases%2Fstream_004.json?alt=media"
UPLOAD = "/upload/storage/v1/b/b/o?uploadType=multipart"
ENDED = "ExecMainStatus=2\nprocess 7 on tpu-us-east5-b-3 has taken stream 4 of this run over; this start ends"


class World:
    """A bucket whose worker 4 commits a shard each time one looks, a host, and a log of requests."""

    def __init__(self) -> None:
        self.commits, self.total = 1, 20
        self.shards: dict[str, ObjectFacts] = {}
        self.requests: list[dict[str, Any]] = []
        self.on_host: list[str] = []
        self.output = ENDED
        self.boot: dict[str, Any] = {}
        self.cuts: list[int] = []

    def facts(self, prefix: str) -> dict[str, ObjectFacts]:
        for _ in range(self.commits):
            number = len(self.shards) + 1
            self.shards[f"{FOLDER}shard_{number:04}.safetensors"] = ObjectFacts(number, 100, str(number))
        return dict(self.shards)

    def ssh(self, hosts: list[str], line: str, **_: Any) -> list[str]:
        assert hosts == [HOST]
        self.on_host.append(line)
        if "CONT" in line:
            self.requests += self.woken
        return [self.output]

    woken: tuple[dict[str, Any], ...] = ()

    def instances(self) -> list[dict[str, Any]]:
        """Return an instance that is repaired at the third look after a cut of its power."""
        self.cuts = [looks + 1 for looks in self.cuts]
        repairs = any(looks < 3 for looks in self.cuts)
        return [{"name": "controller", "state": "REPAIRING" if repairs else "RUNNING"}]

    def cut(self, host: str) -> None:
        assert host == "controller"
        self.cuts.append(0)


def request(method: str, path: str, status: int, address: str = ADDRESS) -> dict[str, Any]:
    return {"method_id": f"storage.objects.{method}", "path": path, "status": status, "address": address}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def scene(world: World) -> Scene:
    node = {"name": NODE, "hosts": [{"name": HOST, "address": ADDRESS}]}
    bucket = SimpleNamespace(
        facts=world.facts,
        names=lambda prefix: sorted(world.shards),
        json=lambda name: {"shards": world.total},
        boots=lambda node: [world.boot] if world.boot else [],
    )
    requests = lambda since: {"next": len(world.requests), "requests": world.requests[since:]}  # noqa: E731
    control = SimpleNamespace(
        status=lambda: {"nodes": [node], "instances": world.instances()},
        requests=requests,
        cut_power=world.cut,
    )
    shell, record = SimpleNamespace(ssh=world.ssh), Record("s", "t", "dev", 1, 0.0)
    scene = Scene(
        cast(Any, None), cast(Any, None), record, cast(Any, control), cast(Any, shell),
        cast(Any, None), print,
    )  # fmt: skip
    scene.__dict__["bucket"] = bucket
    return scene


def stalled(scene: Scene) -> None:
    disturbing.stall(NODE, "one", 4).act(scene)


def woken(scene: Scene) -> None:
    disturbing.wake(NODE, 2, timeout_s=5).act(scene)


def test_a_late_worker_whose_writes_took_no_effect_is_proof(scene: Scene, world: World) -> None:
    stalled(scene)
    at = len(scene.stalled[NODE].shards)
    world.woken = (
        request("get", LEASE, 200),
        request("insert", f"{UPLOAD}&ifGenerationMatch=0", 412),
        request("insert", f"{UPLOAD}&name=words%2Fn%2Fworker-0", 200),
        request("insert", f"{UPLOAD}&ifGenerationMatch=0", 200, "10.0.0.9"),  # who took it over
    )
    woken(scene)
    assert ["STOP" in line or "CONT" in line for line in world.on_host] == [True, True]
    assert "wrote nothing when it woke up" in scene.record.checks[0].claim
    (strike,) = scene.record.kills
    assert (strike.how, strike.node, strike.step) == ("stall", NODE, None)
    assert strike.shards is not None
    assert strike.shards >= at > 0


@pytest.mark.parametrize("condition", ["", "&ifGenerationMatch=0"])
def test_a_write_that_took_effect_is_found(scene: Scene, world: World, condition: str) -> None:
    stalled(scene)
    world.woken = (request("get", LEASE, 200), request("insert", UPLOAD + condition, 200))
    with pytest.raises(ScenarioFailed, match="wrote 1 objects of the run"):
        woken(scene)


def test_a_worker_without_a_request_for_its_lease_did_not_wake_up(scene: Scene, world: World) -> None:
    stalled(scene)
    world.woken = (request("get", LEASE, 200, "10.0.0.9"),)
    with pytest.raises(ScenarioFailed, match="did it continue"):
        woken(scene)


def test_one_that_ends_well_was_not_refused(scene: Scene, world: World) -> None:
    stalled(scene)
    world.output = ENDED.replace("Status=2", "Status=0")
    with pytest.raises(ScenarioFailed, match="should have ended with 2"):
        woken(scene)


def test_it_is_not_woken_before_another_is_beyond_it(scene: Scene, world: World) -> None:
    stalled(scene)
    world.commits = 0
    world.shards = dict(scene.stalled[NODE].shards)
    with pytest.raises(ScenarioFailed, match="2 shards beyond worker 4: not within"):
        disturbing.wake(NODE, 2, timeout_s=0.1).act(scene)
    assert not any("CONT" in line for line in world.on_host)


def test_only_what_stands_still_in_the_middle_can_be_woken(scene: Scene, world: World) -> None:
    with pytest.raises(ScenarioFailed, match="doesn't stand still"):
        woken(scene)
    world.total = 3
    with pytest.raises(ScenarioFailed, match="too late to stall it"):
        stalled(scene)


def test_a_full_disk_must_stop_no_work(scene: Scene, world: World) -> None:
    disturbing.fill(NODE, "one", 4).act(scene)
    assert [check.claim for check in scene.record.checks] == ["a full disk stops no extraction that runs"]
    world.commits = 0
    with pytest.raises(ScenarioFailed, match="3 more shards of worker 4: not within"):
        disturbing.fill(NODE, "one", 4, timeout_s=0.1).act(scene)


def test_a_boot_must_fail_for_the_reason_that_was_meant(scene: Scene, world: World) -> None:
    start = "2026-11-21T10:00:00Z"
    stage = {"name": "bundle", "state": "failed", "attempt": 1, "start": start, "end": start}
    failed = {"node": NODE, "worker": 0, "boot_id": "b", "state": "failed", "stage": "bundle"}

    def reboot(tail: str) -> None:
        scene.past.clear()
        world.boot = {}
        after = {**failed, "stages": [{**stage, "log_tail": tail}]}
        scene.forget_boots = lambda node: world.boot.update(after)  # type: ignore[method-assign]
        disturbing.reboot(NODE, "disk is full", timeout_s=0.1).act(scene)

    reboot("HTTP 200\ntpu-boot: error: the boot disk is full")
    assert scene.note.text == "in stage bundle: tpu-boot: error: the boot disk is full"
    assert [boot.state for boot in scene.boots.values()] == ["failed"], "which the timeline shows"
    with pytest.raises(ScenarioFailed, match="and not for 'disk is full': no token"):
        reboot("no token")


def test_a_pulled_instance_is_waited_for(scene: Scene, world: World) -> None:
    disturbing.pull("controller", timeout_s=5).act(scene)
    assert world.cuts == [3]
    assert scene.note.text.startswith("started again after")
    assert scene.hosts("controller") == ["controller"]
    with pytest.raises(ScenarioFailed, match="there is no instance other"):
        disturbing.pull("other").act(scene)
