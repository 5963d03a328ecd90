"""Evidence that the steps about runs of the pipeline and about alerts require."""

from __future__ import annotations

import base64
import json
import re
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import alerting, pipelines
from rehearsal.scenario.scene import Scene
from tests.rehearsal.scenes import scene_of

RAW, RUN = "my-raw", "r17"
CONTENT = "# batch-failed\n\n## First command\n\n    echo two batches\n\n## What next\n"


class World:
    """Records of runs, what Google's APIs list, and what the commands printed."""

    def __init__(self) -> None:
        self.record: dict[str, Any] = {
            "run": RUN, "raw": f"gs://{RAW}/a/", "retry": 0, "stage": "check", "outcome": "invalid",
            "why": "0.bin is missing", "ended": "2026-11-24T10:10:00Z",
        }  # fmt: skip
        self.page = "run      r17\noutcome  invalid, at check\nwhy      0.bin is missing\n"
        self.batches = [{"name": f"p/batches/tpu-pipeline-{RUN}", "state": "SUCCEEDED", "createTime": "1"}]
        self.slices, self.claims = [RUN], 1
        self.deliveries = ["10:00"]
        self.preempted: list[str] = []
        self.incidents: list[dict[str, Any]] = []
        self.published: list[dict[str, Any]] = []
        self.typed: list[str] = []
        self.rates: list[float] = []
        self.created: list[dict[str, Any]] = []

    # The bucket

    def names(self, prefix: str) -> list[str]:
        return [f"pipeline/{RUN}/run.json"]

    def json(self, name: str) -> dict[str, Any]:
        return dict(self.record)

    # The shell

    def run(self, command: list[str], prints: str = "", **_: Any) -> str:
        self.typed.append(" ".join(command))
        if command[:3] == ["tpu", "pipeline", "retry"]:
            self.record |= {"retry": self.record["retry"] + 1}
        assert re.search(prints, "two batches")
        return self.page

    # Google, as the project's owner

    values: ClassVar = {"region": "us-east5", "zone": "us-east5-b"}

    def send(self, version: str, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if method.endswith("batches.create"):
            self.created.append(arguments)
            return {}
        if method.endswith("batches.list"):
            return {"batches": self.batches}
        if method.endswith("entries.list"):
            if "pipeline_begin" in arguments["body"]["filter"]:
                return {"entries": [{}] * self.claims}
            nodes = [{"nodeId": "n", "node": {"labels": {"fleet": item}}} for item in self.slices]
            return {"entries": [{"protoPayload": {"request": node}} for node in nodes]}
        if method.endswith("nodes.list"):
            return {
                "nodes": [{"name": f"p/nodes/n-{item}", "labels": {"fleet": item}} for item in self.slices]
            }
        if method.endswith("alerts.list"):
            return {"alerts": self.incidents}
        if method.endswith("pull"):
            result, self.published = self.published, []
            data = [base64.b64encode(json.dumps({"incident": item}).encode()).decode() for item in result]
            return {"receivedMessages": [{"ackId": "1", "message": {"data": item}} for item in data]}
        return {}

    # The cloud

    def preempt(self, node: str, *, notice: bool) -> None:
        assert not notice
        self.preempted.append(node)

    def requests(self) -> dict[str, Any]:
        path = "p/triggers/t/objects/a/_SUBMIT"
        return {
            "requests": [
                {"method_id": "eventarc.events.deliver", "path": path, "status": 200,
                 "time": f"2026-11-24T{at}:00Z"}
                for at in self.deliveries
            ]
        }  # fmt: skip

    # Alerts

    def opens(self, alert: str, id_: str) -> None:
        policy = {"userLabels": {"alert": alert}}
        self.incidents.append({"name": f"p/alerts/{id_}", "state": "OPEN", "policy": policy})
        about = {"documentation": {"content": CONTENT}}
        self.published.append({"incident_id": id_, "state": "open", **about})

    def set_clock(self, rate: float) -> None:
        """All that is open closes, as it does after a while."""
        self.rates.append(rate)
        for incident in self.incidents:
            if incident["state"] == "OPEN":
                incident["state"] = "CLOSED"
                self.published.append({"incident_id": incident["name"].rpartition("/")[2], "state": "closed"})

    def status(self) -> dict[str, Any]:
        return {"clock": {"rate": 60.0}}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    settings = {"pipeline:rawBucketName": RAW}
    monkeypatch.setattr(pipelines, "read_settings", lambda *_: settings)
    for module in (pipelines, alerting):
        monkeypatch.setattr(module, "owner", lambda _: made)
    return made


@pytest.fixture
def scene(world: World) -> Scene:
    bucket = SimpleNamespace(project="p", name="b", names=world.names, json=world.json)
    return scene_of(bucket=bucket, controllers=bucket, shell=world, control=world, incidents=set(), shards={})


def test_an_outcome_is_what_the_page_shows(scene: Scene) -> None:
    pipelines.ends("a/", "invalid", "check", "is missing").act(scene)
    assert scene.record.checks[-1].claim == "a/ ends as invalid at check"
    with pytest.raises(ScenarioFailed, match="printed nothing that matches"):
        pipelines.ends("a/", "invalid", "check", "has changed").act(scene)
    with pytest.raises(ScenarioFailed, match="printed nothing that matches"):
        pipelines.ends("a/", "unavailable", "check").act(scene)


def test_a_retry_is_typed_and_its_own_end_is_waited_for(scene: Scene, world: World) -> None:
    pipelines.ends("a/", "invalid", "check", again=True).act(scene)
    assert world.typed[0] == f"tpu pipeline retry dev {RUN} --yes"
    world.run = lambda *_, **__: world.page  # type: ignore[method-assign]  # nothing is started
    with pytest.raises(ScenarioFailed, match="no run yet"):
        pipelines.ends("a/", "invalid", "check", again=True).act(scene)


def test_a_folder_without_a_run_has_no_outcome(scene: Scene) -> None:
    with pytest.raises(ScenarioFailed, match="no run yet"):
        pipelines.ends("b/", "invalid", "check").act(scene)
    with pytest.raises(ScenarioFailed, match="has no run"):
        pipelines.retry("b/").act(scene)


def test_what_was_made_is_counted(scene: Scene, world: World) -> None:
    pipelines.made("a/", ("SUCCEEDED",), slices=1).act(scene)
    world.slices.append(f"{RUN}8")  # another run's
    pipelines.made("a/", ("SUCCEEDED",), slices=1).act(scene)
    world.slices.append(f"{RUN}-1")
    with pytest.raises(ScenarioFailed, match=r"2 slices r17 \(n\), r17-1 \(n\)"):
        pipelines.made("a/", ("SUCCEEDED",), slices=1).act(scene)
    world.batches.append({**world.batches[0], "name": f"p/batches/tpu-pipeline-{RUN}-1", "createTime": "0"})
    with pytest.raises(ScenarioFailed, match="batches SUCCEEDED, SUCCEEDED"):
        pipelines.made("a/", ("SUCCEEDED",), slices=2).act(scene)


def test_the_id_of_the_next_batch_is_taken_by_one_of_other_labels(scene: Scene, world: World) -> None:
    with pytest.raises(ScenarioFailed, match="a/ has no batch"):
        pipelines.taken("a/").act(scene)
    world.record |= {"batch": f"tpu-pipeline-{RUN}-2", "retry": 4}
    network = {"executionConfig": {"subnetworkUri": "s"}}
    last = f"p/l/batches/tpu-pipeline-{RUN}-2"
    world.batches.append({"name": last, "state": "FAILED", "createTime": "2", "environmentConfig": network})  # type: ignore[dict-item]
    pipelines.taken("a/").act(scene)
    (requested,) = world.created
    assert (requested["parent"], requested["batchId"]) == ("p/l", f"tpu-pipeline-{RUN}-5")
    assert requested["body"]["environmentConfig"] == network
    assert requested["body"]["labels"].keys().isdisjoint({"environment", "layer"})


def test_a_late_event_comes_when_its_run_has_ended_and_claims_nothing(scene: Scene, world: World) -> None:
    step = pipelines.made("a/", ("SUCCEEDED",), 1, late=True)
    with pytest.raises(ScenarioFailed):
        step.act(scene)
    world.deliveries.append("10:11")
    step.act(scene)
    world.claims = 2
    with pytest.raises(ScenarioFailed, match="claimed 2 times"):
        step.act(scene)


def test_the_slice_of_a_run_that_trains_is_preempted(
    scene: Scene, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "record_fault", lambda *_: None)
    monkeypatch.setattr(pipelines, "training", lambda *_: 20)
    with pytest.raises(ScenarioFailed, match=r"has ended: invalid, 0\.bin is missing"):
        pipelines.preempted("a/", 20).act(scene)
    world.record |= {"outcome": "running"}
    with pytest.raises(ScenarioFailed, match="running, at check"):
        pipelines.preempted("a/", 20).act(scene)
    world.record |= {"training": "slice r17"}
    pipelines.preempted("a/", 20).act(scene)
    assert world.preempted == [f"n-{RUN}"]
    world.slices.clear()
    with pytest.raises(ScenarioFailed, match="has 0 slices"):
        pipelines.preempted("a/", 20).act(scene)


def test_an_alert_opens_once_is_looked_into_and_closes(scene: Scene, world: World) -> None:
    world.opens("batch-failed", "1")
    alerting.fired({"batch-failed": "two"}, "oncall", clock=600.0).act(scene)
    assert world.typed == ["bash -c echo two batches\necho exit status $?"]
    assert world.rates == [600.0, 60.0], "fast until it closes"
    with pytest.raises(ScenarioFailed, match=r"fired: \{\}"):
        alerting.fired({"batch-failed": "two"}, "oncall").act(scene)


def test_a_fault_is_mended_once_its_alert_was_looked_into(scene: Scene, world: World) -> None:
    world.opens("batch-failed", "1")
    alerting.fired({"batch-failed": "two"}, "oncall", mend="echo mended").act(scene)
    assert world.typed == ["bash -c echo two batches\necho exit status $?", "bash -c echo mended"]


def test_an_unexpected_alert_fails_the_step(scene: Scene, world: World) -> None:
    world.opens("batch-failed", "1")
    world.opens("pipeline-failed", "2")
    with pytest.raises(ScenarioFailed, match=r"and not \{'pipeline-failed': 1\}"):
        alerting.fired({"batch-failed": ""}, "oncall").act(scene)
    world.opens("batch-failed", "3")
    with pytest.raises(ScenarioFailed, match=r"and not \{'batch-failed': 1\}"):
        alerting.fired({"batch-failed": "", "pipeline-failed": ""}, "oncall").act(scene)


def test_an_alert_that_is_not_published_fails_the_step(scene: Scene, world: World) -> None:
    world.opens("batch-failed", "1")
    world.published.clear()
    with pytest.raises(ScenarioFailed, match="alerts batch-failed"):
        alerting.fired({"batch-failed": ""}, "oncall").act(scene)


def test_what_fired_before_quiet_is_not_counted(scene: Scene, world: World) -> None:
    world.opens("pipeline-failed", "1")
    with pytest.raises(ScenarioFailed, match="open: pipeline-failed"):
        alerting.quiet().act(scene)
    world.set_clock(1.0)
    alerting.quiet().act(scene)
    world.opens("batch-failed", "2")
    alerting.fired({"batch-failed": ""}, "oncall").act(scene)
