"""Slices of the pipeline beside other controllers, and slices that can't be seen or deleted at once."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fleet import monitor, owned
from fleet.adhoc import AdHoc, Phase
from fleet.environment import opened
from fleet.model import View, ZoneView
from fleet.request import FleetCommand
from fleet.store import LeaseHeldError
from infra.google.failures import Failure, Kind
from tests.fleet.conftest import OWNER
from tests.pipeline.test_slices import DONE, NODE, Slices, _pipeline  # noqa: F401
from tests.virtual_time import replace_time


def test_beside_a_monitor_the_function_only_observes(
    pipeline: Slices, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = pipeline.processed()
    events: list[str] = []
    leaders = set[str]()

    def rest(*_: object) -> None:
        pipeline.sweep(minutes=5)
        leaders.add(json.loads(str(pipeline.cloud.kept))["leader"]["id"])
        assert len(pipeline.nodes) <= 1
        ready = pipeline.cloud.states.get(NODE) == "READY"
        if not events and ready:
            events.append("preempted")
            pipeline.cloud.states[NODE] = "PREEMPTED"
        elif len(events) == 1 and ready:
            events.append("done")
            pipeline.cloud.statuses[NODE] = DONE
        elif pipeline.record(run)["outcome"] != "running":
            raise KeyboardInterrupt
        time.sleep(0.02)  # requests are sent by threads

    monkeypatch.setattr(monitor, "rest", rest)
    with pytest.raises(KeyboardInterrupt):
        monitor.monitor(FleetCommand("dev"), monitor.Monitoring())
    assert (events, len(leaders)) == (["preempted", "done"], 1), "the monitor leads all the time"
    assert [verb for verb, name in pipeline.cloud.requests if name == NODE] == [
        "create", "delete", "create", "delete"
    ]  # fmt: skip
    assert pipeline.record(run)["outcome"] == "trained"
    assert pipeline.nodes == []


def test_a_deletion_that_takes_long_holds_no_sweep(pipeline: Slices, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its request on, the zone doesn't answer."""
    run = pipeline.trained()
    pipeline.sweeps.store.request(run, "cancel", "ann@laptop")
    delete, requested = pipeline.cloud.delete, list[str]()

    def begin(zone: str, name: str) -> None:
        requested.append(name)
        pipeline.cloud.states[name] = "DELETING"
        pipeline.cloud.silent.add(zone)

    clock = itertools.count(step=0.5)
    replace_time(monkeypatch, "monotonic", lambda: next(clock))
    monkeypatch.setattr(pipeline.cloud, "delete", begin)
    begun_s = next(clock)
    pipeline.sweep(3)
    assert next(clock) - begun_s < 3 * 2 * owned._SETTLED_S
    assert (pipeline.fleet(run)["phase"], pipeline.record(run)["outcome"]) == ("ending", "running")
    written = pipeline.fleet(run)["writtenS"]
    monkeypatch.setattr(pipeline.cloud, "delete", delete)
    pipeline.cloud.silent.clear()
    pipeline.sweep()
    assert (pipeline.fleet(run)["phase"], pipeline.fleet(run)["writtenS"]) == ("ending", written)
    pipeline.cloud.states[NODE] = ""
    pipeline.sweep(2)
    assert (pipeline.fleet(run)["phase"], requested) == ("ended", [NODE]), "requested once"
    assert pipeline.record(run)["outcome"] == "cancelled"


@pytest.mark.parametrize("what", ["zone", "bucket"])
def test_a_run_whose_slice_cant_be_seen_tells_it_and_is_still_ended(
    what: str, pipeline: Slices, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it trains until its hours are over, and nobody knows why."""
    run = pipeline.trained()
    account = "tpu-pipeline-run@my-project.iam.gserviceaccount.com"
    denied, role = {
        "zone": ("Permission 'tpu.nodes.list' denied on resource", "the role tpu_pipeline_run_slices"),
        "bucket": (
            f"{account} does not have storage.objects.list access to the Google Cloud Storage bucket."
            " (gs://my-project-checkpoints/heartbeats/)",
            "roles/storage.objectViewer on the bucket my-project-checkpoints, below tokens/,",
        ),
    }[what]
    failure, observe = Failure(Kind.PERMISSION, denied), pipeline.cloud.observe

    def blind(zones: Sequence[str]) -> View:
        view = observe(zones)
        if what == "zone":
            return replace(view, zones=dict.fromkeys(zones, ZoneView(None, failure)))
        return replace(view, statuses=None, failure=failure)

    with monkeypatch.context() as patched:
        patched.setattr(pipeline.cloud, "observe", blind)
        record = pipeline.swept(run, 4)
        assert record["outcome"] == "running"
        assert denied in record["why"]
        assert f"it needs {role}" in record["why"]
        assert f"tpu fleet delete dev --slice {run}" in record["why"]
        stuck = [entry for entry in caplog.records if "pipeline_stuck" in entry.message]
        assert len(stuck) == 1, "logged once"
        pipeline.sweeps.store.request(run, "cancel", "ann@laptop")
        pipeline.sweep(2)
        assert pipeline.fleet(run)["phase"] in ("ending", "ended")
    pipeline.sweep(2)
    assert (pipeline.record(run)["outcome"], pipeline.nodes) == ("cancelled", [])


def test_a_sweep_lists_the_records_of_fleets_once(pipeline: Slices, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.trained()
    saved, listed = pipeline.cloud.saved, list[str]()
    monkeypatch.setattr(pipeline.cloud, "saved", lambda prefix: listed.append(prefix) or saved(prefix))
    pipeline.sweep(2)
    assert listed == [f"{OWNER.stack}/fleets/"] * 2


def test_two_instances_of_the_function_never_both_lead(
    pipeline: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All instances have one host name at Google, and processes of the same numbers."""
    pipeline.trained()
    monkeypatch.setenv("K_REVISION", "tpu-pipeline-00001")
    leads = opened(FleetCommand("dev")).controller(lead=True)
    leads.step()
    name = f"{OWNER.stack}/controller.json"
    text, generation = pipeline.cloud.objects[name]
    monkeypatch.setattr("fleet.store._INSTANCE", "another1")
    parsed = json.loads(text)
    parsed["leader"]["process"] = 2**22 + 1  # which doesn't run in this instance
    pipeline.cloud.objects[name] = json.dumps(parsed), generation
    sent = [*pipeline.cloud.requests]
    pipeline.cloud.states[NODE] = "PREEMPTED"
    pipeline.sweep(2)
    assert pipeline.cloud.requests == sent
    leads.leave()
    pipeline.sweep(2)
    assert pipeline.cloud.states[NODE] == "READY"


def test_a_monitor_that_starts_during_a_sweep_waits_for_its_end(
    pipeline: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function holds the lease for some seconds of each minute."""
    pipeline.trained()
    with monkeypatch.context() as function:
        function.setenv("K_REVISION", "tpu-pipeline-00001")
        sweep = opened(FleetCommand("dev")).controller(lead=True)
        sweep.step()
    pauses = list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            with monkeypatch.context() as function:
                function.setenv("K_REVISION", "tpu-pipeline-00001")
                sweep.leave()

    def rest(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(monitor, "rest", rest)
    replace_time(monkeypatch, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        monitor.monitor(FleetCommand("dev"), monitor.Monitoring())
    assert pauses == [1.0] * 3


def test_a_function_that_has_died_in_a_sweep_is_waited_for_only_so_long(
    pipeline: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.trained()
    with monkeypatch.context() as function:
        function.setenv("K_REVISION", "tpu-pipeline-00001")
        opened(FleetCommand("dev")).controller(lead=True).step()
    now = itertools.count()
    replace_time(monkeypatch, "monotonic", lambda: next(now))
    replace_time(monkeypatch, "sleep", lambda _: None)
    with pytest.raises(LeaseHeldError, match="another controller acts, on tpu-pipeline-00001"):
        opened(FleetCommand("dev")).controller(lead=True)


def test_slices_of_others_are_left_to_others(pipeline: Slices) -> None:
    item = {"name": "mine", "acceleratorType": "v6e-8", "zones": ["us-east5-b"], "count": 1, "spot": True}
    AdHoc(pipeline.cloud, OWNER.stack, "dev").keep("mine", item)  # type: ignore[arg-type]
    pipeline.trained()
    pipeline.sweep(3)
    assert len(pipeline.nodes) == 1
    assert pipeline.fleet("mine")["phase"] == Phase.WANTED


def test_a_slice_that_another_controller_doesnt_delete_is_a_fault(
    pipeline: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pipeline.trained()
    monitor = opened(FleetCommand("dev", ("train",))).controller(lead=True)
    monitor.step()
    try:
        pipeline.sweeps.store.request(run, "cancel", "ann")
        pipeline.sweep(2)
        assert pipeline.fleet(run)["phase"] == "ending"
        now_s = time.time()
        replace_time(monkeypatch, "time", lambda: now_s + 901)
        (fault,) = pipeline.sweeps.sweep()
        assert f"slices: {run}: ended, not deleted, and billed: " in fault
    finally:
        monitor.leave()
