"""Google's APIs in memory, behind the session of a real client: storage, batches, custom jobs, a cluster."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

import requests

from infra.google.client import Client
from infra.settings.schema import Settings
from pipeline.sweep import Sweep
from pipeline.training import JobSetTrainer, Trainer, VertexTrainer
from tests.infra.layers.pipeline.test_pipeline_layer import settings

RAW, BUCKET = "my-project-raw", "my-project-checkpoints"
CONTROLLERS = f"{BUCKET}-fleet"
CODE = "ab" * 32
START_S = 1_764_000_000.0
LABELS = {"environment": "dev", "layer": "pipeline"}


class DiesError(BaseException):
    """The function's instance ends in the middle of a request."""


@dataclass
class Fault:
    """Outcome of requests that match a pattern.

    Attributes:
        pattern: of "METHOD URL".
        status: of the answer; 0: none comes.
        message: of the answer.
        times: number of requests that it happens to.
        done: the request is carried out all the same.
        dies: the caller ends, too.
        met: number of requests that it has happened to.
    """

    pattern: str
    status: int = 0
    message: str = "try again"
    times: int = 1
    done: bool = False
    dies: bool = False
    met: int = 0


@dataclass
class Object:
    """An object of a bucket."""

    content: bytes
    generation: int
    updated: str


@dataclass
class Google:
    """The state of Google's side; `session` is what a client sends requests by."""

    now_s: float = START_S
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    jobsets: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    created: list[dict[str, Any]] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)

    # As people and programs outside act

    def put(self, bucket: str, name: str, content: bytes | str) -> int:
        """Write an object; return its generation."""
        self.now_s += 1
        generation = 1000 + len(self.requests) + int(self.now_s - START_S) * 100
        at = datetime.fromtimestamp(self.now_s, UTC).isoformat().replace("+00:00", "Z")
        raw = content.encode() if isinstance(content, str) else content
        self.objects[bucket, name] = Object(raw, generation, at)
        return generation

    def submit(self, folder: str = "corpus/", text: bytes = b"x" * 1000) -> str:
        """Upload text and `_SUBMIT`; return the run."""
        if text:
            self.put(RAW, f"{folder}a.jsonl", text)
        return f"r{self.put(RAW, f'{folder}_SUBMIT', b'')}"

    def record(self, run: str) -> dict[str, Any]:
        """Return the record of a run."""
        parsed: dict[str, Any] = json.loads(self.objects[CONTROLLERS, f"pipeline/{run}/run.json"].content)
        return parsed

    def move(self, state: str, message: str = "", *, seconds: float = 60.0, shards: int = 2) -> None:
        """Bring the newest batch into a state; one that succeeds leaves shards."""
        self.now_s += seconds
        name, batch = [*self.batches.items()][-1]
        batch |= {"state": state, "stateMessage": message, "stateTime": self._time(self.now_s)}
        batch["runtimeInfo"] = {
            "approximateUsage": {"milliDcuSeconds": "3600000", "shuffleStorageGbSeconds": "0"}
        }
        if state == "SUCCEEDED" and shards:
            self.shards(re.findall("r[0-9]+", name)[0], shards)

    def shards(self, run: str, count: int = 2, folder: str = "0123abcd", **changes: Any) -> None:
        """Write complete shards of a run."""
        at, names = f"tokens/{run}/{folder}", [f"tokens-{number:05d}.bin" for number in range(count)]
        for name in names:
            self.put(BUCKET, f"{at}/{name}", name.encode() * 10)
        listed = [
            {"file": name, "tokens": 3, "sha256": hashlib.sha256(name.encode() * 10).hexdigest()}
            for name in names
        ]
        manifest = {"documents": 3, "tokens": 6, "inputs_sha256": "cd" * 32, "shards": listed, **changes}
        self.put(BUCKET, f"{at}/manifest.json", json.dumps(manifest))
        self.put(BUCKET, f"{at}/_READY", b"{}")

    @staticmethod
    def _time(at_s: float) -> str:
        return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")

    # As the session of a client

    def request(
        self,
        method: str,
        url: str,
        params: Mapping[str, str],
        data: Any,
        headers: Mapping[str, str],
        timeout: Any,
    ) -> requests.Response:
        """Answer a request, unless a fault applies to it."""
        line = (
            f"{method} {unquote(url)}?{'&'.join(f'{key}={value}' for key, value in sorted(params.items()))}"
        )
        self.requests.append(line)
        for fault in self.faults:
            if fault.met < fault.times and re.search(fault.pattern, line):
                fault.met += 1
                if fault.done:
                    self._answer(method, url, params, data, headers)
                if fault.dies:
                    raise DiesError
                if not fault.status:
                    raise requests.ConnectionError("connection reset")
                return _reply(fault.status, {"error": {"message": fault.message}})
        return self._answer(method, url, params, data, headers)

    def _answer(
        self, method: str, url: str, params: Mapping[str, str], data: Any, headers: Mapping[str, str]
    ) -> requests.Response:
        parts = urlsplit(url)
        body = json.loads(data) if data and headers.get("Content-Type") == "application/json" else data
        if parts.hostname == "storage.googleapis.com":
            return self._storage(method, parts.path, params, data, headers)
        if parts.hostname == "dataproc.googleapis.com":
            return self._dataproc(method, parts.path, params, body)
        if parts.hostname == "us-east5-aiplatform.googleapis.com":
            return self._vertex(method, parts.path, params, body)
        if parts.hostname == "logging.googleapis.com":
            return self._logged(body)
        assert parts.hostname == "cluster.example", url
        return self._cluster(method, parts.path, body)

    def _storage(
        self, method: str, path: str, params: Mapping[str, str], data: Any, headers: Mapping[str, str]
    ) -> requests.Response:
        bucket, _, name = path.partition("/b/")[2].partition("/o")
        name = unquote(name.removeprefix("/")) or params.get("name", "")
        if not name:
            return self._listed(bucket, params)
        stored = self.objects.get((bucket, name))
        expected = params.get("ifGenerationMatch")
        if expected is not None and expected != str(stored.generation if stored else 0):
            return _reply(412, {"error": {"message": "conditionNotMet"}})
        if method == "POST":
            return _reply(200, {"generation": str(self.put(bucket, name, data))})
        if stored is None:
            return _reply(404, {"error": {"message": f"No such object: {bucket}/{name}"}})
        if method == "DELETE":
            del self.objects[bucket, name]
            return _reply(204, {})
        if params.get("alt") != "media":
            size, generation = str(len(stored.content)), str(stored.generation)
            return _reply(200, {"size": size, "generation": generation, "updated": stored.updated})
        first, last = re.findall("[0-9]+", headers.get("Range", f"0-{len(stored.content)}"))
        content = stored.content[int(first) : int(last) + 1]
        return _reply(200, content, {"x-goog-generation": str(stored.generation)})

    def _listed(self, bucket: str, params: Mapping[str, str]) -> requests.Response:
        glob = re.escape(params.get("matchGlob", "**")).replace(r"\*\*", "(?s:.*)").replace(r"\*", "[^/]*")
        items = [
            {"name": name, "size": str(len(stored.content)), "generation": str(stored.generation),
             "updated": stored.updated}
            for (where, name), stored in sorted(self.objects.items())
            if where == bucket and name.startswith(params.get("prefix", "")) and re.fullmatch(glob, name)
        ]  # fmt: skip
        start = int(params.get("pageToken", 0))  # pages of two
        more = {"nextPageToken": str(start + 2)} if len(items) > start + 2 else {}
        return _reply(200, {"items": items[start : start + 2], **more})

    def _dataproc(self, method: str, path: str, params: Mapping[str, str], body: Any) -> requests.Response:
        if path.endswith(":cancel"):
            batch = self.batches[path.rpartition("/")[2].removesuffix(":cancel").removeprefix("o-")]
            batch["state"] = "CANCELLED"
            return _reply(200, {})
        if method == "POST":
            name = params["batchId"]
            if name in self.batches:
                return _reply(409, {"error": {"message": f"Already exists: Failed to create batch: {name}"}})
            self.created.append(body)
            at = self._time(self.now_s)
            operation = f"projects/my-project/regions/us-east5/operations/o-{name}"
            self.batches[name] = {
                **body, "state": "PENDING", "createTime": at, "stateTime": at, "operation": operation
            }  # fmt: skip
            return _reply(200, {"name": operation})
        batch = self.batches.get(path.rpartition("/")[2])
        return _reply(200, batch) if batch else _reply(404, {"error": {"message": "Not found: Batch"}})

    def _vertex(self, method: str, path: str, params: Mapping[str, str], body: Any) -> requests.Response:
        if path.endswith(":cancel"):
            (job,) = [job for job in self.jobs if path.endswith(f"/{job['name'].rpartition('/')[2]}:cancel")]
            job["state"] = "JOB_STATE_CANCELLED"
            return _reply(200, {})
        if method == "POST":
            name = f"projects/1/locations/us-east5/customJobs/{len(self.jobs)}"
            self.jobs.append({**body, "name": name, "state": "JOB_STATE_RUNNING"})
            return _reply(200, self.jobs[-1])
        jobs = [job for job in self.jobs if params["filter"] == f'display_name="{job["displayName"]}"']
        return _reply(200, {"customJobs": jobs} if jobs else {})

    def _logged(self, body: Mapping[str, Any]) -> requests.Response:
        # Audit entries of a batch have the batch's labels, too.
        assert 'logName:"dataproc.googleapis.com"' in body["filter"]
        assert 'resource.labels.batch_id="tpu-pipeline-r17"' in body["filter"]
        at = int(body.get("pageToken", 0))  # a page is one entry
        more = {"nextPageToken": str(at + 1)} if self.entries[at + 1 :] else {}
        return _reply(200, {"entries": self.entries[at : at + 1], **more})

    def _cluster(self, method: str, path: str, body: Any) -> requests.Response:
        name = path.rpartition("/")[2]
        if method == "POST":
            name = body["metadata"]["name"]
            if name in self.jobsets:
                message = f'jobsets.jobset.x-k8s.io "{name}" already exists'
                return _reply(409, {"kind": "Status", "message": message})
            self.jobsets[name] = {**body, "status": {}}
            return _reply(201, body)
        if name not in self.jobsets:
            return _reply(404, {"kind": "Status", "message": f'jobsets "{name}" not batch'})
        if method == "DELETE":
            return _reply(200, self.jobsets.pop(name))
        return _reply(200, self.jobsets[name])


def _reply(status: int, body: Any, headers: Mapping[str, str] | None = None) -> requests.Response:
    answer = requests.Response()
    answer.status_code = status
    answer._content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer.headers.update(headers or {})
    return answer


def given(more: Mapping[str, Any] | None = None, **changes: Any) -> Settings:
    """Return the settings of a pipeline whose code is published."""
    return settings(more, **{"pipeline__code": CODE, **changes})


class Pipeline:
    """A function of an environment beside that cloud, and its clock."""

    def __init__(self, known: Settings, google: Google | None = None, trainer: Trainer | None = None):
        self.google, self.settings = google or Google(), known
        self.client = Client("my-project", self.google, sleep=lambda _: None)  # type: ignore[arg-type]
        self.trainer = trainer
        self.instance()

    def instance(self) -> Sweep:
        """Begin a new instance of the function."""
        trainer = self.trainer or _trainer(self.settings, self.client)
        self.sweeps = Sweep(self.settings, self.client, trainer, lambda: self.google.now_s)
        return self.sweeps

    def sweep(self, times: int = 1, *, minutes: float = 1.0, fine: bool = True) -> None:
        """Sweep so many times, a minute after the other."""
        for _ in range(times):
            self.google.now_s += minutes * 60
            faults = self.sweeps.sweep()
            assert not (fine and faults), faults

    def processed(self, shards: int = 2) -> str:
        """Bring a run to the end of its batch."""
        run = self.google.submit()
        self.sweep()
        self.google.move("SUCCEEDED", shards=shards)
        return run

    def trained(self) -> str:
        """Bring a run to its training."""
        run = self.processed()
        self.sweep()
        return run

    def record(self, run: str) -> dict[str, Any]:
        """Return the record of a run."""
        return self.google.record(run)

    def swept(self, run: str, times: int = 1) -> dict[str, Any]:
        """Sweep, and return the record of a run."""
        self.sweep(times)
        return self.record(run)


def _trainer(known: Settings, client: Client) -> Trainer | None:
    from infra.layers.pipeline.settings import PipelineSettings

    match known[PipelineSettings].train:
        case "jobset":
            return JobSetTrainer(known, client, "cluster.example")
        case "vertex":
            return VertexTrainer(known, client)
    return None
