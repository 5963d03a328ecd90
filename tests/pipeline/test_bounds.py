"""Bounds of a sweep: old submissions, large folders and manifests, a batch that is created too late."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import decide, store
from pipeline.sweep import OLDEST_S, Sweep
from tests.pipeline.world import BUCKET, CONTROLLERS, RAW, Pipeline, given


@pytest.fixture(name="pipeline")
def _pipeline() -> Pipeline:
    return Pipeline(given())


@pytest.mark.parametrize("foreign", [False, True])
def test_a_batch_that_is_created_after_its_run_was_cancelled_is_cancelled_unless_it_isnt_the_pipelines(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, foreign: bool
) -> None:
    run, create = pipeline.google.submit(), Sweep._create_batch
    other = Sweep(pipeline.settings, pipeline.client, None, lambda: pipeline.google.now_s)

    def after_a_cancellation(sweep: Sweep, record: Any, id_: str) -> None:
        other.store.request(run, "cancel", "ann")
        other.sweep()
        create(sweep, record, id_)
        if foreign:
            pipeline.google.batches[id_]["labels"] = {"team": "another"}

    monkeypatch.setattr(Sweep, "_create_batch", after_a_cancellation)
    pipeline.sweeps.submitted(RAW, "corpus/_SUBMIT", run[1:])
    assert pipeline.record(run)["outcome"] == "cancelled"
    assert list(pipeline.google.batches) == [f"tpu-pipeline-{run}"], "created late"
    assert bool([name for name in pipeline.google.requests if ":cancel" in name]) is not foreign


def test_a_submission_of_a_time_before_this_pipeline_is_left(pipeline: Pipeline) -> None:
    old = pipeline.google.submit("old/")
    pipeline.google.now_s += OLDEST_S
    recent = pipeline.google.submit("recent/")
    pipeline.sweep()
    records = {name for bucket, name in pipeline.google.objects if bucket == CONTROLLERS}
    assert (f"pipeline/{old}/run.json" in records, f"pipeline/{recent}/run.json" in records) == (False, True)


def test_a_submission_of_too_many_objects_is_refused(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (decide, store):
        monkeypatch.setattr(module, "MOST_OBJECTS", 3)
    for number, outcome in ((2, "running"), (3, "refused")):
        for index in range(number):
            pipeline.google.put(RAW, f"of{number}/{index}.jsonl", b"x")
        run = pipeline.google.submit(f"of{number}/")
        pipeline.sweeps.submitted(RAW, f"of{number}/_SUBMIT", run[1:])
        assert pipeline.record(run)["outcome"] == outcome


def test_a_manifest_that_would_fill_the_memory_is_no_manifest(pipeline: Pipeline) -> None:
    run = pipeline.processed()
    pipeline.google.put(BUCKET, f"tokens/{run}/0123abcd/manifest.json", b"[" + b"[]," * (1 << 19) + b"[]]")
    record = pipeline.swept(run)
    assert (record["outcome"], "has too many values" in record["why"]) == ("invalid", True)
