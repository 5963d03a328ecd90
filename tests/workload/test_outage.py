"""A storage that answers nobody for a while: training continues, and the next save holds all of it."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gcsfs.retry  # type: ignore[import-untyped]
import numpy as np
import pytest
import requests
from aiohttp import web
from google.api_core import exceptions as google
from google.cloud.storage.exceptions import InvalidResponse
from orbax.checkpoint._src.metadata import checkpoint as metadata  # type: ignore[import-untyped]

from tests.rehearsal.cloud.storage.storage_front import PROJECT, Front
from tests.workload.slice import SETTINGS, Workers
from workload.errors import OutageError
from workload.runs.outage import Health, transient
from workload.runs.step_log import StepLog
from workload.runs.store import FolderStore
from workload.train.checkpoints import Checkpoints
from workload.train.cluster import Cluster, Membership
from workload.train.config import CheckpointConfig
from workload.train.stored_steps import list_steps

BUCKET = "outages"
STATE = {"a": np.ones((4, 8), np.float32)}


class Failing(Front):
    """The rehearsal's storage, which answers 503 to everybody while `out` is set."""

    out = threading.Event()
    refused = 0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.out.is_set():
            self.refused += 1
            return web.Response(status=503)
        return await super()._handle(request)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Failing]:
    made = Failing(tmp_path / "storage")
    made.request("POST", "b", {"name": BUCKET}, project=PROJECT)
    yield made
    made.out.clear()
    made.close()


class Bucket:
    """Objects of a run in the bucket."""

    def __init__(self, front: Failing, run: str):
        self._front, self._run = front, f"runs/{run}/"

    def names(self, prefix: str) -> list[str]:
        listing = self._front.request("GET", f"b/{BUCKET}/o", prefix=self._run + prefix).json
        return sorted(item["name"].removeprefix(self._run) for item in listing.get("items", []))

    def events(self, kind: str) -> list[dict[str, Any]]:
        names = [name for name in self.names("events/") if name.endswith(f"-{kind}.json")]
        return [json.loads(self._front.read(BUCKET, self._run + name).body) for name in names]

    def complete(self) -> list[int]:
        names = self.names("checkpoints/")
        return sorted(int(name.split("/")[1]) for name in names if name.endswith("/commit_success.txt"))

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self._front.read(BUCKET, f"{self._run}status.json").body)
        return status


def hasty() -> None:
    """Shorten gcsfs's waits to a tenth: it gives up after 3.4 s, so an outage needn't take a minute."""
    gcsfs.retry.min = lambda *waits_s: min(waits_s) / 10


OUTAGE_S = 5.0


def start(front: Front, tokens: Path, logs: Path, run: str, workers: int, *more: str) -> Workers:
    settings = [*SETTINGS, "train.steps=1000000", "checkpoint.every_steps=100", *more]
    environment = {
        "DATA_DIR": str(tokens),
        "CHECKPOINT_BUCKET": BUCKET,
        "STORAGE_EMULATOR_HOST": front.url,
        "TENSORSTORE_GCS_HTTP_URL": front.url,
    }
    arguments = ["tiny.toml", "--name", run, *(f"--set={setting}" for setting in settings)]
    return Workers(workers, arguments, environment, logs, prepare=hasty)


@pytest.mark.prove
def test_an_outage_costs_no_step_and_a_notice_after_it_saves(
    front: Failing, tokens: Path, tmp_path: Path
) -> None:
    """Longer than orbax's client of the bucket tries by itself."""
    bucket = Bucket(front, "ridden")
    workers = start(front, tokens, tmp_path / "logs", "ridden", 2)
    try:
        workers.wait_until(lambda: len(bucket.complete()) >= 2)
        saves = len(bucket.events("save"))
        workers.wait_until(lambda: len(bucket.events("save")) > saves)
        before = bucket.status()["step"]
        front.out.set()
        workers.wait_until(lambda: front.refused > 0)
        begun = time.monotonic()
        workers.wait_until(lambda: "save-put-off" in workers.logs[0].read_text())
        workers.wait_until(lambda: time.monotonic() - begun > OUTAGE_S)
        front.out.clear()
        newest = max(bucket.complete())
        workers.wait_until(lambda: max(bucket.complete()) > newest)
        workers.wait_until(lambda: bool(bucket.events("save-put-off")))
        workers.wait_until(lambda: bucket.complete()[-1] > bucket.events("save-put-off")[-1]["step"])
        assert front.refused > 10, "hardly anybody was refused"
        trained = bucket.events("save-put-off")[0]["step"], max(bucket.complete())
        workers.send(signal.SIGTERM, [1])
        assert workers.wait() == [75, 75], workers.output()
    finally:
        workers.kill()
    assert before < trained[0] < trained[1], "training stood still"
    reason = bucket.events("save-put-off")[0]["reason"]
    assert "storage answers HTTP 503 for" in reason or "still under way" in reason
    assert any("HTTP 503" in event["reason"] for event in bucket.events("save-put-off"))
    (event,) = bucket.events("preempted")
    assert event["lost_steps"] == 0
    assert bucket.complete()[-1] == event["step"]
    assert len(bucket.events("start")) == 1
    assert not bucket.events("failed")


class Out(FolderStore):
    """A folder that plays a storage with an outage while `answer` says what it answers."""

    answer = ""

    def outage(self) -> str:
        return self.answer and f"{self.answer} for 7 s"

    def write(self, name: str, content: bytes) -> None:
        if self.answer:
            raise OutageError(f"{name}: storage answers {self.answer}")
        super().write(name, content)


def saving(store: Out, outage_s: float = 60.0, losses: Any = lambda _: None) -> tuple[Checkpoints, list[Any]]:
    output: list[Any] = []
    config = CheckpointConfig(outage_s=outage_s, timeout_s=10)

    def report(kind: str, **details: Any) -> None:
        output.append((kind, details))

    return Checkpoints(store, Cluster(Membership()), config, before_marker=losses, report=report), output


def test_a_save_in_an_outage_is_put_off_with_the_reason_and_the_next_one_holds_it(tmp_path: Path) -> None:
    store = Out(tmp_path)
    checkpoints, _ = saving(store)
    store.answer = "HTTP 503"
    assert checkpoints.save(1, STATE) == "storage answers HTTP 503 for 7 s"
    store.answer = ""
    assert checkpoints.save(2, STATE) == ""
    checkpoints.wait()
    assert list_steps(store).complete == (2,)


@pytest.mark.slow
def test_a_save_that_failed_is_told_and_the_next_one_may_succeed(tmp_path: Path) -> None:
    store = Out(tmp_path)
    refused = threading.Event()

    def losses(step: int) -> None:
        if step == 1:
            refused.set()
            raise OutageError("metrics: storage answers HTTP 503")

    checkpoints, output = saving(store, losses=losses)
    assert checkpoints.save(1, STATE) == ""
    assert checkpoints.save(2, STATE, patience_s=0) == "the save of step 1 is still under way"
    assert checkpoints.save_surely(2, STATE)
    assert refused.is_set()
    assert output == [("save-failed", {"step": 1, "reason": "metrics: storage answers HTTP 503"})]
    assert list_steps(store).complete == (2,)


@pytest.mark.slow
def test_a_save_is_not_blamed_for_what_the_one_before_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orbax writes a checkpoint's own metadata beside its arrays; in an outage both fail."""
    store, failing = Out(tmp_path), [True]

    def losses(_: int) -> None:
        if failing[0]:
            raise OutageError("metrics: storage answers HTTP 503")

    write = metadata._MetadataStoreImpl.write

    def writes(self: Any, path: Any, content: Any) -> None:
        if failing[0]:
            raise OutageError(f"{path}: storage answers HTTP 503")
        write(self, path, content)

    monkeypatch.setattr(metadata._MetadataStoreImpl, "write", writes)
    checkpoints, output = saving(store, losses=losses)
    assert checkpoints.save(1, STATE) == ""
    checkpoints.wait(20.0)
    failing[0] = False
    assert checkpoints.save(2, STATE) == ""
    checkpoints.wait()
    assert [(kind, details["step"]) for kind, details in output] == [("save-failed", 1)]
    assert list_steps(store).complete == (2,)


def test_an_outage_that_does_not_end_ends_the_run_and_is_named(tmp_path: Path) -> None:
    store = Out(tmp_path)
    checkpoints, _ = saving(store, outage_s=0.5)
    store.answer = "HTTP 503"
    assert checkpoints.save(1, STATE)
    time.sleep(0.5)
    with pytest.raises(
        OutageError, match=r"no save for \d+ s: storage answers HTTP 503 for 7 s\n    fix: check"
    ):
        checkpoints.save(2, STATE)


def test_an_outage_that_ended_does_not_count_towards_the_next_one(tmp_path: Path) -> None:
    store = Out(tmp_path)
    checkpoints, _ = saving(store, outage_s=0.5)
    store.answer = "HTTP 503"
    assert checkpoints.save(1, STATE)
    store.answer = ""
    assert checkpoints.save_surely(2, STATE)
    time.sleep(0.5)
    store.answer = "HTTP 503"
    assert checkpoints.save(3, STATE), "put off: the first failure since a save that succeeded"


def test_a_save_on_notice_waits_no_longer_than_the_notice_allows(tmp_path: Path) -> None:
    store = Out(tmp_path)
    checkpoints, _ = saving(store)
    store.answer = "no connection"
    begun = time.monotonic()
    assert not checkpoints.save_surely(1, STATE, within_s=1.5)
    assert 1.5 <= time.monotonic() - begun < 40


def test_what_is_for_people_is_kept_through_an_outage_and_written_after_it(tmp_path: Path) -> None:
    store = Out(tmp_path)
    store.answer = "HTTP 503"
    step_log = StepLog(store, "run", "", 10)
    step_log.event("start", workers=1)
    time.sleep(0.3)
    step_log.event("restore", step=3)
    assert store.list("events/") == []
    store.answer = ""
    step_log.end("done", 10, 1.0)
    assert [name.rpartition("-")[2] for name in store.list("events/")] == ["start.json", "restore.json"]


RESPONSE = requests.Response()
RESPONSE.status_code = 503


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (google.ServiceUnavailable("out"), "HTTP 503"),
        (google.RetryError("Timeout of 60.0s exceeded", google.BadGateway("out")), "HTTP 502"),
        (InvalidResponse(RESPONSE, "Request failed"), "HTTP 503"),
        (requests.ConnectionError("refused"), "no connection"),
        (TimeoutError(), "no answer in time"),
        (ValueError("ABORTED: All 3 retry attempts failed: X [http_response_code='503']"), "HTTP 503"),
        (ValueError("ABORTED: All 3 retry attempts failed: X [curl_code='7']"), "no connection"),
        (ValueError("PERMISSION_DENIED: Forbidden [http_response_code='403']"), ""),
        (google.Forbidden("no"), ""),
        (google.NotFound("no"), ""),
        (OSError(28, "No space left on device"), ""),
        (ValueError("OUT_OF_RANGE: File too large"), ""),
    ],
)
def test_what_time_mends_is_told_from_what_it_does_not(error: Exception, answer: str) -> None:
    assert transient(error) == answer


def test_storage_is_out_from_its_first_failure_to_the_next_answer() -> None:
    now = [100.0]
    health = Health(lambda: now[0])
    health.failed(google.TooManyRequests("one object, written too often"))
    assert health.outage() == ""
    health.failed(google.ServiceUnavailable("out"))
    now[0] = 112.0
    health.failed(google.BadGateway("out"))
    assert health.outage() == "HTTP 502 for 12 s"
    health.answered()
    assert health.outage() == ""
    assert health.last_failure == 112.0
