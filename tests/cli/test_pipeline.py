"""Runs as `tpu pipeline` handles them, against a client that answers out of dictionaries."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

from cli import pipeline
from infra.errors import CommandError
from infra.google.client import NO_QUERY, Client, Query, RequestError
from infra.google.failures import classify
from infra.layers.pipeline.runs import Runs, missing
from tests.cli.call import call
from tests.hostile import EXAMPLES, contents, fuzz
from tests.infra.layers.pipeline.test_pipeline_layer import settings
from tests.limits import HANG_S

RAW, BUCKET = "my-project-raw", "my-project-checkpoints"
RUN = {
    "run": "r17", "raw": f"gs://{RAW}/corpus/", "retry": 0, "code": "ab" * 32, "execution": "e-1",
    "began": "2026-11-24T10:00:00Z", "stage": "preprocess", "outcome": "running", "most_usd": 12.5,
    "batch": "tpu-pipeline-r17",
}  # fmt: skip


class Google(Client):
    """Google's APIs with given objects, sizes and executions; records the requests."""

    def __init__(self, *runs: Mapping[str, Any], state: str = "ACTIVE"):
        super().__init__("my-project", sleep=lambda _: None)
        self.records: dict[str, Any] = {f"pipeline/{run['run']}/run.json": dict(run) for run in runs}
        self.sizes = {"corpus/a.jsonl": 1 << 30, "corpus/_SUBMIT": 0, "empty/a.jsonl": 0}
        self.requests: list[tuple[str, str, Any]] = []
        self.entries: list[dict[str, Any]] = []
        self.executions: list[dict[str, Any]] = []
        self.refused, self.lacks = "", "workflows.executions.create"
        self.execution: dict[str, Any] | None = {"state": state}
        self.batch: dict[str, Any] | None = {"state": "PENDING", "stateTime": "2026-11-24T10:01:00Z"}
        self.unlisted: RequestError | None = None
        self.lost = ""  # a request whose answers don't arrive
        self.written: list[str] = []

    def json(
        self, method: str, url: str, query: Query = NO_QUERY, body: Any = None, tries: int = 3
    ) -> dict[str, Any]:
        self.requests.append((method, url, body))
        if self.lost and self.lost in f"{method} {url}":
            raise RequestError(classify("try again", 503), repeated=True)
        if self.refused and self.refused in f"{method} {url}":
            raise RequestError(classify(f"Permission '{self.lacks}' denied on resource", 403))
        if method == "GET" and url.endswith("/executions"):
            return {"executions": self.executions}
        if url.endswith("entries:list"):
            # Audit entries of a batch have the batch's labels, too.
            assert 'logName:"dataproc.googleapis.com"' in body["filter"]
            assert 'resource.labels.batch_id="tpu-pipeline-r17"' in body["filter"]
            at = int(body.get("pageToken", 0))  # a page is one entry
            more = {"nextPageToken": str(at + 1)} if self.entries[at + 1 :] else {}
            return {"entries": self.entries[at : at + 1], **more}
        if "/batches/" in url:
            if self.batch is None:
                raise RequestError(classify("no such batch", 404))
            return {"operation": "projects/p/regions/us-east5/operations/o", **self.batch}
        if url.endswith("/e-1"):
            if self.execution is None:
                raise RequestError(classify("no such execution", 404))
            return self.execution
        if "/upload/" in url:
            self.written.append(str(query["name"]))
        return {"generation": "17"}

    def items(self, url: str, key: str, query: Query) -> Iterator[dict[str, Any]]:
        if f"/b/{RAW}/" in url:
            if self.unlisted:
                raise self.unlisted
            if "matchGlob" in query:
                yield {"name": "corpus/_SUBMIT", "generation": "17", "updated": "2026-11-24T09:00:00Z"}
                return
            names = [name for name in self.sizes if name.startswith(str(query["prefix"]))]
            yield from ({"name": name, "size": str(self.sizes[name])} for name in names)
        else:
            yield from ({"name": name} for name in [*self.records, "pipeline/r9/other.txt"])

    def content(self, url: str) -> bytes | None:
        result = self.records.get(unquote(url.rpartition("/o/")[2]))
        return result if result is None or isinstance(result, bytes) else json.dumps(result).encode()

    def send(self, method: str, url: str, query: Query = NO_QUERY, body: Any = None, tries: int = 3) -> Any:
        """Of one object, in its fifth generation."""
        if self.refused and self.refused in f"{method} {url}":
            message = "tpu@p does not have storage.objects.get access"
            raise RequestError(classify(f"{message}. Permission 'storage.objects.get' denied", 403))
        name = unquote(url.rpartition("/o/")[2])
        if name not in self.records:
            raise RequestError(classify("No such object", 404))
        records = self.records[name]
        if method == "DELETE":
            assert query["ifGenerationMatch"] == "5"
            del self.records[name]
        return SimpleNamespace(json=lambda: records, headers={"x-goog-generation": "5"})


def runs(google: Google, **more: Any) -> Runs:
    return Runs(settings(**more), google)


def test_many_records_are_read_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    google = Google(*({**RUN, "run": f"r{number}"} for number in range(64)))
    together, content = threading.Barrier(8), google.content

    def slow(url: str) -> bytes | None:
        together.wait(HANG_S)  # until eight ask at the same time
        return content(url)

    monkeypatch.setattr(google, "content", slow)
    assert {item["run"] for item in runs(google).all()} == {f"r{number}" for number in range(64)}


def test_what_is_submitted_is_measured_and_the_marker_isnt_counted() -> None:
    assert runs(Google()).measure(f"gs://{RAW}/corpus/") == ("corpus/", 1, 1 << 30)
    assert runs(Google()).measure(f"gs://{RAW}/corpus") == ("corpus/", 1, 1 << 30)
    assert runs(Google()).measure(f"gs://{RAW}")[0] == ""


@pytest.mark.parametrize(("url", "message"), [
    ("gs://another/corpus/", "is no folder of gs://my-project-raw"),
    ("corpus", "is no folder of gs://my-project-raw"),
    (f"gs://{RAW}/nothing/", "nothing is there"),
    (f"gs://{RAW}/empty/", "nothing is there"),
])  # fmt: skip
def test_what_cannot_be_submitted_is_refused_with_the_next_command(url: str, message: str) -> None:
    google = Google()
    with pytest.raises(CommandError, match=message) as raises:
        runs(google).measure(url)
    assert "fix: " in str(raises.value)
    assert not [method for method, _, _ in google.requests if method == "POST"]


def test_a_submission_is_an_object_and_an_execution_of_its_generation() -> None:
    google = Google()
    assert runs(google).submit("corpus/") == "r17"
    _, (_, upload, _), (_, execution, body) = google.requests
    assert upload.endswith(f"/b/{RAW}/o")
    assert execution.endswith("/workflows/tpu-pipeline/executions")
    assert json.loads(body["argument"])["data"] == {
        "bucket": RAW, "name": "corpus/_SUBMIT", "generation": "17",
    }  # fmt: skip


def test_a_retry_is_the_same_submission_with_the_next_number() -> None:
    google = Google()
    runs(google).retry({**RUN, "outcome": "failed", "retry": 1})
    (_, _, body) = google.requests[-1]
    argument = json.loads(body["argument"])
    assert (argument["retry"], argument["data"]["generation"]) == (2, "17")
    assert argument["data"]["name"] == "corpus/_SUBMIT"


def test_only_training_that_was_ended_is_started_under_another_name() -> None:
    google = Google()

    def restart(**known: Any) -> int:
        runs(google).retry({**RUN, **known})
        return int(json.loads(google.requests[-1][2]["argument"])["restart"])

    assert restart(outcome="quota") == 0
    assert restart(outcome="training_failed") == 1
    assert restart(outcome="training_failed", restart=1) == 2
    assert restart(outcome="train_hours", restart=1) == 2
    assert restart(outcome="throttled", restart=2) == 2


@pytest.mark.parametrize(("run", "message"), [
    (RUN, "r17 is running"),
    ({**RUN, "outcome": "trained"}, "r17 has ended well"),
    ({**RUN, "outcome": "shards"}, "r17 has ended well"),
])  # fmt: skip
def test_what_runs_or_has_ended_well_is_not_tried_again(run: dict[str, Any], message: str) -> None:
    google = Google()
    with pytest.raises(CommandError, match=message):
        runs(google).refuse_retry(run)
    assert not [method for method, _, _ in google.requests if method == "POST"]


@pytest.mark.parametrize("execution", [{"state": "FAILED"}, None])
def test_a_run_whose_workflow_died_or_is_forgotten_can_be_tried_again(
    execution: dict[str, Any] | None,
) -> None:
    google = Google()
    google.execution = execution
    runs(google).refuse_retry(RUN)
    runs(google).retry(RUN)
    assert google.requests[-1][0] == "POST"


def test_the_batch_that_a_run_waits_for_is_looked_at_and_no_other() -> None:
    google = Google()
    assert runs(google).batch(RUN) == "PENDING since 2026-11-24T10:01:00Z"
    google.batch = None
    assert runs(google).batch(RUN) == "not there yet"
    requested = len(google.requests)
    for other in ({"outcome": "failed"}, {"stage": "check"}, {"batch": None}):
        assert runs(google).batch({**RUN, **other}) == ""
    assert len(google.requests) == requested


def test_a_batch_is_cancelled_by_its_operation() -> None:
    google = Google()
    assert "its batch" in runs(google).cancel(RUN)
    assert google.requests[-1][:2] == (
        "POST", "https://dataproc.googleapis.com/v1/projects/p/regions/us-east5/operations/o:cancel"
    )  # fmt: skip


def test_training_is_left_when_its_workflow_is_cancelled_and_is_named() -> None:
    google = Google()
    training = {"stage": "train", "training": "slice r17", "ended_by": "tpu fleet delete dev --slice r17"}
    ended = runs(google).cancel({**RUN, **training})
    assert ended == (
        "its workflow; its training continues: slice r17\n"
        "    to end that too: tpu fleet delete dev --slice r17"
    )
    (_, cancelled, _), (_, _, record) = google.requests
    assert cancelled.endswith("/executions/e-1:cancel")
    assert json.loads(record)["outcome"] == "cancelled"
    assert google.written == ["pipeline/r17/run.json"]


def test_a_run_that_has_no_batch_yet_is_cancelled_by_its_workflow() -> None:
    google = Google()
    assert runs(google).cancel({**RUN, "batch": None}) == "its workflow"
    assert google.requests[0][1].endswith("/executions/e-1:cancel")
    assert google.written == ["pipeline/r17/run.json"]


@pytest.mark.parametrize(("state", "outcome"), [("CANCELLED", "cancelled"), ("FAILED", "cancelled")])
def test_a_cancellation_whose_answer_was_lost_is_recorded(state: str, outcome: str) -> None:
    google = Google(RUN, state=state)
    google.lost = ":cancel"
    assert runs(google).cancel({**RUN, "batch": None}) == "its workflow"
    assert json.loads(google.requests[-1][2])["outcome"] == outcome


def test_a_run_that_ends_at_the_moment_of_its_cancellation_keeps_its_outcome() -> None:
    google = Google({**RUN, "outcome": "trained"}, state="SUCCEEDED")
    google.lost = ":cancel"
    with pytest.raises(CommandError, match="r17 has ended: trained"):
        runs(google).cancel({**RUN, "batch": None})
    assert google.written == []


def test_what_isnt_cancelled_is_said() -> None:
    google = Google(RUN)
    google.lost = ":cancel"
    with pytest.raises(RequestError, match="try again"):
        runs(google).cancel({**RUN, "batch": None})
    assert google.written == []


def test_what_has_ended_is_not_cancelled() -> None:
    with pytest.raises(CommandError, match="has ended: failed"):
        runs(Google()).cancel({**RUN, "outcome": "failed"})


def test_runs_are_listed_the_newest_first() -> None:
    later = {**RUN, "run": "r18", "began": "2026-11-25T10:00:00Z"}
    assert [item["run"] for item in runs(Google(RUN, later)).all()] == ["r18", "r17"]


def execution(number: int, argument: Any, state: str = "FAILED", payload: Any = None) -> dict[str, Any]:
    """As the API lists one."""
    return {
        "name": f"projects/p/locations/us-east5/workflows/tpu-pipeline/executions/e-{number}",
        "startTime": f"2026-11-24T10:0{number}:00Z", "state": state, "argument": json.dumps(argument),
        **({"error": {"payload": json.dumps(payload)}} if payload else {}),
    }  # fmt: skip


EVENT = {"data": {"bucket": RAW, "name": "corpus/_SUBMIT", "generation": "17"}}
REFUSED = {
    "code": 403,
    "body": {"error": {"message": "tpu-pipeline-run@p does not have storage.objects.create access"}},
    "at": f" (gs://{BUCKET}/pipeline/r17/run.json)",
}


def test_a_run_that_may_not_write_its_record_is_shown_with_the_role() -> None:
    google = Google()
    google.executions = [execution(1, EVENT, payload=REFUSED)]
    for result in (runs(google).named("r17"), *runs(google).unrecorded([])):
        assert (result["run"], result["outcome"], result["raw"]) == (
            "r17",
            "permission",
            f"gs://{RAW}/corpus/",
        )
        assert result["next"] == "tpu pipeline retry dev r17"
        needs = f"roles/storage.objectUser on the bucket {BUCKET}, below pipeline/, for tpu-pipeline-run"
        assert runs(google).why(result).endswith(f"; it needs {needs}")


ENDED = {"execution": "e-1", "ended": "2026-11-24T10:01:30Z"}


@pytest.mark.parametrize(("record", "executions", "shown"), [
    ({}, [execution(1, EVENT, payload=REFUSED)], ["r17"]),
    ({}, [execution(1, EVENT, payload=REFUSED), execution(2, EVENT, "ACTIVE")], []),
    (ENDED, [execution(1, EVENT, payload="failed at train")], []),
    (ENDED, [execution(2, EVENT, payload=REFUSED)], ["r17"]),
    ({**ENDED, "execution": "e-3"}, [execution(1, EVENT, payload=REFUSED)], []),
    ({"execution": "e-1"}, [execution(1, EVENT, payload="out of memory")], []),
    ({}, [execution(1, EVENT, "CANCELLED")], []),
    ({"execution": "e-3"}, [execution(0, {"sweep": True}, payload=REFUSED)], ["sweep"]),
    ({"execution": "e-3"}, [execution(0, {"sweep": True}, payload=REFUSED),
                            execution(1, {"sweep": True}, "SUCCEEDED")], []),
])  # fmt: skip
def test_what_failed_is_shown_where_no_record_has_it(
    record: dict[str, Any], executions: list[dict[str, Any]], shown: list[str]
) -> None:
    google = Google()
    google.executions = executions
    known = [{**RUN, **record}] if record else []
    assert [item["run"] for item in runs(google).unrecorded(known) if item["outcome"] != "waiting"] == shown


def test_an_execution_that_somebody_started_with_something_else_is_no_run() -> None:
    google = Google()
    google.executions = [
        {**execution(number, None), "argument": text} for number, text in enumerate(("{", "[]", "7", "{}"))
    ]
    assert [item for item in runs(google).unrecorded([]) if item["outcome"] != "waiting"] == []


def test_who_may_not_list_the_raw_bucket_sees_all_but_submissions() -> None:
    google = Google()
    google.executions = [execution(1, EVENT, payload=REFUSED)]
    google.unlisted = RequestError(classify("Permission 'storage.objects.list' denied on resource", 403))
    assert [item["outcome"] for item in runs(google).unrecorded([])] == ["permission"]
    google.unlisted = RequestError(classify("try again", 503))
    with pytest.raises(RequestError, match="try again"):
        runs(google).unrecorded([])


def test_a_run_whose_workflow_died_says_why() -> None:
    google = Google()
    google.execution = {"state": "FAILED", "error": {"payload": "memory limit exceeded"}}
    assert runs(google).why(RUN) == "memory limit exceeded"
    assert runs(google).why({**RUN, "outcome": "failed", "why": "its own"}) == "its own"


def test_what_nothing_has_started_waits_and_names_the_roles_that_start_it() -> None:
    (result,) = runs(Google()).unrecorded([])
    assert (result["run"], result["outcome"], result["raw"]) == ("r17", "waiting", f"gs://{RAW}/corpus/")
    why = runs(Google()).why(result)
    for role in ("roles/workflows.invoker", "roles/eventarc.eventReceiver"):
        assert f"{role} for tpu-pipeline-trigger" in why
    assert runs(Google()).unrecorded([RUN]) == []


def test_a_person_who_may_not_start_runs_learns_which_role_and_who_grants_it() -> None:
    google = Google()
    google.refused = "POST https://workflowexecutions"
    with pytest.raises(
        CommandError, match=r"fix: roles/workflows.invoker \(pipeline:runners\) on the project"
    ):
        runs(google).retry({**RUN, "outcome": "failed"})


def test_who_lacks_a_role_is_told_of_the_lists_that_grant_it_and_of_no_other() -> None:
    google = Google()
    google.refused, google.lacks = "GET https://dataproc", "dataproc.batches.get"
    with pytest.raises(
        CommandError, match=r"fix: roles/dataproc.serverlessEditor \(pipeline:runners\) on the project, then"
    ):
        runs(google).cancel(RUN)
    with pytest.raises(CommandError, match=r"serverlessViewer \(pipeline:viewers\) or roles/.*Editor"):
        runs(google).batch(RUN)
    google.refused, google.lacks = "POST https://logging", "logging.logEntries.list"
    with pytest.raises(
        CommandError, match=r"\(pipeline:viewers\) or roles/logging.viewer \(pipeline:runners\)"
    ):
        list(runs(google).logs(RUN))
    google.unlisted = RequestError(classify("Permission 'storage.objects.list' denied on resource", 403))
    with pytest.raises(
        CommandError, match=rf"fix: roles/storage.objectUser \(pipeline:runners\) on the bucket {RAW}, then"
    ):
        runs(google).measure(f"gs://{RAW}/corpus/")


@pytest.mark.parametrize("name", ["r99", "../secret", "17", ""])
def test_a_run_that_there_isnt_is_an_error(name: str) -> None:
    with pytest.raises(CommandError, match="no run"):
        runs(Google(RUN)).named(name)


def test_lines_of_a_batch_are_read_whatever_their_payload() -> None:
    google = Google()
    google.entries = [{"textPayload": "one"}, {"jsonPayload": {"message": "two"}}, {"jsonPayload": {"a": 3}}]
    assert list(runs(google).logs(RUN)) == ["one", "two", '{"a": 3}']


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"run": "r18"}, "is of r18"), ({"execution": "../../x"}, "execution = '../../x': must be"),
        ({"began": None}, "lacks began"), ({"predicted_usd": "²"}, "predicted_usd = '\\xb2': must be"),
        ({"tokens": []}, "tokens = list: must be"), ({"batch": 'x" OR "'}, "batch = "),
        ({"why": {"a": 1}}, "why = dict: must be"), ({"retry": 10**400}, "retry = int: must be"),
    ],
)  # fmt: skip
def test_a_record_out_of_its_schema_hides_no_other(changed: dict[str, Any], why: str) -> None:
    google = Google(RUN, {**RUN, "run": "r9"})
    google.records["pipeline/r17/run.json"] = {**RUN, **changed}
    known = runs(google)
    assert [run["run"] for run in known.all()] == ["r9"]
    ((name, reason),) = known.unread.items()
    assert name == "pipeline/r17/run.json"
    assert reason.startswith(why)
    with pytest.raises(CommandError, match=rf"gs://{BUCKET}/pipeline/r17/run.json: .*\n    fix: "):
        known.named("r17")


def test_a_record_of_no_use_for_its_size_isnt_read() -> None:
    google = Google(RUN)
    google.items = lambda *_: iter([{"name": "pipeline/r17/run.json", "size": str(5 << 30)}])  # type: ignore[method-assign]
    known = runs(google)
    assert known.all() == []
    assert list(known.unread.values()) == ["has more than 1048576 bytes"]


@EXAMPLES
def test_no_record_ends_what_lists_runs(
    examples: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {
        **RUN, "objects": 1, "bytes": 5, "training": "slice r17", "ended": "2026-11-24T11:00:00Z",
        "predicted_usd": 1.0, "why": "", "next": "", "restart": 0, "spark_usd": None,
        "tokens": {"shards": 2, "tokens": 1000, "manifest": "cd", "inputs": "ef"},
    }  # fmt: skip
    google, known = Google(), settings()
    monkeypatch.setattr(pipeline, "Client", lambda _: google)
    monkeypatch.setattr(pipeline, "from_file", lambda _: known)

    def check(raw: bytes) -> None:
        google.records["pipeline/r17/run.json"] = raw
        for line in ("status dev", "cost dev", "status dev r17", "status dev --json"):
            with suppress(CommandError):
                call(pipeline.pipeline, line.split())
        capsys.readouterr()

    fuzz(examples, contents(good), check)


def test_a_role_is_named_once() -> None:
    text = "Permission 'dataproc.batches.create' denied"
    lacks = missing(settings(), text)
    assert "tpu_pipeline_run_batches" in lacks
    assert missing(settings(), text + lacks) == ""
