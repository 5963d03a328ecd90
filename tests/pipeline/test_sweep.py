"""Runs advanced by events and sweeps, by real clients against Google's APIs in memory."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from typing import Any

import pytest

from infra.google.client import RequestError
from infra.layers.pipeline.settings import PipelineSettings
from pipeline import shards as shards_module
from pipeline.sweep import SUBMISSIONS_S
from tests.pipeline.world import (
    BUCKET,
    CONTROLLERS,
    LABELS,
    RAW,
    START_S,
    DiesError,
    Fault,
    Pipeline,
    given,
)

BATCH = "POST https://dataproc.*/batches"
LOOK = "GET https://dataproc"
WRITE = "POST https://storage.*name=pipeline/"


@pytest.fixture(name="pipeline")
def _pipeline() -> Pipeline:
    return Pipeline(given())


def event(pipeline: Pipeline, run: str, folder: str = "corpus/") -> dict[str, str]:
    return pipeline.sweeps.submitted(RAW, f"{folder}_SUBMIT", run[1:])


def lines(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    fields = [getattr(entry, "fields", {}) for entry in caplog.records]
    return [item for item in fields if item.get("event") == name]


def test_text_becomes_shards_with_a_line_for_begin_and_end(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run = pipeline.google.submit()
    assert event(pipeline, run) == {"outcome": "running", "run": run}
    record = pipeline.record(run)
    assert (record["stage"], record["batch"], record["objects"], record["bytes"]) == (
        "preprocess", f"tpu-pipeline-{run}", 1, 1000
    )  # fmt: skip
    pipeline.sweep(3)
    assert [name for name in pipeline.google.requests if re.search(BATCH, name)] == [
        f"POST https://dataproc.googleapis.com/v1/projects/my-project/locations/us-east5/batches"
        f"?batchId=tpu-pipeline-{run}"
    ]
    pipeline.google.move("SUCCEEDED")
    record = pipeline.swept(run)
    assert (record["outcome"], record["stage"], record["folder"]) == (
        "shards", "train", f"tokens/{run}/0123abcd"
    )  # fmt: skip
    assert record["tokens"] | {"shards": 2, "tokens": 6, "documents": 3, "bytes": 320} == record["tokens"]
    assert record["actual_usd"] == record["spark_usd"] > 0
    assert lines(caplog, "pipeline_begin") == [
        {"event": "pipeline_begin", "run": run, "raw": f"gs://{RAW}/corpus/"}
    ]
    (ended,) = lines(caplog, "pipeline_run")
    assert (ended["run"], ended["outcome"], ended["stage"]) == (run, "shards", "train")
    requested = len(pipeline.google.requests)
    pipeline.sweep(5)
    looks = pipeline.google.requests[requested:]
    assert not [line for line in looks if "run.json" in line], "what has ended isn't read again"


def test_a_lost_event_costs_a_sweep_and_a_late_one_nothing(pipeline: Pipeline) -> None:
    run = pipeline.google.submit()
    assert pipeline.swept(run)["batch"] == f"tpu-pipeline-{run}"
    for _ in range(3):
        assert event(pipeline, run) == {"outcome": "duplicate", "run": run}
    assert len(pipeline.google.batches) == 1


@pytest.mark.parametrize(("bucket", "name", "generation"), [
    (RAW, "corpus/a.jsonl", "17"), ("another", "corpus/_SUBMIT", "17"), (RAW, "corpus/x_SUBMIT", "17"),
    (RAW, "corpus/_SUBMIT", "../17"), (RAW, "corpus/_SUBMIT", ""),
])  # fmt: skip
def test_what_is_no_submission_is_ignored(
    pipeline: Pipeline, bucket: str, name: str, generation: str
) -> None:
    assert pipeline.sweeps.submitted(bucket, name, generation) == {"outcome": "ignored"}
    assert pipeline.google.requests == []


@pytest.mark.parametrize("folder", [
    'x","--set","filters.script=gs://RAW/evil.py","--set","input.sources=gs://RAW/corpus/',
    "a,b/", "--set filters.script=x/", "it's/", "{{@RUN@}}/@DATA@/", "a\nb/",
])  # fmt: skip
def test_a_folder_of_any_name_is_one_argument(pipeline: Pipeline, folder: str) -> None:
    run = pipeline.google.submit(folder)
    pipeline.sweep()
    (body,) = pipeline.google.created
    url = f"gs://{RAW}/{folder}"
    assert body["pysparkBatch"]["args"] == [
        "text.toml", "--set", f"input.sources={url}", "--set", f"output.url=gs://{BUCKET}/tokens/{run}",
    ]  # fmt: skip
    assert json.loads(json.dumps(pipeline.record(run)))["raw"] == url
    assert body["labels"] == LABELS
    pipeline.google.move("SUCCEEDED")
    assert pipeline.swept(run)["outcome"] == "shards"


def test_an_empty_folder_is_an_outcome(pipeline: Pipeline) -> None:
    run = pipeline.google.submit("empty/", b"")
    record = pipeline.swept(run)
    assert (record["outcome"], record["next"]) == ("empty", f"tpu pipeline run dev gs://{RAW}/empty/")


def test_two_calls_at_once_make_one_batch_and_the_second_leaves_the_run(pipeline: Pipeline) -> None:
    run = pipeline.google.submit()
    other = Pipeline(pipeline.settings, pipeline.google)
    original, met = pipeline.client.send, list[str]()

    def beside(method: str, url: str, *rest: Any, **more: Any) -> Any:
        if method == "POST" and "dataproc" in url and not met:
            met.append(url)
            other.sweep()  # a whole sweep of another instance, in the middle of this one's request
        return original(method, url, *rest, **more)

    pipeline.client.send = beside  # type: ignore[method-assign]
    pipeline.sweep()
    assert met
    assert list(pipeline.google.batches) == [f"tpu-pipeline-{run}"]
    assert pipeline.record(run)["batch"] == f"tpu-pipeline-{run}"


@pytest.mark.parametrize("pattern", [
    WRITE, BATCH, LOOK, "GET https://storage.*tokens/r[0-9]+/\\*", "GET .*manifest.json", r"GET .*\.bin",
])  # fmt: skip
@pytest.mark.parametrize("done", [False, True])
def test_an_instance_that_dies_in_any_request_is_followed_by_one_that_continues(
    pipeline: Pipeline, pattern: str, done: bool
) -> None:
    """At each of its requests to the end: before it is carried out, and before its answer is read."""
    run, deaths = pipeline.google.submit(), 0
    for number in range(6):
        pipeline.google.faults = [Fault(pattern, dies=True, done=done)]
        try:
            pipeline.sweep(fine=False)
        except DiesError:
            deaths += 1
            pipeline.instance()
        pipeline.google.faults = []
        pipeline.sweep()
        if number == 2:
            pipeline.google.move("SUCCEEDED")
    assert deaths
    assert pipeline.record(run)["outcome"] == "shards"
    assert list(pipeline.google.batches) == [f"tpu-pipeline-{run}"]
    assert pipeline.record(run)["spark_usd"] > 0


@pytest.mark.parametrize("pattern", [WRITE, BATCH])
def test_a_lost_answer_neither_doubles_nor_disowns(pipeline: Pipeline, pattern: str) -> None:
    run = pipeline.google.submit()
    fault = Fault(pattern, done=True)
    pipeline.google.faults = [fault]
    pipeline.sweep()
    assert fault.met == 1
    assert list(pipeline.google.batches) == [f"tpu-pipeline-{run}"]
    assert pipeline.record(run)["batch"] == f"tpu-pipeline-{run}"
    pipeline.google.move("SUCCEEDED")
    assert pipeline.swept(run)["outcome"] == "shards"


def test_a_batch_of_this_name_that_isnt_the_pipelines_is_a_conflict(pipeline: Pipeline) -> None:
    run = pipeline.google.submit()
    pipeline.google.batches[f"tpu-pipeline-{run}"] = {"state": "RUNNING", "labels": {"environment": "prod"}}
    record = pipeline.swept(run)
    assert (record["outcome"], record["next"]) == ("conflict", f"tpu pipeline retry dev {run}")
    pipeline.sweeps.store.request(run, "retry", "ann")
    assert pipeline.swept(run)["batch"] == f"tpu-pipeline-{run}-1"


@pytest.mark.parametrize(("pattern", "status", "message", "outcome", "grant"), [
    (BATCH, 403, "Permission 'dataproc.batches.create' denied on resource", "permission",
     "the role tpu_pipeline_run_batches on the project for tpu-pipeline-run"),
    (BATCH, 403, "User not authorized to act as service account 'tpu-pipeline-spark@p'", "permission",
     "roles/iam.serviceAccountUser on the account tpu-pipeline-spark"),
    (f"GET https://storage.*/b/{RAW}/o.*prefix", 403,
     "tpu-pipeline-run@p does not have storage.objects.list access to the bucket", "permission",
     f"roles/storage.objectViewer on the bucket {RAW}"),
    (f"GET https://storage.*/b/{BUCKET}/o.*tokens", 403,
     "tpu-pipeline-run@p does not have storage.objects.list access to the bucket", "permission",
     f"roles/storage.objectViewer on the bucket {BUCKET}, below tokens/"),
    (BATCH, 429, "Quota exceeded for quota metric 'CPUS'", "quota", ""),
    (BATCH, 400, "Invalid value at 'batch'", "refused", ""),
])  # fmt: skip
def test_a_refused_request_is_an_outcome_with_the_missing_grant(
    pipeline: Pipeline, pattern: str, status: int, message: str, outcome: str, grant: str
) -> None:
    run = pipeline.google.submit()
    fault = Fault(pattern, status, message)
    pipeline.google.faults = [fault]
    record = pipeline.swept(run)
    assert (fault.met, record["outcome"]) == (1, outcome)
    assert message in record["why"]
    assert f"; it needs {grant}" in record["why"] if grant else "it needs" not in record["why"]
    pipeline.sweeps.store.request(run, "retry", "ann")
    assert pipeline.swept(run)["batch"] == f"tpu-pipeline-{run}-1"


@pytest.mark.parametrize(
    ("status", "outcome"), [(503, "unavailable"), (429, "throttled"), (0, "unavailable")]
)
def test_an_outage_is_outlived_for_a_quarter_of_an_hour(
    pipeline: Pipeline, status: int, outcome: str
) -> None:
    run = pipeline.google.submit()
    fault = Fault(BATCH, status, times=10**6)
    pipeline.google.faults = [fault]
    record = pipeline.swept(run, 10)
    assert record["outcome"] == "running"
    assert record["failing_s"] == pytest.approx(START_S + 60, abs=5)
    pipeline.google.faults = []
    pipeline.sweep()
    assert "why" not in pipeline.record(run)
    assert pipeline.record(run)["batch"]
    pipeline.google.move("SUCCEEDED")
    pipeline.google.faults = [Fault("GET .*manifest.json", status, times=10**6)]
    record = pipeline.swept(run, 20)
    assert (record["outcome"], record["stage"]) == (outcome, "check")
    assert record["next"] == f"tpu pipeline retry dev {run}"


def test_shards_are_compared_a_part_at_a_time(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "_CHUNK", 100)  # each shard is read in two parts
    run = pipeline.processed(shards=40)
    original = pipeline.client.blocks

    def slow(url: str, size: int) -> Any:
        pipeline.google.now_s += 1.0
        return original(url, size)

    pipeline.client.blocks = slow  # type: ignore[method-assign]
    monkeypatch.setattr("pipeline.sweep.CHECK_S", 15.0)
    indices = []
    while pipeline.record(run)["outcome"] == "running":
        began = len(pipeline.google.requests)
        pipeline.sweep()
        read = {name for line in pipeline.google.requests[began:] for name in re.findall(r"tokens-\d+", line)}
        indices.append((pipeline.record(run)["checked"], len(read)))
    assert indices == [(16, 16), (32, 16), (40, 8)], "nothing is read twice"
    tokens = pipeline.record(run)["tokens"]
    assert (tokens["shards"], tokens["bytes"]) == (40, 40 * 160)


def test_a_manifest_that_changes_meanwhile_is_compared_from_the_start(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.sweep.CHECK_S", 0.0)
    run = pipeline.processed(shards=20)
    pipeline.client.blocks = _ticking(pipeline)  # type: ignore[method-assign]
    assert pipeline.swept(run)["checked"] == 8
    pipeline.google.shards(run, 12, note="another")
    assert pipeline.swept(run)["checked"] == 8
    assert pipeline.swept(run)["tokens"]["shards"] == 12


def _ticking(pipeline: Pipeline) -> Any:
    original = pipeline.client.blocks

    def slow(url: str, size: int) -> Any:
        pipeline.google.now_s += 0.1
        return original(url, size)

    return slow


@pytest.mark.parametrize(("spoil", "why"), [
    (("tokens-00001.bin", None), "tokens-00001.bin is missing"),
    (("tokens-00001.bin", b"another"), "tokens-00001.bin has changed: its sha256 is"),
    (("manifest.json", b"["), "manifest.json: is no manifest: is no JSON"),
    (("manifest.json", b'{"shards": []}'), "is no manifest: names no shard"),
    (("manifest.json", b'{"shards": [{"file": "../x", "sha256": "a"}]}'), "is no manifest: file = '../x'"),
    (("manifest.json", b'{"shards": [7]}'), "is no manifest: has a shard without file or sha256"),
    (("manifest.json", None), "manifest.json or _READY is missing"),
])  # fmt: skip
def test_shards_that_arent_as_their_manifest_says_are_invalid(
    pipeline: Pipeline, spoil: tuple[str, bytes | None], why: str
) -> None:
    run = pipeline.processed()
    name, content = f"tokens/{run}/0123abcd/{spoil[0]}", spoil[1]
    if content is None:
        del pipeline.google.objects[BUCKET, name]
    else:
        pipeline.google.put(BUCKET, name, content)
    record = pipeline.swept(run)
    assert (record["outcome"], record["stage"]) == ("invalid", "check")
    assert why in record["why"]
    assert record["next"] == f"tpu pipeline logs dev {run}"


def test_many_wrong_shards_are_counted(pipeline: Pipeline) -> None:
    run = pipeline.processed(shards=8)
    for number in range(8):
        del pipeline.google.objects[BUCKET, f"tokens/{run}/0123abcd/tokens-{number:05d}.bin"]
    assert pipeline.swept(run)["why"].endswith("tokens-00004.bin is missing; and 3 more")


def test_a_folder_of_shards_by_another_name_than_sparks_is_passed_over(pipeline: Pipeline) -> None:
    """Hosts may write there, and the folder becomes a word of the training command."""
    run = pipeline.processed()
    pipeline.google.put(BUCKET, f"tokens/{run}/x --set train.steps=1/_READY", b"{}")
    assert pipeline.swept(run)["folder"] == f"tokens/{run}/0123abcd"


def test_a_retry_continues_from_complete_shards(pipeline: Pipeline) -> None:
    run = pipeline.google.submit()
    pipeline.sweep()
    pipeline.google.move("FAILED", "disk full")
    assert pipeline.swept(run)["outcome"] == "failed"
    pipeline.google.shards(run)
    pipeline.sweeps.store.request(run, "retry", "ann@laptop")
    record = pipeline.swept(run)
    assert (record["outcome"], record["retry"]) == ("shards", 1)
    assert len(pipeline.google.batches) == 1, "nothing is tokenized again"


def test_a_cancellation_by_a_person_ends_the_batch(pipeline: Pipeline) -> None:
    run = pipeline.google.submit()
    pipeline.sweep()
    pipeline.sweeps.store.request(run, "cancel", "ann@laptop")
    pipeline.sweep()
    assert pipeline.google.batches[f"tpu-pipeline-{run}"]["state"] == "CANCELLED"
    record = pipeline.swept(run)
    assert (record["outcome"], record["why"]) == ("cancelled", "ann@laptop cancelled the run")
    assert not [key for key in pipeline.google.objects if "pipeline-requests" in key[1]]


def test_a_request_is_applied_once_whoever_dies(pipeline: Pipeline) -> None:
    run = pipeline.google.submit("empty/", b"")
    pipeline.sweep()
    pipeline.sweeps.store.request(run, "retry", "ann")
    pipeline.google.faults = [Fault("DELETE", dies=True)]
    with pytest.raises(DiesError):
        pipeline.sweep()
    assert pipeline.record(run)["retry"] == 1
    pipeline.instance()
    assert pipeline.swept(run, 2)["retry"] == 1
    assert not [key for key in pipeline.google.objects if "pipeline-requests" in key[1]]


@pytest.mark.parametrize(
    "content", ['{"action": "destroy"}', "[", "{}", '{"action": "retry", "by": "\x1b[2J"}']
)
def test_a_request_out_of_its_schema_does_nothing(
    pipeline: Pipeline, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = pipeline.google.submit("empty/", b"")
    pipeline.sweep()
    before = pipeline.google.objects[CONTROLLERS, f"pipeline/{run}/run.json"]
    pipeline.google.put(CONTROLLERS, f"pipeline-requests/{run}.json", content)
    pipeline.sweep(3, fine=False)
    assert pipeline.google.objects[CONTROLLERS, f"pipeline/{run}/run.json"] == before
    (fault,) = [
        entry.message
        for entry in caplog.records
        if entry.levelno == logging.ERROR and "left alone" in entry.message
    ]
    assert f"gs://{CONTROLLERS}/pipeline-requests/{run}.json" in fault
    assert "fix: repair it, or gcloud storage rm" in fault


@pytest.mark.parametrize("edited", ['{"version": 2, "run": "r1"}', "[]", '{"run": "r1"}', "\xff"])
def test_a_record_that_is_newer_or_wrong_is_reported_once_and_left_alone(
    pipeline: Pipeline, edited: str, caplog: pytest.LogCaptureFixture
) -> None:
    run, other = pipeline.google.submit(), pipeline.google.submit("other/")
    pipeline.sweep()
    key = CONTROLLERS, f"pipeline/{run}/run.json"
    pipeline.google.put(*key, edited)
    pipeline.google.move("SUCCEEDED")
    pipeline.sweep(3, fine=False)
    assert pipeline.google.objects[key].content == edited.encode()
    assert pipeline.record(other)["outcome"] == "shards", "another run is advanced"
    reports = [entry.message for entry in caplog.records if "left alone" in entry.message]
    assert len(reports) == 1
    assert f"gs://{CONTROLLERS}/pipeline/{run}/run.json" in reports[0]
    assert len(pipeline.google.batches) == 2


def test_a_fault_of_one_run_stops_no_other(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [pipeline.google.submit(f"{name}/") for name in ("a", "b", "c")]
    original = pipeline.sweeps._observed

    def observed(run: Any) -> Any:
        if run.run == runs[1]:
            raise ZeroDivisionError("an error of the program")
        return original(run)

    monkeypatch.setattr(pipeline.sweeps, "_observed", observed)
    pipeline.sweep(2, fine=False)
    assert [bool(pipeline.record(run).get("batch")) for run in runs] == [True, False, True]
    faults = [
        getattr(entry, "fields", {}) for entry in caplog.records if "an error of the program" in entry.message
    ]
    assert faults == [{"event": "pipeline_fault"}] * 2
    monkeypatch.undo()
    pipeline.sweep()
    assert pipeline.record(runs[1])["batch"]


def test_submissions_that_cannot_be_listed_stop_no_run(pipeline: Pipeline) -> None:
    run = pipeline.processed()
    message = "tpu-pipeline-run@p does not have storage.objects.list access to the bucket"
    pipeline.google.faults = [Fault("matchGlob=.*_SUBMIT", 403, message)]
    pipeline.google.now_s += SUBMISSIONS_S
    (fault,) = pipeline.sweeps.sweep()
    assert f"it needs roles/storage.objectViewer on the bucket {RAW}" in fault
    assert pipeline.record(run)["outcome"] == "shards"


def test_submissions_are_listed_every_ten_minutes_alone(pipeline: Pipeline) -> None:
    pipeline.sweep()
    listed_s = pipeline.google.now_s
    run = pipeline.google.submit()  # without its event
    name = CONTROLLERS, f"pipeline/{run}/run.json"
    for now_s, known in ((listed_s + SUBMISSIONS_S - 1, False), (listed_s + SUBMISSIONS_S, True)):
        pipeline.google.now_s = now_s
        pipeline.sweeps.sweep()
        assert (name in pipeline.google.objects) is known


def test_records_that_cannot_be_listed_fail_the_sweep(pipeline: Pipeline) -> None:
    pipeline.google.faults = [Fault(f"GET .*/b/{CONTROLLERS}/o", 403, "denied")]
    with pytest.raises(RequestError, match="denied"):
        pipeline.sweeps.sweep()


def test_published_code_is_taken_by_a_retry(pipeline: Pipeline) -> None:
    published = pipeline.settings[PipelineSettings]
    sections = {**pipeline.settings.sections, PipelineSettings: replace(published, code=None)}
    bare = Pipeline(replace(pipeline.settings, sections=sections), pipeline.google)
    run = pipeline.google.submit()
    bare.sweep()
    record = pipeline.record(run)
    assert (record["outcome"], record["next"]) == ("refused", "tpu pipeline publish dev")
    pipeline.sweeps.store.request(run, "retry", "ann")
    assert pipeline.swept(run)["code"] == published.code
    newer = Pipeline(given(pipeline__code="cd" * 32), pipeline.google)
    newer.sweeps.store.request(run, "cancel", "ann")
    newer.sweep(2)
    assert pipeline.record(run)["code"] == published.code, "that of its batch"
