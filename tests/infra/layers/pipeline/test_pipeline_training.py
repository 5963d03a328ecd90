"""Training by a new slice of the fleet and by a custom job: the workflow's part, executed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from rehearsal.cloud.services.workflows.engine import HttpRequest
from tests.infra.layers.pipeline.test_pipeline_layer import VERTEX
from tests.infra.layers.pipeline.test_pipeline_workflow import BATCH, EVENT, Google, failed, run


def test_a_slice_that_a_monitor_has_deleted_already_was_trained_on() -> None:
    refusals = {f"DELETE https://{host}": [(404, "not found")] for host in ("tpu", "storage")}
    google = Google(refusals=refusals)
    assert run(google)["outcome"] == "trained"
    assert google.refusals == {part: [] for part in refusals}


def test_training_that_fails_for_good_is_an_outcome() -> None:
    google = Google(heartbeats=[{"state": "running"}, {"state": "failed"}, {"state": "failed", "final": 1}])
    record = failed(google)
    assert (record["stage"], record["outcome"]) == ("train", "training_failed")
    assert record["next"] == "tpu logs dev r17"
    assert google.nodes == {"r17"}, "it stays, to be looked at"


def test_a_retry_of_training_that_failed_starts_a_slice_of_another_name() -> None:
    """The heartbeat of the first one stays: nothing of the second may be read from it."""
    google = Google(heartbeats=[{"state": "failed", "final": 1}])
    failed(google)
    google.heartbeats = [{"state": "failed", "final": 1}]
    assert failed(google, {**EVENT, "retry": 1, "restart": 1})["training"].startswith("slice r17-1 (")
    assert google.nodes == {"r17-1"}, "the first one is deleted, the second stays"
    google.heartbeats = [{"state": "done"}]
    assert run(google, {**EVENT, "retry": 2, "restart": 2})["outcome"] == "trained"
    assert google.nodes == set()
    assert google.asked_for == {"r17", "r17-1", "r17-2"}, "each heartbeat is that of its slice"
    assert "--name r17 " in google.created["metadata"]["tpu-run"], "it continues from the run's checkpoints"
    assert list(google.batches) == [BATCH]


def test_training_that_takes_too_long_is_ended() -> None:
    google = Google(heartbeats=[{"state": "running"}], given={"pipeline__trainHours": 2})
    record = failed(google)
    assert record["outcome"] == "train_hours"
    assert record["next"] == "tpu pipeline retry dev r17"
    assert 2 * 3600 <= google.passed_s < 3 * 3600
    assert google.nodes == set()


@dataclass
class Vertex(Google):
    """With custom jobs, the newest first; `lost`: answers to their creation that don't arrive."""

    train: bool = False
    given: dict[str, Any] = field(
        default_factory=lambda: {k.replace(":", "__"): v for k, v in VERTEX.items()}
    )
    job_states: list[str] = field(default_factory=lambda: ["RUNNING", "SUCCEEDED"])
    jobs: list[str] = field(default_factory=list)
    lost: int = 0

    def _answer(self, request: HttpRequest, body: Any) -> tuple[int, Any]:
        if "/customJobs" not in request.url:
            return super()._answer(request, body)
        if request.method == "POST":
            self.jobs.insert(0, body["displayName"])
            self.lost -= 1
            return (504, {"error": {"message": "no answer in time"}}) if self.lost >= 0 else (200, {})
        requests = unquote(urlsplit(request.url).query)
        result = [name for name in self.jobs if requests == f'filter=displayName="{name}"']
        state = self.job_states.pop(0) if result and len(self.job_states) > 1 else self.job_states[0]
        return 200, {"customJobs": [{"state": f"JOB_STATE_{state}"} for _ in result]} if result else {}


def test_training_by_a_custom_job_of_unknown_price_has_no_actual_price() -> None:
    google = Vertex()
    assert run(google)["outcome"] == "trained"
    assert google.jobs == ["r17"]
    assert google.record["training"] == "custom job r17 (v6e-8, us-east5)"
    assert "spark_usd" in google.record
    assert not {"training_usd", "actual_usd"} & google.record.keys()
    never = failed(Vertex(checked={"ok": False, "why": "0.bin is missing"}))
    assert never["actual_usd"] == never["spark_usd"], "nothing was trained"


def test_a_custom_job_whose_answer_was_lost_is_found_by_a_retry() -> None:
    google = Vertex(lost=1)
    record = failed(google)
    assert (record["outcome"], record["next"]) == ("unavailable", "tpu pipeline retry dev r17")
    assert "training" not in record
    assert run(google, {**EVENT, "retry": 1})["outcome"] == "trained"
    assert google.jobs == ["r17"], "a second request would make a second job"


def test_a_custom_job_that_failed_has_its_state_in_the_reason() -> None:
    google = Vertex(job_states=["FAILED"])
    record = failed(google)
    assert (record["outcome"], record["why"]) == ("training_failed", "the job says JOB_STATE_FAILED")
    google.job_states = ["SUCCEEDED"]
    assert run(google, {**EVENT, "retry": 1, "restart": 1})["outcome"] == "trained"
    assert google.jobs == ["r17-1", "r17"]
