"""The function's entry: events, sweeps, its lines, and its source as Google runs it."""

from __future__ import annotations

import json
import logging
import subprocess
import time
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from infra.engine.settings import from_file
from infra.google.client import RequestError
from infra.layers.pipeline import paths
from infra.layers.pipeline.program import source
from pipeline import function
from rehearsal.world.layout import cache_dir
from rehearsal.world.runtimes import ensure
from tests.limits import HANG_S
from tests.pipeline.world import RAW, Fault, Google, Pipeline, given

EVENT = {"Ce-Type": "google.cloud.storage.object.v1.finalized"}
MOST_MODULES = 800  # after an import, of 705 on 2026-11-27: a cold start loads them
SERVE = """
import sys
sys.path.insert(0, {root!r})
import main
loaded = len(sys.modules)

import json, logging, requests
from infra.google import client

class Session:
    lines = []
    def request(self, method, url, **more):
        self.lines.append(f"{{method}} {{url}}")
        answer = requests.Response()
        answer.status_code, answer._content = 200, b"{{}}"
        return answer

client._login = Session
import functions_framework
app = functions_framework.create_app("handle", {main!r}).test_client()
answer = app.post("/", json={{"sweep": True}})
names = sorted({{name.partition(".")[0] for name in sys.modules}})
print(json.dumps({{"loaded": loaded, "status": answer.status_code, "body": answer.get_json(),
                   "lines": Session.lines, "modules": names}}))
"""


class Request:
    """The used part of Flask's request."""

    def __init__(self, body: Any, headers: dict[str, str] | None = None):
        self._body, self.headers = body, headers or {}

    def get_json(self, *, silent: bool) -> Any:
        assert silent
        return self._body


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    """Restore the root logger, which the function sets up once."""
    function._log_to_stdout.cache_clear()
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    function._log_to_stdout.cache_clear()


@pytest.fixture(name="pipeline")
def _pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    pipeline = Pipeline(given())
    monkeypatch.setattr(function, "_sweep", lambda: pipeline.sweeps)
    return pipeline


def test_an_event_of_the_raw_bucket_claims_its_run(pipeline: Pipeline) -> None:
    run = pipeline.google.submit()
    body = {"bucket": RAW, "name": "corpus/_SUBMIT", "generation": run[1:], "size": "0"}
    assert function.handle(Request(body, EVENT)) == ({"outcome": "running", "run": run}, 200)
    assert function.handle(Request(body, EVENT)) == ({"outcome": "duplicate", "run": run}, 200)
    other = {**body, "name": "corpus/a.jsonl"}
    assert function.handle(Request(other, EVENT)) == ({"outcome": "ignored"}, 200)


def test_a_sweep_returns_its_faults(pipeline: Pipeline) -> None:
    run = pipeline.google.submit()
    assert function.handle(Request({"sweep": True})) == ({"outcome": "swept", "faults": []}, 200)
    assert pipeline.record(run)["batch"]


def test_a_request_that_fails_is_left_to_the_next_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep a minute later tries again, and a quarter of an hour is measured in sweeps."""
    google = Google()
    google.faults = [Fault("", 503, times=99)]
    monkeypatch.setattr("infra.google.client._login", lambda: google)
    monkeypatch.setattr(function, "from_file", lambda _: given())
    monkeypatch.setenv(paths.ENVIRONMENT, "dev")
    monkeypatch.setattr("infra.google.client._PAUSE_S", 0.0)
    with monkeypatch.context() as fresh:
        fresh.setattr(function, "_sweep", function._sweep.__wrapped__)
        with pytest.raises(RequestError, match="try again"):
            function.handle(Request({"sweep": True}))
    assert len(google.requests) == 2


@pytest.mark.parametrize("header", ["Ce-Time", "X-CloudScheduler-ScheduleTime"])
def test_the_clock_is_never_behind_the_time_of_a_request(pipeline: Pipeline, header: str) -> None:
    function.handle(Request({"sweep": True}, {header: "2999-01-01T00:00:00.5Z"}))
    assert function._CLOCK() == datetime(2999, 1, 1, 0, 0, 0, 500_000, UTC).timestamp()
    for sent in ("1999-01-01T00:00:00Z", "yesterday"):
        function.handle(Request({"sweep": True}, {header: sent}))
        assert abs(function._CLOCK() - time.time()) < HANG_S


@pytest.mark.parametrize("body", [None, [], {}, {"sweep": "yes"}, {"bucket": RAW, "name": "corpus/_SUBMIT"}])
def test_what_is_neither_is_refused(pipeline: Pipeline, body: Any) -> None:
    answer, status = function.handle(Request(body))
    assert (status, [*answer]) == (400, ["error"])
    assert pipeline.google.requests == []


def test_a_run_writes_lines_from_which_alerts_are_made(
    pipeline: Pipeline, capfd: pytest.CaptureFixture[str]
) -> None:
    run = pipeline.google.submit("empty/", b"")
    function.handle(Request({"sweep": True}))
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    begin, end = [line for line in lines if line.get("event", "").startswith("pipeline_")]
    assert (begin["severity"], begin["event"], begin["run"]) == ("INFO", "pipeline_begin", run)
    assert (end["severity"], end["event"], end["outcome"]) == ("ERROR", "pipeline_run", "empty")
    assert end["why"] == f"nothing is in gs://{RAW}/empty/"


def test_its_source_alone_serves_a_sweep_with_its_requirements(tmp_path: Path) -> None:
    packed = source(from_file("dev"))
    assert packed.read_bytes() == source(from_file("dev")).read_bytes(), "the same files, the same bytes"
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path)
        settings = archive.read("Pulumi.dev.yaml")
    if b"pipeline:" not in settings:
        text = settings.decode().rstrip() + f"\n  pipeline:rawBucketName: {RAW}\n"
        (tmp_path / "Pulumi.dev.yaml").write_text(text)
    python = ensure("functions", cache_dir())
    script = SERVE.format(root=str(tmp_path), main=str(tmp_path / "main.py"))
    done = subprocess.run(
        [python, "-I", "-c", script], env={"TPU_ENVIRONMENT": "dev", "PATH": "/usr/bin"}, cwd=tmp_path,
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["status"], result["body"]) == (200, {"outcome": "swept", "faults": []})
    assert any("/o" in line for line in result["lines"])
    assert "pulumi" not in result["modules"]
    assert result["loaded"] <= MOST_MODULES
