"""Training on a slice: an ad hoc fleet of one, which the function keeps, or a monitor beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet import environment, owned, removal
from fleet.adhoc import AdHoc
from fleet.model import WorkerStatus
from fleet.proof import Attested
from fleet.request import FleetCommand
from fleet.store import BucketStore
from infra.engine.prices import within_budget
from infra.engine.settings import from_file, parse
from infra.errors import SettingsError
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.settings.schema import ADDED_SLICES, Settings
from infra.settings.sources import as_pulumi_hands_it_over
from pipeline.slices import SliceTrainer
from tests.fleet.conftest import OWNER
from tests.fleet.world import Cloud
from tests.infra.declared import OFF
from tests.infra.layers.pipeline.test_pipeline_layer import FLEET
from tests.infra.recording import BASE
from tests.pipeline.world import CODE, RAW, Pipeline, given

NODE = "tpu-us-east5-b-0"
DONE = WorkerStatus(0.0, "ready", "launch", "done")
FAILED = WorkerStatus(0.0, "ready", "launch", "failed", why="no file tiny.toml", final=True)


class Slices(Pipeline):
    """A function whose runs train on slices of a cloud."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: Any):
        known = given(FLEET, **more)
        self.cloud = Cloud(known)
        self._enter(monkeypatch, known, more)
        super().__init__(known, trainer=SliceTrainer(known, self.cloud, OWNER.stack))  # type: ignore[arg-type]

    def _enter(self, monkeypatch: pytest.MonkeyPatch, known: Settings, more: Mapping[str, Any]) -> None:
        def read(_: str, slices: Sequence[Mapping[str, Any]] = ()) -> Settings:
            values = {**BASE, **OFF["pipeline"], "pipeline:code": CODE, **FLEET}
            values |= {key.replace("__", ":"): value for key, value in more.items()}
            values["tpu:slices"] = [*BASE["tpu:slices"], *slices]
            text = as_pulumi_hands_it_over(values, "f")
            return parse("dev", text, "f", (), (ADDED_SLICES,)) if slices else known

        for module in (environment, owned):
            monkeypatch.setattr(module, "from_file", read)
        monkeypatch.setattr(environment, "read_stack", lambda _: self.cloud.stack)
        monkeypatch.setattr(environment, "Google", lambda *_: self.cloud)
        for module in (removal, owned):
            monkeypatch.setattr(module, "_POLL_S", 0.01)

    def sweep(self, times: int = 1, *, minutes: float = 1.0, fine: bool = True) -> None:
        """Sweep so many times; the fleet's clock goes on, too."""
        for _ in range(times):
            self.cloud.at_s += minutes * 60
            super().sweep(minutes=minutes, fine=fine)

    def fleet(self, run: str) -> dict[str, Any]:
        """Return the record of a run's fleet."""
        record = AdHoc(self.cloud, OWNER.stack).record(run)  # type: ignore[arg-type]
        assert record is not None
        return record

    @property
    def nodes(self) -> list[str]:
        """Return the living nodes that aren't of the settings' file."""
        return [name for name, state in self.cloud.states.items() if state and name != "train"]


@pytest.fixture(name="pipeline")
def _pipeline(monkeypatch: pytest.MonkeyPatch) -> Slices:
    return Slices(monkeypatch)


def test_a_slice_is_made_by_its_record_and_deleted_when_it_has_trained(pipeline: Slices) -> None:
    run = pipeline.trained()
    fleet = pipeline.fleet(run)
    assert (fleet["phase"], fleet["stopWhenDone"], fleet["count"], fleet["spot"]) == ("wanted", True, 1, True)
    assert fleet["owner"] == {
        "who": "tpu-pipeline-run@my-project.iam.gserviceaccount.com", "from": "pipeline dev"
    }  # fmt: skip
    assert f"--name {run} --set data.path=/mnt/checkpoints/tokens/{run}/0123abcd" in fleet["run"]
    assert pipeline.nodes == [NODE], "in the same sweep"
    assert pipeline.record(run)["training"] == f"slice {run} (v6e-8, us-east5-b)"
    pipeline.sweep(5)
    assert pipeline.cloud.requests == [("create", NODE)]
    pipeline.cloud.statuses[NODE] = DONE
    pipeline.sweep()
    assert (pipeline.nodes, pipeline.fleet(run)["phase"]) == ([], "ended")
    record = pipeline.swept(run)
    assert record["outcome"] == "trained"
    assert record["actual_usd"] == record["spark_usd"] + record["training_usd"]


def test_a_preempted_slice_is_made_again_trained_and_deleted(pipeline: Slices) -> None:
    run = pipeline.trained()
    for _ in range(3):
        instance = pipeline.cloud.instances[NODE]
        pipeline.sweep(minutes=60)
        pipeline.cloud.states[NODE] = "PREEMPTED"
        pipeline.sweep(2)
        assert pipeline.cloud.states[NODE] == "READY"
        assert pipeline.cloud.instances[NODE] > instance
        assert pipeline.record(run)["outcome"] == "running"
    pipeline.cloud.statuses[NODE] = DONE
    assert pipeline.swept(run, 2)["outcome"] == "trained"
    assert pipeline.nodes == []


def test_a_program_that_failed_for_good_is_an_outcome_with_its_reason(pipeline: Slices) -> None:
    run = pipeline.trained()
    pipeline.cloud.statuses[NODE] = FAILED
    record = pipeline.swept(run, 2)
    assert (record["outcome"], record["next"]) == ("training_failed", f"tpu logs dev {run}")
    assert "no file tiny.toml" in record["why"]
    assert pipeline.nodes == []
    pipeline.cloud.statuses.clear()
    pipeline.sweeps.store.request(run, "retry", "ann")
    pipeline.sweep()
    assert pipeline.fleet(f"{run}-1")["phase"] == "wanted"
    assert f"--name {run} " in pipeline.fleet(f"{run}-1")["run"], "it continues from the run's checkpoints"
    assert len(pipeline.nodes) == 1


@pytest.mark.parametrize(("failure", "outcome"), [
    (Failure(Kind.QUOTA, "Quota limit 'TPUV6E' has been exceeded"), "quota"),
    (Failure(Kind.PERMISSION, "Permission 'tpu.nodes.create' denied on resource"), "permission"),
    (Failure(Kind.INVALID, "no such runtime"), "refused"),
])  # fmt: skip
def test_a_slice_that_google_refuses_is_an_outcome_and_its_retry_tries_again(
    pipeline: Slices, failure: Failure, outcome: str
) -> None:
    run = pipeline.processed()
    pipeline.cloud.failure = failure
    record = pipeline.swept(run, 3)
    assert (record["outcome"], record["next"]) == (outcome, f"tpu pipeline retry dev {run}")
    assert failure.message in record["why"]
    assert pipeline.cloud.requests == [("create", NODE)], "nobody asks again"
    assert pipeline.fleet(run)["phase"] == "ended"
    pipeline.cloud.failure = None
    pipeline.sweeps.store.request(run, "retry", "ann")
    pipeline.sweep()
    assert (pipeline.fleet(run)["phase"], pipeline.nodes) == ("wanted", [NODE])


def test_a_slice_that_a_zone_has_no_capacity_for_is_waited_for(pipeline: Slices) -> None:
    pipeline.cloud.dry = {"us-east5-b"}
    run = pipeline.trained()
    pipeline.sweep(3)
    assert (pipeline.record(run)["outcome"], pipeline.nodes) == ("running", [])
    pipeline.cloud.dry = set()
    pipeline.sweep(2, minutes=60)
    assert pipeline.nodes == [NODE]


def test_an_end_that_only_a_heartbeat_claims_isnt_believed(pipeline: Slices) -> None:
    run = pipeline.trained()
    pipeline.cloud.statuses[NODE] = DONE
    pipeline.cloud.attests[NODE] = [Attested("ready", job="running")]
    assert pipeline.swept(run, 3)["outcome"] == "running"
    assert pipeline.nodes == [NODE]


def test_training_that_takes_too_long_is_ended_by_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Slices(monkeypatch, pipeline__trainHours=2)
    run = pipeline.trained()
    pipeline.sweep(minutes=121)
    assert pipeline.fleet(run)["why"] == "longer than pipeline:trainHours, 2"
    assert (pipeline.fleet(run)["phase"], pipeline.nodes) == ("ended", [])
    assert pipeline.swept(run)["outcome"] == "train_hours"


def test_a_cancelled_run_leaves_no_slice(pipeline: Slices) -> None:
    run = pipeline.trained()
    pipeline.sweeps.store.request(run, "cancel", "ann@laptop")
    assert pipeline.swept(run, 2)["outcome"] == "cancelled"
    assert (pipeline.fleet(run)["phase"], pipeline.nodes) == ("ended", [])
    pipeline.sweeps.store.request(run, "retry", "ann@laptop")
    pipeline.sweep()
    assert pipeline.fleet(f"{run}-1")["phase"] == "wanted"


def test_a_deletion_that_dies_is_completed_by_the_next_sweep(
    pipeline: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pipeline.trained()
    pipeline.sweeps.store.request(run, "cancel", "ann@laptop")
    met = []

    def dies(zone: str, name: str) -> None:
        met.append(name)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pipeline.cloud, "delete", dies)
        patched.setattr(BucketStore, "write", _without_release(BucketStore.write))
        with pytest.raises(KeyboardInterrupt):
            pipeline.sweep()
    assert met == [NODE]
    assert (pipeline.fleet(run)["phase"], pipeline.nodes) == ("ending", [NODE])
    _expire(pipeline)
    pipeline.instance()
    pipeline.sweep(2)
    assert (pipeline.fleet(run)["phase"], pipeline.nodes) == ("ended", [])
    assert pipeline.record(run)["outcome"] == "cancelled"


def _without_release(write: Any) -> Any:
    """Return a store's write that a killed process leaves without its release."""

    def chosen(store: Any, state: Any, renew: bool = True) -> None:
        if renew:
            write(store, state)

    return chosen


def _expire(pipeline: Slices) -> None:
    """Let the lease of a killed process expire."""
    name = f"{OWNER.stack}/controller.json"
    text, generation = pipeline.cloud.objects[name]
    parsed = json.loads(text)
    parsed["leader"]["at_s"] -= 200
    pipeline.cloud.objects[name] = json.dumps(parsed), generation + 1
    pipeline.cloud.written_s = 200.0


def test_a_start_that_dies_before_it_is_recorded_makes_no_second_slice(
    pipeline: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pipeline.processed()
    original = SliceTrainer.start

    def dies(trainer: SliceTrainer, of: Any) -> None:
        original(trainer, of)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SliceTrainer, "start", dies)
        with pytest.raises(KeyboardInterrupt):
            pipeline.sweep()
    assert "training" not in pipeline.record(run)
    pipeline.sweep(3)
    assert pipeline.nodes == [NODE]
    assert pipeline.cloud.requests == [("create", NODE)]


def test_a_slice_beyond_the_budget_is_refused_before_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Slices(monkeypatch, fleet__dollarsPerHour=34)  # 22.45 of the file, 11.23 of a run
    first = pipeline.trained()
    second = pipeline.google.submit("other/")
    pipeline.sweeps.submitted(RAW, "other/_SUBMIT", second[1:])
    pipeline.google.move("SUCCEEDED")
    pipeline.sweep(2)
    assert pipeline.record(first)["outcome"] == "running"
    record = pipeline.record(second)
    assert (record["outcome"], record["stage"]) == ("too_expensive", "train")
    assert "$44.91 an hour, fleet:dollarsPerHour allows $34" in record["why"]
    assert record["next"] == f"tpu pipeline retry dev {second}"
    assert pipeline.nodes == [NODE]
    assert not [name for name in pipeline.cloud.objects if second in name]
    pipeline.cloud.statuses[NODE] = DONE
    pipeline.sweep(2)
    pipeline.cloud.statuses.clear()
    pipeline.sweeps.store.request(second, "retry", "ann")
    pipeline.sweep()
    assert (pipeline.record(first)["outcome"], pipeline.record(second)["outcome"]) == ("trained", "running")
    assert pipeline.fleet(second)["phase"] == "wanted"


def test_a_standing_slice_doesnt_break_the_rule_of_the_files_size(tmp_path: Path) -> None:
    """The file has room for one slice of the pipeline, which stands: fleet commands go on."""
    values = {**BASE, **OFF["pipeline"], **FLEET, "fleet:dollarsPerHour": 34}
    (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": values}))
    item = {"name": "r17", "acceleratorType": "v6e-8", "zones": ["us-east5-b"], "count": 1, "spot": True}
    settings = from_file("dev", tmp_path, [item])
    assert within_budget(settings) == pytest.approx(33.68, abs=0.01)
    values["fleet:dollarsPerHour"] = 33
    (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": values}))
    with pytest.raises(SettingsError, match="for the file's slices and"):
        from_file("dev", tmp_path)


@pytest.mark.parametrize("lost", [False, True])
def test_two_calls_that_start_training_at_once_write_one_record(
    pipeline: Slices, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """Another call, or this one whose answer is lost."""
    run = pipeline.processed()
    original, met = pipeline.cloud.write, list[str]()

    def write(name: str, text: str, generation: int) -> int:
        if "fleets/" in name and not met:
            met.append(name)
            original(name, text if lost else json.dumps({**json.loads(text), "id": "another"}), generation)
        return original(name, text, generation)

    monkeypatch.setattr(pipeline.cloud, "write", write)
    pipeline.sweep(2)
    assert met
    assert pipeline.record(run)["training"] == f"slice {run} (v6e-8, us-east5-b)"
    assert pipeline.nodes == [NODE]


@pytest.mark.parametrize(("kind", "outcome"), [
    (Kind.PERMISSION, "permission"), (Kind.QUOTA, "quota"), (Kind.TRANSIENT, "running"),
])  # fmt: skip
def test_a_controllers_bucket_that_refuses_is_an_outcome(
    pipeline: Slices, monkeypatch: pytest.MonkeyPatch, kind: Kind, outcome: str
) -> None:
    run = pipeline.processed()
    message = "tpu-pipeline-run@p does not have storage.objects.create access"

    def write(name: str, text: str, generation: int) -> int:
        raise RequestError(Failure(kind, message, "storage.objects.create"))

    monkeypatch.setattr(pipeline.cloud, "write", write)
    record = pipeline.swept(run)
    assert (record["outcome"], "training" in record) == (outcome, False)
    assert f"gs://my-project-checkpoints-fleet/{OWNER.stack}/fleets/{run}.json" in record["why"]
    if kind is Kind.PERMISSION:
        assert (
            "; it needs roles/storage.objectUser on the bucket my-project-checkpoints-fleet" in record["why"]
        )


def test_a_fleet_of_the_name_that_isnt_the_pipelines_is_a_conflict(pipeline: Slices) -> None:
    run = pipeline.google.submit()
    item = {"name": run, "acceleratorType": "v6e-8", "zones": ["us-east5-b"], "count": 1, "spot": True}
    AdHoc(pipeline.cloud, OWNER.stack, "dev").keep(run, item)  # type: ignore[arg-type]
    pipeline.sweep()
    pipeline.google.move("SUCCEEDED")
    record = pipeline.swept(run)
    assert (record["outcome"], record["why"]) == (
        "conflict", f"a fleet {run} is there already, and isn't the pipeline's"
    )  # fmt: skip
    assert (pipeline.fleet(run)["phase"], pipeline.nodes) == ("wanted", []), "it is left to its owner"


@pytest.mark.parametrize("gone", [True, False])
def test_a_fleet_that_somebody_ended_ends_the_run_and_is_not_made_again(pipeline: Slices, gone: bool) -> None:
    run = pipeline.trained()
    if gone:
        del pipeline.cloud.objects[f"{OWNER.stack}/fleets/{run}.json"]
        pipeline.cloud.states[NODE] = ""
    else:
        request = FleetCommand("dev", slices=(run,), yes=True)
        assert removal.delete(request) == 0
    record = pipeline.swept(run, 3)
    why = "it is gone" if gone else "deleted by a command"
    assert (record["outcome"], record["why"]) == ("cancelled", f"training was ended: {why}")
    assert pipeline.nodes == []


def test_a_record_of_the_fleet_that_cant_be_read_is_waited_for(pipeline: Slices) -> None:
    run = pipeline.trained()
    name = f"{OWNER.stack}/fleets/{run}.json"
    text, generation = pipeline.cloud.objects[name]
    pipeline.cloud.objects[name] = "[", generation + 1
    pipeline.sweep(3, fine=False)
    record = pipeline.record(run)
    assert record["outcome"] == "running"
    assert "can't be read: is no JSON" in record["why"]
    pipeline.cloud.objects[name] = text, generation + 2
    pipeline.sweep()
    assert "why" not in pipeline.record(run)
