"""The workflow's definition, executed: one execution for each outcome, against a Google of a page."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from infra.layers.pipeline.program import settings_of_runs
from infra.settings.sources import ROOT
from rehearsal.cloud.services.workflows.engine import HttpRequest, Interpreter, Raised, Reply, parse
from rehearsal.cloud.services.workflows.engine.values import error
from tests.infra.layers.pipeline.test_pipeline_layer import FLEET, settings

PROGRAM = parse((ROOT / "infra/layers/pipeline/workflow.yaml").read_text())
RAW, BUCKET, SETTINGS = "my-project-raw", "my-project-checkpoints", "pipeline/settings/0.json"
EVENT = {"data": {"bucket": RAW, "name": "corpus/_SUBMIT", "generation": "17"}}
READY = {"ok": True, "manifest": "ab" * 32, "documents": 3, "tokens": 1000, "shards": 2, "bytes": 2000}
BATCH, CONTENT = "tpu-pipeline-r17", "0123456789abcdef"
SPARK = "tpu-pipeline-spark"


@dataclass
class Google:
    """`states`: what a batch says, one look after the other; `refusals`: answers by a part of the URL."""

    states: list[str] = field(default_factory=lambda: ["PENDING", "RUNNING", "SUCCEEDED"])
    message: str = ""
    ready: bool = True
    refusals: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    checked: dict[str, Any] = field(default_factory=lambda: dict(READY))
    heartbeats: list[dict[str, Any]] = field(default_factory=lambda: [{"state": "done"}])
    train: bool = True
    silent_looks: int = 2
    given: dict[str, Any] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    batches: dict[str, Any] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)
    asked_for: set[str] = field(default_factory=set)
    unreachable: str = ""
    silence: type[Exception] = ConnectionError
    started: list[Any] = field(default_factory=list)
    lines: list[tuple[str, Any]] = field(default_factory=list)
    may_log: bool = True
    busy_lines: int = 0
    pages: list[tuple[int, bytes]] = field(default_factory=list)
    passed_s: float = 0.0

    def __post_init__(self) -> None:
        more = {k.replace(":", "__"): v for k, v in FLEET.items()} if self.train else {}
        known = settings_of_runs(settings(**more, **self.given), "0123abc", "")
        self.objects[f"{BUCKET}/{SETTINGS}"] = {**known, "function": "https://check.run.app"}
        self.known = known
        self.raw = {"corpus/_SUBMIT": 0, "corpus/a.jsonl": 1 << 30, "other/b.jsonl": 1 << 40}
        self.environment: Mapping[str, str] = {
            "BUCKET": BUCKET, "SETTINGS": SETTINGS, "GOOGLE_CLOUD_WORKFLOW_EXECUTION_ID": "e-1",
            "GOOGLE_CLOUD_WORKFLOW_ID": "tpu-pipeline",
        }  # fmt: skip

    def now(self) -> float:
        return 1_764_000_000 + self.passed_s

    async def sleep(self, seconds: float) -> None:
        self.passed_s += seconds

    async def log(self, severity: str, payload: Any) -> None:
        if not self.may_log:
            raise error("SystemError", "Permission 'logging.logEntries.create' denied on resource", code=403)
        if self.busy_lines:
            self.busy_lines -= 1
            raise error("SystemError", "try again", code=503)
        self.lines.append((severity, payload))

    async def send(self, request: HttpRequest) -> Reply:
        checks = request.url.startswith("https://check.run.app")
        assert request.auth == ("OIDC" if checks else "OAuth2")
        assert not checks or (request.audience, request.timeout_s) == ("https://check.run.app", 1800)
        if self.pages and checks:
            code, page = self.pages.pop(0)
            return Reply(code, {"Content-Type": "text/html"}, page)

        if self.unreachable and self.unreachable in request.url:
            raise self.silence("no answer")
        for part, answers in self.refusals.items():
            if part in f"{request.method} {request.url}" and answers:
                code, text = answers.pop(0)
                return self._reply(code, {"error": {"code": code, "message": text}})
        code, body = self._answer(request, json.loads(request.body) if request.body else None)
        return self._reply(code, body)

    @staticmethod
    def _reply(code: int, body: Any) -> Reply:
        return Reply(code, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _answer(self, request: HttpRequest, body: Any) -> tuple[int, Any]:
        url = urlsplit(request.url)
        query = {key: value[0] for key, value in parse_qs(url.query).items()}
        if url.hostname == "storage.googleapis.com":
            return self._storage(request.method, url.path, query, body)
        if url.hostname == "dataproc.googleapis.com":
            return self._dataproc(request.method, url.path, query, body)
        if url.hostname == "tpu.googleapis.com":
            name = query.get("nodeId") or url.path.rpartition("/")[2]
            if request.method == "POST":
                if name in self.nodes:
                    return 409, {"error": {"message": "already exists"}}
                self.nodes.add(name)
                self.created = body
            elif name not in self.nodes:
                return 404, {}
            else:
                self.nodes.discard(name)
            return 200, {}
        if url.hostname == "check.run.app":
            return 200, self.checked
        assert url.hostname == "workflowexecutions.googleapis.com"
        self.started.append(json.loads(body["argument"]))
        return 200, {}

    def _storage(self, method: str, path: str, query: Mapping[str, str], body: Any) -> tuple[int, Any]:
        bucket, _, name = path.partition("/b/")[2].partition("/o")
        if method == "POST":
            key = f"{bucket}/{query['name']}"
            if query.get("ifGenerationMatch") == "0" and key in self.objects:
                return 412, {"error": {"message": "conditionNotMet"}}
            self.objects[key] = body
            return 200, {}
        if not name and bucket == BUCKET:
            assert query["matchGlob"] == "tokens/r17/*/_READY"
            ready = sorted((key, item["updated"]) for key, item in self.objects.items() if "_READY" in key)
            items = [{"name": key.partition("/")[2], "updated": updated} for key, updated in ready]
            return 200, {"items": items}
        if not name:
            names = [item for item in self.raw if item.startswith(query.get("prefix", ""))]
            if "matchGlob" in query:
                names = [name for name in names if name.endswith("_SUBMIT")]
            at = int(query.get("pageToken") or 0)  # a page is one item
            items = [
                {
                    "bucket": RAW, "name": name, "size": str(self.raw[name]),
                    "generation": "17" if name.startswith("corpus/") else "18",
                }
                for name in names[at : at + 1]
            ]  # fmt: skip
            more = {"nextPageToken": str(at + 1)} if names[at + 1 :] else {}
            return 200, {"items": items, **more} if items else {}
        key = f"{bucket}/{unquote(name[1:])}"
        if key.startswith(f"{BUCKET}/heartbeats/") and self.nodes:
            self.asked_for.add(key.split("/")[2])
            if self.silent_looks:
                self.silent_looks -= 1
                return 404, {"error": {"message": "No such object"}}
            return 200, self.heartbeats.pop(0) if len(self.heartbeats) > 1 else self.heartbeats[0]
        if method == "DELETE":
            return (200, {}) if self.objects.pop(key, None) else (404, {})
        result = self.objects.get(key)
        return (404, {"error": {"message": "No such object"}}) if result is None else (200, result)

    def _dataproc(self, method: str, path: str, query: Mapping[str, str], body: Any) -> tuple[int, Any]:
        if method == "POST":
            if query["batchId"] in self.batches:
                return 409, {"error": {"message": "already exists"}}
            assert query["requestId"] == query["batchId"], "a second request is the same one"
            self.batches[query["batchId"]] = body
            return 200, {}
        batch = self.batches[path.rpartition("/")[2]]
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state == "SUCCEEDED" and self.ready:
            self.objects[f"{BUCKET}/tokens/r17/{CONTENT}/_READY"] = {"updated": "2026-11-24T10:00:00Z"}
        usage = {"milliDcuSeconds": "3600000", "shuffleStorageGbSeconds": "360000"}
        answer = {"state": state, "stateMessage": self.message, "labels": batch["labels"]}
        return 200, {**answer, "runtimeInfo": {"approximateUsage": usage}}

    @property
    def record(self) -> dict[str, Any]:
        result: dict[str, Any] = self.objects[f"{BUCKET}/pipeline/r17/run.json"]
        return result


def run(google: Google, event: Any = None) -> Any:
    return asyncio.run(Interpreter(PROGRAM, google).run(event or EVENT))


def failed(google: Google, event: Any = None) -> dict[str, Any]:
    """Return the record of a run that fails."""
    with pytest.raises(Raised):
        run(google, event)
    severity, line = google.lines[-1]
    assert severity == "ERROR"
    assert (line["run"], line["outcome"]) == ("r17", google.record["outcome"])
    return google.record


def test_text_becomes_shards_and_a_training_job() -> None:
    google = Google()
    assert run(google)["outcome"] == "trained"
    assert list(google.batches) == [BATCH]
    arguments = google.batches[BATCH]["pysparkBatch"]["args"]
    assert f"input.sources=gs://{RAW}/corpus/" in arguments
    assert f"output.url=gs://{BUCKET}/tokens/r17" in arguments
    record = google.record
    assert record["tokens"] == READY
    assert record["folder"] == f"tokens/r17/{CONTENT}"
    assert f"data.path=/mnt/checkpoints/tokens/r17/{CONTENT}" in google.created["metadata"]["tpu-run"]
    assert (record["objects"], record["bytes"], record["execution"]) == (1, 1 << 30, "e-1")
    assert record["training"] == "slice r17 (v6e-8, us-east5-b)"
    assert record["spark_usd"] == pytest.approx(0.06 + 100 * 0.000054795)
    known = google.known["price"]
    trained_h = (google.now() - record["training_began_s"]) / 3600
    assert record["training_usd"] == pytest.approx(trained_h * known["training_hour_usd"])
    assert record["training_usd"] > 0
    assert record["actual_usd"] == pytest.approx(record["spark_usd"] + record["training_usd"])
    assert record["predicted_usd"] == pytest.approx(known["start_usd"] + known["usd_per_gib"])
    assert (record["most_usd"], record["code"]) == (known["most_usd"], google.known["code"])
    assert google.nodes == set(), "its slice is deleted"
    assert not [key for key in google.objects if "/fleets/" in key]
    assert google.lines[-1][0] == "INFO"


def test_without_training_it_ends_with_the_shards() -> None:
    google = Google(train=False)
    assert run(google)["outcome"] == "shards"
    assert google.nodes == set()


def test_an_unknown_price_stays_unknown() -> None:
    google = Google(given={"pipeline__tier": "premium"})
    assert run(google)["outcome"] == "trained"
    assert not {"spark_usd", "predicted_usd"} & google.record.keys()
    assert google.record["training_usd"] >= 0


def test_a_duplicate_event_starts_nothing() -> None:
    google = Google()
    run(google)
    before = dict(google.record)
    google.environment = {**google.environment, "GOOGLE_CLOUD_WORKFLOW_EXECUTION_ID": "e-2"}
    assert run(google)["outcome"] == "duplicate"
    assert (len(google.batches), google.record) == (1, before)


@pytest.mark.parametrize("event", [
    {"data": {"bucket": RAW, "name": "corpus/a.jsonl", "generation": "17"}},
    {"data": {"bucket": RAW, "name": "corpus/NO_SUBMIT_", "generation": "17"}},
    {"data": {"bucket": RAW, "name": "corpus/NO_SUBMIT", "generation": "17"}},
    {"data": {"bucket": "another", "name": "corpus/_SUBMIT", "generation": "17"}},
])  # fmt: skip
def test_other_objects_are_ignored(event: Any) -> None:
    google = Google()
    assert run(google, event)["outcome"] == "ignored"
    assert google.batches == {}


@pytest.mark.parametrize(("states", "message", "outcome", "after"), [
    (["FAILED"], "the job ended with status 1", "failed", "tpu pipeline logs dev r17"),
    (["FAILED"], "Insufficient 'CPUS' quota", "quota", "tpu pipeline retry dev r17"),
    (["RUNNING", "CANCELLED"], "", "cancelled", "tpu pipeline retry dev r17"),
    ([*["RUNNING"] * 481, "CANCELLED"], "", "ttl", "tpu pipeline retry dev r17"),
])  # fmt: skip
def test_how_a_batch_ends(states: list[str], message: str, outcome: str, after: str) -> None:
    record = failed(Google(states=states, message=message))
    assert (record["stage"], record["outcome"], record["next"]) == ("preprocess", outcome, after)
    assert message in record["why"]


@pytest.mark.parametrize(("role", "lacks", "more"), [
    ("roles/dataproc.worker", "roles/dataproc.worker on the project",
     " Permission 'storage.objects.get' denied on resource (or it may not exist)."),
    ("roles/dataproc.serverlessNode", f"roles/storage.objectViewer on the bucket {RAW}", ""),
])  # fmt: skip
def test_a_batch_that_was_refused_an_object_names_the_role(role: str, lacks: str, more: str) -> None:
    message = (
        f"could not fetch gs://{RAW}/corpus/a.jsonl: 403 {SPARK}@my-project.iam.gserviceaccount.com does not "
        f"have storage.objects.get access to the Google Cloud Storage object.{more}"
    )
    record = failed(Google(states=["FAILED"], message=message, given={"pipeline__sparkRole": role}))
    assert record["outcome"] == "permission"
    assert record["why"] == f"{message}; it needs {lacks} for {SPARK}"


def test_a_batch_whose_account_lacks_a_right_names_the_role() -> None:
    message = f"{SPARK}@my-project.iam.gserviceaccount.com lacks dataproc.tasks.lease"
    record = failed(Google(states=["FAILED"], message=message))
    assert record["outcome"] == "permission"
    assert record["why"] == f"{message}; it needs roles/dataproc.worker on the project for {SPARK}"


@pytest.mark.parametrize(("code", "message", "outcome"), [
    (403, "Permission 'dataproc.batches.create' denied on resource", "permission"),
    (403, "Quota exceeded for quota metric", "quota"),
    (429, "Quota exceeded for create requests per minute", "quota"),
    (429, "Too many requests", "throttled"),
    (400, "Insufficient 'CPUS' quota. Requested 12.0, available 8.0", "quota"),
    (400, "Subnetwork does not support Private Google Access", "refused"),
    (400, f"User not authorized to act as service account '{SPARK}@my-project.iam.gserviceaccount.com'.",
     "permission"),
    (401, "Request had invalid authentication credentials", "permission"),
    (500, "internal", "unavailable"),
    (503, "try again", "unavailable"),
])  # fmt: skip
def test_why_no_batch_was_created(code: int, message: str, outcome: str) -> None:
    google = Google(refusals={"POST https://dataproc": [(code, message)] * 20})
    record = failed(google)
    assert (record["stage"], record["outcome"]) == ("preprocess", outcome)
    assert message in record["why"]
    if code == 403 and outcome == "permission":
        assert "it needs the role tpu_pipeline_run_batches on the project" in record["why"]
    if "act as" in message:
        assert f"it needs roles/iam.serviceAccountUser on the account {SPARK}" in record["why"]
    assert record["next"] == "tpu pipeline retry dev r17"
    assert google.batches == {}
    assert google.nodes == set()


def test_a_lost_answer_finds_its_own_batch_and_slice() -> None:
    google = Google(refusals={"GET https://dataproc": [(503, "try again")]})
    labels = {"environment": "dev", "layer": "pipeline", "goog-dataproc-batch-id": BATCH}  # one is Google's
    google.batches[BATCH] = {"pysparkBatch": {"args": []}, "labels": labels}
    google.nodes.add("r17")
    assert run(google)["outcome"] == "trained"
    assert list(google.batches) == [BATCH]


def test_short_refusals_are_overcome() -> None:
    parts = ("POST https://dataproc", "GET https://dataproc", "POST https://tpu", "DELETE https://tpu",
             "POST https://check", "heartbeats", "POST https://storage", "_READY",
             "prefix=corpus")  # fmt: skip
    google = Google(refusals={part: [(503, "try again"), (429, "slowly")] for part in parts}, busy_lines=2)
    assert run(google)["outcome"] == "trained"
    assert google.refusals == {part: [] for part in parts}, "the faults happened"
    assert google.busy_lines == 0


def test_a_batch_that_is_being_changed_is_a_conflict() -> None:
    record = failed(Google(refusals={"GET https://dataproc": [(409, "is being changed")]}))
    assert (record["outcome"], record["next"]) == ("conflict", "tpu pipeline retry dev r17")


def test_a_batch_that_left_no_shards_has_failed() -> None:
    record = failed(Google(ready=False))
    assert (record["stage"], record["outcome"]) == ("preprocess", "failed")
    assert record["why"] == "the batch succeeded, and no shards are ready"


def test_of_several_complete_folders_the_newest_is_trained_and_no_batch_is_made() -> None:
    google = Google()
    for name, day in (("0" * 16, 22), ("1" * 16, 24), ("2" * 16, 23)):
        google.objects[f"{BUCKET}/tokens/r17/{name}/_READY"] = {"updated": f"2026-11-{day}T10:00:00Z"}
    assert run(google)["folder"] == f"tokens/r17/{'1' * 16}"
    assert google.batches == {}


def test_shards_that_are_not_complete_train_nothing() -> None:
    google = Google(checked={"ok": False, "why": "gs://b/tokens/r17/0.bin is missing"})
    record = failed(google)
    assert (record["stage"], record["outcome"]) == ("check", "invalid")
    assert record["why"] == "gs://b/tokens/r17/0.bin is missing"
    assert google.nodes == set()


@pytest.mark.parametrize("code", [401, 403])
def test_a_page_that_refuses_the_check_names_the_invokers_role(code: int) -> None:
    page = b"<html><h2>Your client does not have permission to get URL <code>/</code></h2></html>"
    record = failed(Google(pages=[(code, page)]))
    assert (record["stage"], record["outcome"]) == ("check", "permission")
    assert record["why"] == (
        "Permission 'run.routes.invoke' denied on https://check.run.app; it needs roles/run.invoker on the "
        "function for tpu-pipeline-run"
    )


@pytest.mark.parametrize(("part", "at", "role"), [
    (f"GET https://storage.googleapis.com/storage/v1/b/{RAW}/o", f"gs://{RAW}/corpus/",
     f"roles/storage.objectViewer on the bucket {RAW} for"),
    (f"{BUCKET}/o/heartbeats", "heartbeats%2Fr17%2Fworker-0",
     f"roles/storage.objectViewer on the bucket {BUCKET}, below heartbeats/, for"),
    (f"b/{BUCKET}-fleet/o", f"/b/{BUCKET}-fleet/o",
     f"roles/storage.objectUser on the bucket {BUCKET}-fleet for"),
])  # fmt: skip
def test_a_refusal_that_names_no_bucket_is_told_apart_by_what_was_asked(
    part: str, at: str, role: str
) -> None:
    permission = f"storage.objects.{'list' if RAW in part else 'get' if 'heart' in part else 'create'}"
    message = (
        f"tpu-pipeline-run@my-project.iam.gserviceaccount.com does not have {permission} access to the "
        f"Google Cloud Storage object. Permission '{permission}' denied on resource (or it may not exist)."
    )
    record = failed(Google(refusals={part: [(403, message)]}))
    assert record["outcome"] == "permission"
    assert message in record["why"]
    assert at in record["why"]
    assert record["why"].endswith(f"; it needs {role} tpu-pipeline-run")


def test_a_run_whose_lines_are_refused_starts_nothing_and_its_record_says_why() -> None:
    google = Google(may_log=False)
    with pytest.raises(Raised):
        run(google)
    assert google.batches == {}
    assert (google.record["outcome"], google.record["stage"]) == ("permission", "preprocess")
    assert google.record["why"].endswith(
        "; it needs roles/logging.logWriter on the project for tpu-pipeline-run"
    )


@pytest.mark.parametrize("silence", [ConnectionError, TimeoutError])
@pytest.mark.parametrize(("host", "stage"), [("dataproc.", "preprocess"), ("check.run.app", "check")])
def test_who_does_not_answer_is_unavailable(host: str, stage: str, silence: type[Exception]) -> None:
    google = Google(unreachable=host, silence=silence)
    record = failed(google)
    assert (record["stage"], record["outcome"]) == (stage, "unavailable")
    assert record["next"] == "tpu pipeline retry dev r17"
    assert "HTTP request" in record["why"]
    google.unreachable = ""
    assert run(google, {**EVENT, "retry": 1})["outcome"] == "trained"
    assert len(google.batches) == 1


def test_nothing_submitted_is_an_outcome() -> None:
    google = Google()
    google.raw = {"corpus/_SUBMIT": 0, "corpus/a.jsonl": 0}
    record = failed(google)
    assert (record["outcome"], record["next"]) == ("empty", f"tpu pipeline run dev gs://{RAW}/corpus/")
    assert google.batches == {}


def test_without_code_no_batch_is_created() -> None:
    google = Google()
    google.objects[f"{BUCKET}/{SETTINGS}"]["code"] = None
    record = failed(google)
    assert (record["outcome"], record["next"]) == ("refused", "tpu pipeline publish dev")
    assert google.batches == {}


def test_more_than_allowed_is_refused_before_a_batch() -> None:
    google = Google(train=False, given={"pipeline__maxRunCostUsd": 100})
    known = google.known["price"]
    allowed = (100 - known["start_usd"]) / known["usd_per_gib"] * (1 << 30)
    google.raw["corpus/a.jsonl"] = int(0.99 * allowed)
    assert run(google)["outcome"] == "shards"
    google = Google(train=False, given={"pipeline__maxRunCostUsd": 100})
    google.raw["corpus/a.jsonl"] = int(1.01 * allowed)
    record = failed(google)
    assert record["outcome"] == "too_dear"
    assert record["next"] == "tpu pipeline retry dev r17"
    assert re.search(r"predicted: \$\d+.*allows \$100", record["why"])
    assert google.batches == {}


@pytest.mark.parametrize("labels", [
    {}, {"environment": "prod", "layer": "pipeline"}, {"environment": "dev", "layer": "other"},
])  # fmt: skip
def test_a_batch_of_somebody_elses_by_the_name_is_a_conflict_and_a_retry_has_another(labels: Any) -> None:
    google = Google(train=False)
    google.batches[BATCH] = {"labels": labels}
    record = failed(google)
    assert (record["stage"], record["outcome"]) == ("preprocess", "conflict")
    assert record["why"] == f"a batch {BATCH} is there already, and isn't the pipeline's"
    assert record["next"] == "tpu pipeline retry dev r17"
    assert run(google, {**EVENT, "retry": 1})["batch"] == f"{BATCH}-1"


def test_no_chips_is_an_outcome_and_a_retry_makes_no_second_batch() -> None:
    google = Google(refusals={"POST https://tpu": [(429, "Quota 'TPUV6EPerProject' exceeded")] * 20})
    record = failed(google)
    assert (record["stage"], record["outcome"]) == ("train", "quota")
    google.refusals.clear()
    again = run(google, {**EVENT, "retry": 1})
    assert again["outcome"] == "trained"
    assert list(google.batches) == [BATCH]


def test_a_retry_of_a_failed_batch_makes_another_one() -> None:
    google = Google(states=["FAILED"], message="out of memory")
    failed(google)
    google.states = ["SUCCEEDED"]
    assert run(google, {**EVENT, "retry": 1})["outcome"] == "trained"
    assert list(google.batches) == [BATCH, f"{BATCH}-1"]
    assert google.record["retry"] == 1


def test_what_no_event_came_for_is_started_by_the_schedule_once() -> None:
    google = Google()
    google.raw["other/_SUBMIT"] = 0
    swept = run(google, {"sweep": True})
    assert (swept["outcome"], swept["started"]) == ("swept", ["corpus/_SUBMIT", "other/_SUBMIT"])
    argument, second = google.started
    assert run(google, argument)["outcome"] == "trained"
    assert run(google, {"sweep": True})["started"] == ["other/_SUBMIT"]
    assert google.started == [argument, second, second]
    google.refusals = {"pipeline%2Fr17%2Frun.json": [(403, "may not read")]}
    with pytest.raises(Raised):
        run(google, {"sweep": True})
    assert len(google.started) == 3
