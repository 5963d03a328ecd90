"""Runs as people see them: submitted, looked at, cancelled, tried again.

A run is its record in the checkpoint bucket, which the workflow writes; nothing here remembers any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from infra.errors import CommandError
from infra.gcp.client import STORAGE, Client, RequestError, object_url
from infra.gcp.failures import Kind
from infra.pipeline import access, places
from infra.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings
from infra.storage.settings import StorageSettings

Run = dict[str, Any]

WORKFLOWS = "https://workflowexecutions.googleapis.com/v1"
DATAPROC, LOGGING = "https://dataproc.googleapis.com/v1", "https://logging.googleapis.com/v2"
RUNNING = "running"
GOOD = ("trained", "shards")
_URL = re.compile(r"gs://([^/]+)/(?:(.*)/)?")
_RUN = re.compile(r"r\d+")


class Runs:
    """Of one environment, as who is logged in."""

    def __init__(self, settings: Settings, client: Client):
        self._settings, self._client = settings, client
        self._bucket = settings[StorageSettings].bucket_name
        self._raw = settings[PipelineSettings].raw_bucket_name

    def measure(self, url: str) -> tuple[str, int, int]:
        """The folder below the raw bucket, its number of objects, and their bytes.

        Raises CommandError for a folder elsewhere, in another region, or an empty one.
        """
        found = _URL.fullmatch(url if url.endswith("/") else f"{url}/")
        if found is None or found[1] != self._raw:
            raise CommandError(
                f"{url}: is no folder of gs://{self._raw}, the raw bucket\n"
                f"    fix: gcloud storage cp -r FILES gs://{self._raw}/FOLDER/, then that folder"
            )
        folder = f"{found[2]}/" if found[2] else ""
        if self._settings[PipelineSettings].existing_raw_bucket:  # ours is made beside the checkpoint bucket
            self._refuse_elsewhere()
        sizes = [
            int(one["size"])
            for one in self._items(self._raw, folder, "items(name,size),nextPageToken")
            if not str(one["name"]).endswith(places.SUBMIT)
        ]
        if not sum(sizes):
            fix = f"gcloud storage cp FILES gs://{self._raw}/{folder}"
            raise CommandError(f"{url}: nothing is there\n    fix: {fix}")
        return folder, len(sizes), sum(sizes)

    def _refuse_elsewhere(self) -> None:
        region = places.region(self._settings)
        location = str(self._client.json("GET", f"{STORAGE}/storage/v1/b/{self._raw}")["location"]).lower()
        if location != region:
            raise CommandError(
                f"gs://{self._raw} is in {location}, Spark and the checkpoint bucket in {region}: each "
                "byte would be billed\n"
                "    fix: copy the text to a bucket there, and name that as pipeline:rawBucketName"
            )

    def submit(self, folder: str) -> str:
        """Write `_SUBMIT` into a folder, and start its run; the run."""
        name = f"{folder}{places.SUBMIT}"
        url = f"{STORAGE}/upload/storage/v1/b/{self._raw}/o"
        made = self._client.json("POST", url, {"uploadType": "media", "name": name}, b"")
        self._start({"data": {"bucket": self._raw, "name": name, "generation": str(made["generation"])}})
        return f"r{made['generation']}"

    def retry(self, run: Run) -> None:
        """Start a run again: what is there stays. Raises CommandError for one that runs, or has succeeded."""
        if run["outcome"] == RUNNING and self.execution(run).get("state") == "ACTIVE":
            raise CommandError(f"{run['run']} is running\n    fix: tpu pipeline cancel … first, or wait")
        if run["outcome"] in GOOD:
            fix = f"tpu pipeline run {self._settings.environment} {run['raw']}, for a new one"
            raise CommandError(f"{run['run']} has ended well\n    fix: {fix}")
        folder = str(run["raw"]).partition(f"gs://{self._raw}/")[2]
        data = {"bucket": self._raw, "name": f"{folder}{places.SUBMIT}", "generation": str(run["run"])[1:]}
        # The last heartbeat of a job that failed for good stays, and so may its slice: another name.
        restart = int(run.get("restart", 0)) + (run["outcome"] == "training_failed")
        self._start({"data": data, "retry": int(run.get("retry", 0)) + 1, "restart": restart})

    def all(self) -> list[Run]:
        """Every run, the newest first."""
        names = [str(one["name"]) for one in self._items(self._bucket, f"{places.RECORDS}/r")]
        found = (self._read(name) for name in names if name.endswith("/run.json"))
        return sorted((one for one in found if one), key=lambda one: str(one["began"]), reverse=True)

    def one(self, run: str) -> Run:
        """A run by its name. Raises CommandError where there is none."""
        found = self._read(places.record(run)) if _RUN.fullmatch(run) else None
        if found is None:
            raise CommandError(f"no run {run}\n    fix: tpu pipeline status {self._settings.environment}")
        return found

    def execution(self, run: Run) -> dict[str, Any]:
        """The workflow's execution; empty once Google has forgotten it."""
        url = f"{WORKFLOWS}/{places.workflow_id(self._settings)}/executions/{run['execution']}"
        try:
            return self._client.json("GET", url)
        except RequestError as error:
            if error.failure.kind is Kind.MISSING:
                return {}
            raise

    def cancel(self, run: Run) -> str:
        """End what a run does now; what was ended, in words. Raises CommandError for one that has ended."""
        if run["outcome"] != RUNNING:
            raise CommandError(f"{run['run']} has ended: {run['outcome']}")
        if run["stage"] == "preprocess" and run.get("batch"):
            place = f"projects/{self._settings.project}/locations/{places.region(self._settings)}"
            batch = self._client.json("GET", f"{DATAPROC}/{place}/batches/{run['batch']}")
            self._client.json("POST", f"{DATAPROC}/{batch['operation']}:cancel", body={})
            return "its batch; the run ends by itself when it sees that"
        url = f"{WORKFLOWS}/{places.workflow_id(self._settings)}/executions/{run['execution']}"
        self._client.json("POST", f"{url}:cancel", body={})
        ended = {**run, "outcome": "cancelled", "why": "somebody cancelled the run"}
        query = {"uploadType": "media", "name": places.record(str(run["run"]))}
        place = f"{STORAGE}/upload/storage/v1/b/{self._bucket}/o"
        self._client.json("POST", place, query, json.dumps(ended).encode())
        training = run.get("training")
        return "its workflow" + (f"; its training continues: {training}" if training else "")

    def logs(self, run: Run) -> Iterator[str]:
        """What its batch printed, the oldest first."""
        query = {
            "resourceNames": [f"projects/{self._settings.project}"],
            "filter": 'resource.type="cloud_dataproc_batch" AND resource.labels.batch_id='
            f'"{run.get("batch", "")}"',
            "orderBy": "timestamp asc",
            "pageSize": 1000,
        }
        while True:
            answer = self._client.json("POST", f"{LOGGING}/entries:list", body=query)
            for entry in answer.get("entries") or ():
                payload = entry.get("jsonPayload") or {}
                yield str(entry.get("textPayload") or payload.get("message") or json.dumps(payload))
            if not answer.get("nextPageToken"):
                return
            query["pageToken"] = answer["nextPageToken"]

    def why(self, run: Run) -> str:
        """Why a run failed, with the grant that is missing where one is."""
        message = str(run.get("why") or "")
        if not message and run["outcome"] == RUNNING:
            error = self.execution(run).get("error") or {}
            message = str(error.get("payload") or error.get("context") or "")
        return f"{message}{missing(self._settings, message)}"

    def _start(self, argument: dict[str, Any]) -> None:
        url = f"{WORKFLOWS}/{places.workflow_id(self._settings)}/executions"
        self._client.json("POST", url, body={"argument": json.dumps(argument)})

    def _read(self, name: str) -> Run | None:
        content = self._client.content(object_url(self._bucket, name))
        return None if content is None else dict(json.loads(content))

    def _items(self, bucket: str, prefix: str, fields: str = "items(name),nextPageToken") -> Iterator[Run]:
        url = f"{STORAGE}/storage/v1/b/{quote(bucket)}/o"
        return self._client.items(url, "items", {"prefix": prefix, "fields": fields})


def missing(settings: Settings, message: str) -> str:
    """ "; it needs ROLE on …" for a refusal that lacks a grant; empty for anything else."""
    if "; it needs " in message or not re.search(r"(?i)permission|does not have|denied|403", message):
        return ""
    lacks = (one["role"] for one in access.by_message(settings) if re.search(one["matches"], message))
    role = next(lacks, "")
    return f"; it needs {role}" if role else ""
