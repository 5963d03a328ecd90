"""Runs as `tpu pipeline` handles them, by a real client against Google's APIs in memory."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from cli import pipeline
from infra.errors import CommandError
from infra.google.client import Client, RequestError
from pipeline import record
from pipeline.decide import rfc3339
from pipeline.runs import NoRunError, Runs
from pipeline.store import CANCEL, RETRY
from tests.cli.call import call
from tests.hostile import EXAMPLES, contents, fuzz
from tests.limits import HANG_S
from tests.pipeline.world import BUCKET, CONTROLLERS, RAW, Fault, Google, given

RUN = {
    "version": 1, "run": "r17", "raw": f"gs://{RAW}/corpus/", "retry": 0, "code": "ab" * 32,
    "began": "2026-11-24T10:00:00Z", "began_s": 1_764_000_000.0, "stage": "preprocess", "outcome": "running",
    "most_usd": 12.5, "batch": "tpu-pipeline-r17",
}  # fmt: skip


def google_with(*runs: Mapping[str, Any]) -> Google:
    """Return a cloud with records, and with text in a folder."""
    google = Google()
    for run in runs:
        keep(google, run)
    google.put(RAW, "corpus/a.jsonl", b"x" * (1 << 20))
    google.put(RAW, "empty/a.jsonl", b"")
    return google


def keep(google: Google, run: Mapping[str, Any], name: str = "") -> None:
    google.put(CONTROLLERS, f"pipeline/{name or run['run']}/run.json", json.dumps(run))


def runs(google: Google, **more: Any) -> Runs:
    return Runs(given(**more), Client("my-project", google, sleep=lambda _: None))  # type: ignore[arg-type]


def parsed(**changes: Any) -> record.Run:
    return record.parse("r17", json.dumps({**RUN, **changes}))


def requested(google: Google, run: str = "r17") -> Any:
    """Return the content of a person's request."""
    return json.loads(google.objects[CONTROLLERS, f"pipeline-requests/{run}.json"].content)


def writes(google: Google) -> list[str]:
    return [line for line in google.requests if not line.startswith("GET ")]


def test_many_records_are_read_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    google = google_with(*({**RUN, "run": f"r{number}"} for number in range(64)))
    known, together = runs(google), threading.Barrier(8)
    original = known._store.read

    def slow(run: str) -> Any:
        together.wait(HANG_S)  # until eight ask at the same time
        return original(run)

    monkeypatch.setattr(known._store, "read", slow)
    assert {run.run for run in known.all()} == {f"r{number}" for number in range(64)}


def test_what_is_submitted_is_measured_and_the_marker_isnt_counted() -> None:
    google = google_with()
    google.put(RAW, "corpus/_SUBMIT", b"mark")
    assert runs(google).measure(f"gs://{RAW}/corpus/") == ("corpus/", 1, 1 << 20)
    assert runs(google).measure(f"gs://{RAW}/corpus") == ("corpus/", 1, 1 << 20)
    assert runs(google).measure(f"gs://{RAW}")[0] == ""


@pytest.mark.parametrize(("url", "message"), [
    ("gs://another/corpus/", "is no folder of gs://my-project-raw"),
    ("corpus", "is no folder of gs://my-project-raw"),
    (f"gs://{RAW}/nothing/", "nothing is there"),
    (f"gs://{RAW}/empty/", "nothing is there"),
])  # fmt: skip
def test_what_cannot_be_submitted_is_refused_with_the_next_command(url: str, message: str) -> None:
    google = google_with()
    with pytest.raises(CommandError, match=message) as raises:
        runs(google).measure(url)
    assert "fix: " in str(raises.value)
    assert writes(google) == []


def test_a_submission_is_an_object_and_nothing_else() -> None:
    google = google_with()
    run = runs(google).submit("corpus/")
    assert run == f"r{google.objects[RAW, 'corpus/_SUBMIT'].generation}"
    (write,) = writes(google)
    assert "ifGenerationMatch=0&name=corpus/_SUBMIT" in write
    again = runs(google).submit("corpus/")
    assert again != run, "a later submission is another run"


@pytest.mark.parametrize(("outcome", "message"), [
    ("running", "which is at check\n    fix: tpu pipeline status dev {0}, or tpu pipeline cancel dev {0}, "),
    ("", "which is waiting\n    fix: tpu pipeline status dev {0}$"), ("failed", ""), ("trained", ""),
])  # fmt: skip
def test_a_folder_whose_run_hasnt_ended_isnt_submitted_again(outcome: str, message: str) -> None:
    """As after a command that was killed before it printed the run's name: two batches would be paid for."""
    google = google_with()
    runs(google).require_ended("corpus/")
    run = runs(google).submit("corpus/")
    if outcome:
        keep(google, {**RUN, "run": run, "outcome": outcome, "stage": "check"})
    else:
        google.objects[RAW, "corpus/_SUBMIT"].updated = rfc3339(time.time())
    if not message:
        runs(google).require_ended("corpus/")
        return
    with pytest.raises(CommandError, match=f"submitted already, as {run}, {message.format(run)}"):
        runs(google).require_ended("corpus/")


def test_a_submission_that_is_too_old_to_be_started_is_submitted_again() -> None:
    google = google_with()
    runs(google).submit("corpus/")
    google.objects[RAW, "corpus/_SUBMIT"].updated = "2020-01-01T00:00:00Z"
    runs(google).require_ended("corpus/")


@pytest.mark.parametrize("action", [CANCEL, RETRY])
def test_a_request_is_an_object_that_the_next_sweep_applies(action: str) -> None:
    google = google_with()
    runs(google).request(parsed(), action)
    assert requested(google)["action"] == action
    assert "@" in requested(google)["by"]
    pending = runs(google).pending("r17")
    assert pending is not None
    assert pending.action == action
    with pytest.raises(CommandError, match="another request isn't applied yet\n    fix: tpu pipeline status"):
        runs(google).request(parsed(), CANCEL)


def test_a_request_whose_answer_is_lost_is_one() -> None:
    google = google_with()
    fault = Fault("POST .*pipeline-requests", done=True)
    google.faults = [fault]
    runs(google).request(parsed(), RETRY)
    assert fault.met == 1
    assert requested(google)["action"] == RETRY


@pytest.mark.parametrize(("changes", "action", "message"), [
    ({}, RETRY, "r17 is running\n    fix: tpu pipeline cancel dev r17 first"),
    ({"outcome": "trained"}, RETRY, "r17 has ended well\n    fix: tpu pipeline run dev gs://"),
    ({"outcome": "shards"}, RETRY, "r17 has ended well"),
    ({"outcome": "failed"}, CANCEL, "r17 has ended: failed\n    fix: tpu pipeline status dev r17"),
])  # fmt: skip
def test_a_request_that_would_change_nothing_is_refused(
    changes: dict[str, Any], action: str, message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        runs(google_with()).refuse(parsed(**changes), action)


def test_the_batch_that_a_run_waits_for_is_looked_at_and_no_other() -> None:
    google = google_with()
    google.batches["tpu-pipeline-r17"] = {"state": "PENDING", "stateTime": "2026-11-24T10:01:00Z"}
    assert runs(google).batch(parsed()) == "PENDING since 2026-11-24T10:01:00Z"
    google.batches.clear()
    assert runs(google).batch(parsed()) == "not there yet"
    count = len(google.requests)
    for other in ({"outcome": "failed"}, {"stage": "check"}, {"batch": None}):
        assert runs(google).batch(parsed(**other)) == ""
    assert len(google.requests) == count


def test_runs_are_listed_the_newest_first() -> None:
    later = {**RUN, "run": "r18", "began": "2026-11-25T10:00:00Z"}
    assert [run.run for run in runs(google_with(RUN, later)).all()] == ["r18", "r17"]


def test_what_nothing_has_started_waits_and_names_the_grants_that_start_it() -> None:
    google = google_with()
    submitted = google.submit("other/")
    (waiting,) = runs(google).waiting()
    assert (waiting.run, waiting.raw) == (submitted, f"gs://{RAW}/other/")
    why = runs(google).why_waiting()
    for role in ("roles/run.invoker on the function", "roles/eventarc.eventReceiver on the project"):
        assert f"{role} for tpu-pipeline-trigger" in why
    keep(google, {**RUN, "run": submitted})
    assert runs(google).waiting() == []


def test_who_may_not_list_the_raw_bucket_sees_all_but_submissions() -> None:
    google = google_with()
    google.submit("other/")
    google.faults = [Fault(f"GET .*/b/{RAW}/o", 403, "Permission 'storage.objects.list' denied on resource")]
    assert runs(google).waiting() == []
    google.faults = [Fault(f"GET .*/b/{RAW}/o", 503, times=3)]
    with pytest.raises(RequestError, match="try again"):
        runs(google).waiting()


def test_who_lacks_a_role_is_told_of_the_lists_that_grant_it_and_of_no_other() -> None:
    google = google_with()
    denied = "Permission '{}' denied on resource"
    google.faults = [Fault("POST .*pipeline-requests", 403, denied.format("storage.objects.create"))]
    with pytest.raises(
        CommandError,
        match=rf"fix: roles/storage.objectUser \(pipeline:runners\) on the bucket {CONTROLLERS}, then",
    ):
        runs(google).request(parsed(), RETRY)
    google.faults = [Fault("GET https://dataproc", 403, denied.format("dataproc.batches.get"))]
    with pytest.raises(CommandError, match=r"serverlessViewer \(pipeline:viewers\) or roles/.*\(pipeline:r"):
        runs(google).batch(parsed())
    google.faults = [Fault("POST https://logging", 403, denied.format("logging.logEntries.list"))]
    with pytest.raises(
        CommandError, match=r"\(pipeline:viewers\) or roles/logging.viewer \(pipeline:runners\)"
    ):
        list(runs(google).logs(parsed()))
    google.faults = [Fault(f"GET .*/b/{RAW}/o", 403, denied.format("storage.objects.list"))]
    with pytest.raises(
        CommandError, match=rf"fix: roles/storage.objectUser \(pipeline:runners\) on the bucket {RAW}, then"
    ):
        runs(google).measure(f"gs://{RAW}/corpus/")


@pytest.mark.parametrize("name", ["r99", "../secret", "17", ""])
def test_a_run_that_there_isnt_is_an_error(name: str) -> None:
    with pytest.raises(NoRunError, match="no run"):
        runs(google_with(RUN)).named(name)


def test_lines_of_a_batch_are_read_whatever_their_payload() -> None:
    google = google_with()
    google.entries = [{"textPayload": "one"}, {"jsonPayload": {"message": "two"}}, {"jsonPayload": {"a": 3}}]
    assert list(runs(google).logs(parsed())) == ["one", "two", '{"a": 3}']


@pytest.mark.parametrize(("changed", "why"), [
    ({"run": "r18"}, "is of r18"), ({"began": None}, "lacks began"), ({"version": 2}, "is of version 2"),
    ({"predicted_usd": "²"}, "predicted_usd = '\\xb2': must be"), ({"tokens": []}, "tokens = list: must be"),
    ({"batch": 'x" OR "'}, "batch = "), ({"why": {"a": 1}}, "why = dict: must be"),
    ({"retry": 10**400}, "retry = int: must be"),
])  # fmt: skip
def test_a_record_out_of_its_schema_hides_no_other(changed: dict[str, Any], why: str) -> None:
    google = google_with({**RUN, "run": "r9"})
    keep(google, {**RUN, **changed}, "r17")
    known = runs(google)
    assert [run.run for run in known.all()] == ["r9"]
    ((name, reason),) = known.unread.items()
    assert name == f"gs://{CONTROLLERS}/pipeline/r17/run.json"
    assert reason.startswith(why)
    with pytest.raises(CommandError, match=rf"gs://{CONTROLLERS}/pipeline/r17/run.json: .*\n    fix: "):
        known.named("r17")


def test_a_record_of_no_use_for_its_size_isnt_read() -> None:
    google = google_with()
    google.put(CONTROLLERS, "pipeline/r17/run.json", b" " * (2 << 20))
    known = runs(google)
    assert known.all() == []
    (why,) = known.unread.values()
    assert why.startswith("has more than 1048576 bytes\n    fix: repair it, or gcloud storage rm gs://")
    assert not [line for line in google.requests if "alt=media" in line]


def test_records_of_the_checkpoint_bucket_are_no_records() -> None:
    """Hosts and pods write there."""
    google = google_with()
    google.put(BUCKET, "pipeline/r17/run.json", json.dumps(RUN))
    assert runs(google).all() == []


@EXAMPLES
def test_no_record_ends_what_lists_runs(
    examples: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {
        **RUN, "objects": 1, "bytes": 5, "training": "slice r17", "ended": "2026-11-24T11:00:00Z",
        "predicted_usd": 1.0, "why": "", "next": "", "restart": 0, "spark_usd": None,
        "tokens": {"shards": 2, "tokens": 1000, "manifest": "cd" * 32, "inputs": "ef" * 32},
    }  # fmt: skip
    google, known = google_with(), given()
    monkeypatch.setattr(pipeline, "Client", lambda _: Client("my-project", google))  # type: ignore[arg-type]
    monkeypatch.setattr(pipeline, "from_file", lambda _: known)

    def check(raw: bytes) -> None:
        google.put(CONTROLLERS, "pipeline/r17/run.json", raw)
        for line in ("status dev", "cost dev", "status dev r17", "status dev --json"):
            with suppress(CommandError):
                call(pipeline.pipeline, line.split())
        capsys.readouterr()

    fuzz(examples, contents(good), check)
