"""Training by a JobSet and by a custom job: started once, ended, found again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infra.layers.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings
from tests.infra.layers.pipeline.test_pipeline_layer import JOBSET, VERTEX, wrong
from tests.pipeline.world import BUCKET, DiesError, Fault, Pipeline, given

START = {"jobset": "POST https://cluster", "vertex": "POST https://us-east5-aiplatform.*customJobs[?]"}
LOOK = {"jobset": "GET https://cluster", "vertex": "GET https://us-east5-aiplatform"}


def known(kind: str, **more: Any) -> Settings:
    return given({"jobset": JOBSET, "vertex": VERTEX}[kind], **more)


def names(pipeline: Pipeline) -> list[str]:
    """Return the names of what trains, or has trained."""
    return [*pipeline.google.jobsets, *(job["displayName"] for job in pipeline.google.jobs)]


def ends(pipeline: Pipeline, *, fine: bool) -> None:
    """End what trains."""
    for job in pipeline.google.jobs[-1:]:
        job["state"] = "JOB_STATE_SUCCEEDED" if fine else "JOB_STATE_FAILED"
    for jobset in [*pipeline.google.jobsets.values()][-1:]:
        jobset["status"] = {
            "terminalState": "Completed" if fine else "Failed",
            "conditions": [] if fine else [{"type": "Failed", "message": "worker 1 exited with 1"}],
        }


@pytest.mark.parametrize("kind", ["jobset", "vertex"])
def test_shards_are_trained_on_once(kind: str) -> None:
    pipeline = Pipeline(known(kind))
    run = pipeline.trained()
    record = pipeline.record(run)
    assert (record["stage"], record["outcome"], record["train"].split()[0]) == ("train", "running", kind)
    assert run in record["training"]
    pipeline.sweep(30)
    (name,) = names(pipeline)
    assert name == (f"tokens-{run}" if kind == "jobset" else run)
    assert pipeline.record(run) == record, "a look writes nothing"
    ends(pipeline, fine=True)
    record = pipeline.swept(run)
    assert record["outcome"] == "trained"
    if kind == "vertex":
        assert not {"training_usd", "actual_usd"} & record.keys(), "its price isn't known"


@pytest.mark.parametrize("kind", ["jobset", "vertex"])
def test_training_that_fails_for_good_is_an_outcome_with_the_reason(kind: str) -> None:
    pipeline = Pipeline(known(kind))
    run = pipeline.trained()
    ends(pipeline, fine=False)
    record = pipeline.swept(run)
    assert record["outcome"] == "training_failed"
    if kind == "jobset":
        assert record["why"] == "the job failed: worker 1 exited with 1"
        assert record["next"] == f"tpu job logs dev vision tokens-{run}"
    else:
        assert record["why"] == "the job says JOB_STATE_FAILED"
        assert record["next"].startswith("gcloud ai custom-jobs list")
    pipeline.sweeps.store.request(run, "retry", "ann")
    pipeline.sweep()
    assert len(names(pipeline)) == 2
    assert names(pipeline)[1].endswith(f"{run}-1")
    ends(pipeline, fine=True)
    pipeline.sweep()
    assert (pipeline.record(run)["outcome"], pipeline.record(run)["restart"]) == ("trained", 1)


@pytest.mark.parametrize("kind", ["jobset", "vertex"])
@pytest.mark.parametrize("pattern", [START, LOOK])
@pytest.mark.parametrize("done", [False, True])
def test_a_death_at_the_start_doubles_nothing(kind: str, pattern: dict[str, str], done: bool) -> None:
    pipeline = Pipeline(known(kind))
    run = pipeline.processed()
    pipeline.google.faults = [Fault(pattern[kind], dies=True, done=done)]
    with pytest.raises(DiesError):
        pipeline.sweep()
    pipeline.instance()
    pipeline.sweep(2)
    assert len(names(pipeline)) == 1
    ends(pipeline, fine=True)
    assert pipeline.swept(run)["outcome"] == "trained"


@pytest.mark.parametrize("kind", ["jobset", "vertex"])
def test_a_lost_answer_doubles_no_training(kind: str) -> None:
    pipeline = Pipeline(known(kind))
    fault = Fault(START[kind], 504, "no answer in time", done=True)
    pipeline.google.faults = [fault]
    run = pipeline.trained()
    pipeline.sweep(2)
    assert fault.met == 1
    assert len(names(pipeline)) == 1
    assert pipeline.record(run)["training"]


@pytest.mark.parametrize("kind", ["jobset", "vertex"])
def test_training_that_takes_too_long_is_ended(kind: str) -> None:
    pipeline = Pipeline(known(kind, pipeline__trainHours=2))
    run = pipeline.trained()
    pipeline.sweep(1, minutes=119)
    assert pipeline.record(run)["outcome"] == "running"
    record = pipeline.swept(run, 2)
    assert (record["outcome"], record["next"]) == ("train_hours", f"tpu pipeline retry dev {run}")
    assert record["why"] == "training took longer than 2 h, and was ended"
    assert pipeline.google.jobsets == {}
    assert all(job["state"] == "JOB_STATE_CANCELLED" for job in pipeline.google.jobs)


@pytest.mark.parametrize("kind", ["jobset", "vertex"])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_cancellation_ends_training(kind: str, recorded: bool) -> None:
    pipeline = Pipeline(known(kind))
    run = pipeline.processed()
    if not recorded:  # the call that starts it dies before it writes that
        pipeline.google.faults = [Fault(START[kind], dies=True, done=True)]
        with pytest.raises(DiesError):
            pipeline.sweep()
        pipeline.instance()
    else:
        pipeline.sweep()
    pipeline.sweeps.store.request(run, "cancel", "ann@laptop")
    record = pipeline.swept(run, 2)
    assert (record["outcome"], record["why"]) == ("cancelled", "ann@laptop cancelled the run")
    assert pipeline.google.jobsets == {}
    assert all(job["state"] == "JOB_STATE_CANCELLED" for job in pipeline.google.jobs)


@pytest.mark.parametrize("kind", ["jobset", "vertex"])
def test_training_that_somebody_ended_is_a_cancelled_run(kind: str) -> None:
    pipeline = Pipeline(known(kind))
    run = pipeline.trained()
    pipeline.google.jobsets.clear()
    for job in pipeline.google.jobs:
        job["state"] = "JOB_STATE_CANCELLED"
    record = pipeline.swept(run)
    assert record["outcome"] == "cancelled"
    assert record["why"].startswith("training was ended: ")


def test_an_outage_while_training_is_outlived() -> None:
    pipeline = Pipeline(known("vertex", pipeline__trainHours=48))
    run = pipeline.trained()
    pipeline.google.faults = [Fault(LOOK["vertex"], 503, times=10**6)]
    pipeline.sweep(100, minutes=10)
    assert pipeline.record(run)["outcome"] == "running"
    pipeline.google.faults = []
    ends(pipeline, fine=True)
    assert pipeline.swept(run)["outcome"] == "trained"


def test_another_custom_job_of_the_name_isnt_the_pipelines() -> None:
    pipeline = Pipeline(known("vertex"))
    run = pipeline.google.submit()
    pipeline.google.jobs.append({"displayName": run, "name": "x/customJobs/0", "state": "JOB_STATE_FAILED"})
    pipeline.sweep()
    pipeline.google.move("SUCCEEDED")
    pipeline.sweep(2)
    assert (len(pipeline.google.jobs), pipeline.record(run)["outcome"]) == (2, "running")


def test_what_is_created_is_what_the_apis_describe() -> None:
    pipeline = Pipeline(known("vertex"))
    run = pipeline.trained()
    (job,) = pipeline.google.jobs
    body = {key: value for key, value in job.items() if key not in ("name", "state")}
    assert wrong("aiplatform", "v1", "GoogleCloudAiplatformV1CustomJob", body) == []
    spec = job["jobSpec"]["workerPoolSpecs"][0]
    assert spec["containerSpec"]["command"][:2] == ["workload", "train"]
    assert f"data.path=/gcs/{BUCKET}/tokens/{run}/0123abcd" in spec["containerSpec"]["command"]
    pipeline = Pipeline(known("jobset"))
    run = pipeline.trained()
    assert f"data.path=/mnt/checkpoints/tokens/{run}/0123abcd" in str(
        pipeline.google.jobsets[f"tokens-{run}"]
    )


def test_a_run_that_trained_elsewhere_by_earlier_settings_waits_until_they_are_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = Pipeline(known("vertex"))
    run = pipeline.trained()
    other = Pipeline(given(), pipeline.google)
    other.sweep(2)
    record = pipeline.record(run)
    assert record["outcome"] == "running"
    assert (
        "was started before, and continues; set it back, or end that: gcloud ai custom-jobs" in record["why"]
    )
    stuck = [
        entry for entry in caplog.records if getattr(entry, "fields", {}).get("event") == "pipeline_stuck"
    ]
    assert [entry.levelname for entry in stuck] == ["ERROR"], "once"
    pipeline.sweep()
    assert "why" not in pipeline.record(run)


def test_a_job_in_the_queue_of_an_earlier_team_is_waited_for() -> None:
    pipeline = Pipeline(known("jobset"))
    run = pipeline.trained()
    assert pipeline.record(run)["train"] == "jobset of vision"
    settings = pipeline.settings
    other = replace(settings[PipelineSettings], train_team="audio")
    moved = Pipeline(
        replace(settings, sections={**settings.sections, PipelineSettings: other}), pipeline.google
    )
    moved.sweep()
    record = pipeline.record(run)
    assert (record["outcome"], "JobSet" in record["why"]) == ("running", True)


def test_two_custom_jobs_of_one_run_are_both_ended() -> None:
    pipeline = Pipeline(known("vertex"))
    run = pipeline.trained()
    (job,) = pipeline.google.jobs
    pipeline.google.jobs.append({**job, "name": f"{job['name']}9", "createTime": "2099-01-01T00:00:00Z"})
    pipeline.sweeps.store.request(run, "cancel", "ann")
    pipeline.sweep()
    assert len([name for name in pipeline.google.requests if ":cancel" in name]) == 2
