"""Evidence that the steps about a job's heartbeats and logs require."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import jobs
from rehearsal.scenario.bucket import ObjectFacts
from rehearsal.scenario.scene import Scene
from tests.rehearsal.scenes import scene_of


class World:
    """A node with a log of each worker, and the heartbeats of two workers, which change at each look."""

    def __init__(self) -> None:
        self.logs: dict[int, list[str]] = {0: ["step 5", "step 10"], 1: ["step 5"]}
        self.node: dict[str, Any] | None = {"state": "READY", "hosts": [{"running": True}]}
        self.heartbeats: list[list[dict[str, str]]] = [[]]
        self.looks = 0

    def metadata(self, prefix: str) -> dict[str, dict[str, str]]:
        now = self.heartbeats[min(self.looks // 2, len(self.heartbeats) - 1)]  # two look-ups a poll
        self.looks += 1
        return {f"{prefix}{number}": heartbeat for number, heartbeat in enumerate(now)}

    def facts(self, prefix: str) -> dict[str, ObjectFacts]:
        return {f"{prefix}0": ObjectFacts(self.looks, 1, "")}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(jobs, "read_settings", lambda *_: {"gcp:project": "p"})
    monkeypatch.setattr(jobs, "lines_of", lambda project, node, worker, unit: made.logs[worker])
    return made


@pytest.fixture
def scene(world: World) -> Scene:
    return scene_of(bucket=world, node=lambda name: world.node)


def test_every_workers_log_must_have_the_line(world: World, scene: Scene) -> None:
    with pytest.raises(ScenarioFailed):
        jobs.logged("tpu-dev", 2, r"step \d{2}").act(scene)
    assert scene.note.text == "1 of 2"
    world.logs[1].append("step 15")
    jobs.logged("tpu-dev", 2, r"step \d{2}").act(scene)
    assert scene.note.text == "step 10; step 15"
    assert scene.record.checks == []


@pytest.mark.parametrize("node", [None, {"state": "PREEMPTED", "hosts": [{"running": False}]}])
def test_a_log_outlives_its_hosts_only_if_they_are_gone(
    world: World, scene: Scene, node: dict[str, Any] | None
) -> None:
    world.node = node
    jobs.logged("tpu-dev", 2, r"step \d+").act(scene)
    (check,) = scene.record.checks
    assert check.claim == "what tpu-dev's workers printed is there when its hosts aren't"
    assert (
        f"node {'gone' if node is None else 'PREEMPTED'}: step 5" in check.evidence
        or "step 10" in check.evidence
    )


def test_each_worker_may_reach_the_state_at_its_own_time(world: World, scene: Scene) -> None:
    failed = {"state": "failed", "why": "killed by signal 9: step 3"}
    running = {"state": "running"}
    world.heartbeats = [[failed, running], [running, failed]]
    jobs.heartbeat("tpu-dev", 2, "failed", r"signal 9: step \d").act(scene)
    assert scene.note.text == "killed by signal 9: step 3"
    world.looks = 0
    with pytest.raises(ScenarioFailed):
        jobs.heartbeat("tpu-dev", 2, "failed", "signal 15").act(scene)


def test_patterns_are_checked_before_the_scenario_begins() -> None:
    with pytest.raises(ValueError, match="prints: not a regular expression: "):
        jobs.logged("n", 1, "(")
    with pytest.raises(ValueError, match="why: not a regular expression: "):
        jobs.heartbeat("n", 1, "done", "(")
