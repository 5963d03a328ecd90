"""Runs as people see them: submitted, looked at, cancelled, tried again.

A run is its record in the checkpoint bucket, which the workflow writes; nothing here remembers any.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from infra.core.layer import up_command
from infra.errors import CommandError
from infra.google.client import STORAGE, Client, RequestError, object_url, or_none
from infra.google.failures import Kind
from infra.layers.pipeline import access, paths, records
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from settings_schema import foreign
from settings_schema.foreign import ForeignError

Run = dict[str, Any]

WORKFLOWS = "https://workflowexecutions.googleapis.com/v1"
DATAPROC, LOGGING = "https://dataproc.googleapis.com/v1", "https://logging.googleapis.com/v2"
RUNNING, WAITING, SWEEP = "running", "waiting", "sweep"
GOOD = ("trained", "shards")
_AT_ONCE = 32
_LOOKED_AT = 100  # executions, the newest, for those that have no record
_URL = re.compile(r"gs://([^/]+)/(?:(.*)/)?")
_OBJECT = re.compile(rf"{paths.RECORDS}/({records.RUN})/run\.json")


class NoRunError(CommandError):
    """There is no run of that name."""


class Runs:
    """Runs of one environment, for the user who is logged in.

    Attributes:
        unread: why a record isn't read, by its object; hosts and pods may write there.
    """

    def __init__(self, settings: Settings, client: Client):
        self._settings, self._client = settings, client
        self.unread: dict[str, str] = {}
        self._bucket = settings[StorageSettings].bucket_name
        self._raw = settings[PipelineSettings].raw_bucket_name

    def measure(self, url: str) -> tuple[str, int, int]:
        """Return the folder below the raw bucket, its number of objects, and their bytes.

        Raises CommandError for a folder elsewhere or an empty one.
        """
        match = _URL.fullmatch(url if url.endswith("/") else f"{url}/")
        if match is None or match[1] != self._raw:
            raise CommandError(
                f"{url}: is no folder of gs://{self._raw}, the raw bucket\n"
                f"    fix: gcloud storage cp -r FILES gs://{self._raw}/FOLDER/, then that folder"
            )
        folder = f"{match[2]}/" if match[2] else ""
        with self._role(self._raw):
            sizes = [
                int(item["size"])
                for item in self._items(self._raw, folder, "items(name,size),nextPageToken")
                if not str(item["name"]).endswith(paths.SUBMIT)
            ]
        if not sum(sizes):
            fix = f"gcloud storage cp FILES gs://{self._raw}/{folder}"
            raise CommandError(f"{url}: nothing is there\n    fix: {fix}")
        return folder, len(sizes), sum(sizes)

    def submit(self, folder: str) -> str:
        """Write `_SUBMIT` into a folder, and start its run; the run.

        Raises CommandError if somebody else submits the folder at this moment.
        """
        name = f"{folder}{paths.SUBMIT}"
        url = object_url(self._raw, name)
        mark = str(uuid.uuid4()).encode()  # by which a lost answer's generation is known
        with self._role(self._raw):
            known = or_none(lambda: self._client.json("GET", url, {"fields": "generation"})) or {}
            try:
                generation = self._client.upload(self._raw, name, mark, int(known.get("generation", 0)))
            except RequestError as error:
                if error.failure.kind is not Kind.INVALID:
                    raise
                fix = f"tpu pipeline status {self._settings.environment}, which shows that run"
                raise CommandError(
                    f"gs://{self._raw}/{folder}: somebody else has just submitted it\n    fix: {fix}"
                ) from None
        self._start({"data": {"bucket": self._raw, "name": name, "generation": str(generation)}})
        return f"r{generation}"

    def refuse_retry(self, run: Run) -> None:
        """Raise CommandError for a run that runs, or has succeeded."""
        if run["outcome"] == RUNNING and self.execution(run).get("state") == "ACTIVE":
            raise CommandError(f"{run['run']} is running\n    fix: tpu pipeline cancel … first, or wait")
        if run["outcome"] in GOOD:
            fix = f"tpu pipeline run {self._settings.environment} {run['raw']}, for a new one"
            raise CommandError(f"{run['run']} has ended well\n    fix: {fix}")

    def retry(self, run: Run) -> None:
        """Start a run again: what is there stays. `refuse_retry` comes first."""
        folder = str(run["raw"]).partition(f"gs://{self._raw}/")[2]
        data = {"bucket": self._raw, "name": f"{folder}{paths.SUBMIT}", "generation": str(run["run"])[1:]}
        # The last heartbeat of a job that was ended stays, and so may its slice for a while: another name.
        restart = int(run.get("restart", 0)) + (run["outcome"] in ("training_failed", "train_hours"))
        self._start({"data": data, "retry": int(run.get("retry", 0)) + 1, "restart": restart})

    def all(self) -> list[Run]:
        """Every run that has a record, the newest first."""
        with self._role(self._bucket):
            items = [*self._items(self._bucket, f"{paths.RECORDS}/r", "items(name,size),nextPageToken")]
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # a run is a request
            records = list(pool.map(self._read_or_note, items))
        return sorted((run for run in records if run), key=lambda run: str(run["began"]), reverse=True)

    def unrecorded(self, known: Sequence[Run]) -> list[Run]:
        """Return failed runs and sweeps without a record in `known`, and submissions without a run."""
        executions = self._executions()
        names = {str(run["run"]) for run in (*known, *executions)}
        failed = [self._named(execution) for execution in _failed(executions, known)]
        return [*failed, *(submission for submission in self._submitted() if submission["run"] not in names)]

    def _submitted(self) -> list[Run]:
        """Every submission, the newest first; nothing for who may not list the raw bucket."""
        url = f"{STORAGE}/storage/v1/b/{quote(self._raw)}/o"
        query = {"matchGlob": f"**{paths.SUBMIT}", "fields": "items(name,generation,updated),nextPageToken"}
        try:
            items = list(self._client.items(url, "items", query))
        except RequestError as error:
            if error.failure.kind is Kind.PERMISSION:
                return []
            raise
        submitted = [
            {
                "run": f"r{item['generation']}", "began": str(item["updated"]), "stage": "submitted",
                "outcome": WAITING, "raw": f"gs://{self._raw}/{str(item['name']).removesuffix(paths.SUBMIT)}",
            }
            for item in items
        ]  # fmt: skip
        return sorted(submitted, key=lambda run: run["began"], reverse=True)

    def named(self, run: str) -> Run:
        """Return a run by its name. Raises NoRunError if there is none."""
        try:
            record = self._read(run) if re.fullmatch(records.RUN, run) else None
        except ForeignError as error:
            url = f"gs://{self._bucket}/{paths.record(run)}"
            fix = f"unless its next stage writes it: gcloud storage rm {url}, and submit its folder again"
            raise CommandError(f"{url}: {error}\n    fix: {fix}") from None
        if record is None:  # it may not even have begun its record
            failed = _failed(self._executions(), [])
            record = next((self._named(execution) for execution in failed if execution["run"] == run), None)
        if record is None:
            raise NoRunError(f"no run {run}\n    fix: tpu pipeline status {self._settings.environment}")
        return record

    def execution(self, run: Run) -> dict[str, Any]:
        """Return the workflow's execution; empty once Google has forgotten it."""
        url = f"{WORKFLOWS}/{paths.workflow_id(self._settings)}/executions/{run['execution']}"
        try:
            with self._role():
                return self._client.json("GET", url)
        except RequestError as error:
            if error.failure.kind is Kind.MISSING:
                return {}
            raise

    def batch(self, run: Run) -> str:
        """Return the state of the batch that a run waits for; empty if it waits for none."""
        if run["outcome"] != RUNNING or run["stage"] != "preprocess" or not run.get("batch"):
            return ""
        with self._role():
            answer = or_none(lambda: self._batch(run)) or {}
        return f"{answer['state']} since {answer['stateTime']}" if answer else "not there yet"

    def _batch(self, run: Run) -> dict[str, Any]:
        place = f"projects/{self._settings.project}/locations/{paths.region(self._settings)}"
        return self._client.json("GET", f"{DATAPROC}/{place}/batches/{run['batch']}")

    def cancel(self, run: Run) -> str:
        """End what a run does now; what was ended, in words. Raises CommandError for one that has ended."""
        if run["outcome"] != RUNNING:
            raise CommandError(f"{run['run']} has ended: {run['outcome']}")
        if run["stage"] == "preprocess" and run.get("batch"):
            with self._role(changes=True):
                batch = self._batch(run)
                self._client.json("POST", f"{DATAPROC}/{batch['operation']}:cancel", body={})
            return "its batch; the run ends by itself when it sees that"
        url = f"{WORKFLOWS}/{paths.workflow_id(self._settings)}/executions/{run['execution']}"
        try:
            with self._role(changes=True):
                self._client.json("POST", f"{url}:cancel", body={})
        except RequestError:
            if self.execution(run).get("state") in ("ACTIVE", "QUEUED"):
                raise
            # It has ended: by this request, whose answer was lost, or by itself, perhaps with a record of it.
            known = self._read(str(run["run"])) or run
            if known["outcome"] != RUNNING:
                raise CommandError(f"{run['run']} has ended: {known['outcome']}") from None
        ended = {**run, "outcome": "cancelled", "why": "the run was cancelled"}
        query = {"uploadType": "media", "name": paths.record(str(run["run"]))}
        place = f"{STORAGE}/upload/storage/v1/b/{self._bucket}/o"
        with self._role(self._bucket):
            self._client.json("POST", place, query, json.dumps(ended).encode())
        training, ended_by = run.get("training"), run.get("ended_by")
        ends = f"\n    to end that too: {ended_by}" if ended_by else ""
        return "its workflow" + (f"; its training continues: {training}{ends}" if training else "")

    def logs(self, run: Run) -> Iterator[str]:
        """Yield the output of a run's batch, the oldest line first."""
        query = {
            "resourceNames": [f"projects/{self._settings.project}"],
            "filter": 'resource.type="cloud_dataproc_batch" AND resource.labels.batch_id='
            f'"{run.get("batch", "")}" AND logName:"dataproc.googleapis.com"',  # no audit entries
            "orderBy": "timestamp asc",
            "pageSize": 1000,
        }
        while True:
            with self._role():
                answer = self._client.json("POST", f"{LOGGING}/entries:list", body=query)
            for entry in answer.get("entries") or ():
                payload = entry.get("jsonPayload") or {}
                yield str(entry.get("textPayload") or payload.get("message") or json.dumps(payload))
            if not answer.get("nextPageToken"):
                return
            query["pageToken"] = answer["nextPageToken"]

    def why(self, run: Run) -> str:
        """Return the reason why a run failed or doesn't begin, with the missing grant if any."""
        message = str(run.get("why") or "")
        if run["outcome"] == WAITING:
            return f"neither its event nor the schedule has started it yet; {carried_by(self._settings)}"
        if not message and run["outcome"] == RUNNING:
            error = self.execution(run).get("error") or {}
            message = str(error.get("payload") or error.get("context") or "")
        return f"{message}{missing(self._settings, message)}"

    def _start(self, argument: dict[str, Any]) -> None:
        url = f"{WORKFLOWS}/{paths.workflow_id(self._settings)}/executions"
        text = json.dumps({**argument, "request": str(uuid.uuid4())})

        def find() -> Run | None:
            listed = self._client.json("GET", url, {"view": "FULL", "pageSize": str(_LOOKED_AT)})
            executions = listed.get("executions") or ()
            return next((entry for entry in executions if entry.get("argument") == text), None)

        with self._role(changes=True):
            self._client.make(url, {"argument": text}, find)

    def _named(self, run: Run) -> Run:
        """With the outcome of a refusal where it failed by one, and what comes next."""
        outcome = "permission" if missing(self._settings, run["why"]) else run["outcome"]
        again = f"tpu pipeline retry {self._settings.environment} {run['run']}"
        return {**run, "outcome": outcome, "next": "" if run["run"] == SWEEP else again}

    def _executions(self) -> list[Run]:
        """Return the newest of the workflow, the newest first, as runs of which nothing else is known."""
        url = f"{WORKFLOWS}/{paths.workflow_id(self._settings)}/executions"
        query = {"view": "FULL", "pageSize": str(_LOOKED_AT)}
        with self._role():
            executions = self._client.json("GET", url, query).get("executions") or []
        return sorted(map(_run_of, executions), key=lambda execution: str(execution["began"]), reverse=True)

    def _read(self, run: str) -> Run | None:
        """Return the record of a run, None if missing. Raises ForeignError for one that isn't a record."""
        with self._role(self._bucket):
            content = self._client.content(object_url(self._bucket, paths.record(run)))
        return None if content is None else records.parse(run, content)

    def _read_or_note(self, item: Mapping[str, Any]) -> Run | None:
        """Return the record in an object; None if it isn't one, with the reason in `unread`."""
        match = _OBJECT.fullmatch(str(item["name"]))
        if match is None:
            return None
        try:
            foreign.require_size(int(item.get("size", 0)))
            return self._read(match[1])
        except ForeignError as error:
            self.unread[match[0]] = str(error)
            return None

    def _items(self, bucket: str, prefix: str, fields: str = "items(name),nextPageToken") -> Iterator[Run]:
        url = f"{STORAGE}/storage/v1/b/{quote(bucket)}/o"
        return self._client.items(url, "items", {"prefix": prefix, "fields": fields})

    @contextmanager
    def _role(self, bucket: str = "", *, changes: bool = False) -> Iterator[None]:
        """Yield requests on the project, or on a bucket: a refusal of who is logged in names the role.

        `changes`: of something that viewers don't do.
        """
        try:
            yield
        except RequestError as error:
            failure = error.failure
            lacked = {
                grant.who: grant
                for grant in access.of_people(self._settings, everybody=True)
                if failure.about in grant.permissions and grant.what == bucket
                if not changes or grant.who == access.RUNNER
            }
            if failure.kind is not Kind.PERMISSION or not lacked:
                raise
            lists = {access.VIEWER: "pipeline:viewers", access.RUNNER: "pipeline:runners"}
            roles = " or ".join(
                f"{lacked[who].role} ({name})" for who, name in lists.items() if who in lacked
            )
            where = f"the bucket {bucket}" if bucket else "the project"
            up = up_command("pipeline", self._settings.environment)
            raise CommandError(f"{failure.message}\n    fix: {roles} on {where}, then {up}") from None


def _run_of(execution: dict[str, Any]) -> Run:
    """Return an execution as a run of which nothing else is known; without a name for none of ours."""
    try:
        argument = foreign.parse(execution.get("argument") or "{}")
        data = foreign.group(argument, "data")
    except ForeignError:
        argument, data = {}, {}
    swept = bool(argument.get("sweep"))
    folder = str(data.get("name", "")).removesuffix(paths.SUBMIT)
    error = execution.get("error") or {}
    return {
        "run": SWEEP if swept else f"r{data['generation']}" if "generation" in data else "",
        "raw": f"gs://{data['bucket']}/{folder}" if "bucket" in data else "",
        "execution": str(execution["name"]).rpartition("/")[2],
        "began": str(execution["startTime"]),
        "ended": execution.get("endTime"),
        "stage": "begin",
        "outcome": {"FAILED": "failed", "CANCELLED": "cancelled"}.get(str(execution["state"]), RUNNING),
        "why": _sentence(str(error.get("payload") or error.get("context") or "")),
    }


def _failed(executions: Sequence[Run], known: Sequence[Run]) -> list[Run]:
    """Return executions that failed, by run the newest, where the run's record doesn't have that."""
    recorded = {
        str(entry["run"]): (str(entry["execution"]), str(entry.get("ended") or "")) for entry in known
    }
    newest: dict[str, Run] = {}
    for entry in executions:
        newest.setdefault(str(entry["run"]), entry)
    failed = []
    for name, entry in newest.items():
        execution, ended = recorded.get(name, ("", ""))
        if (
            name
            and entry["outcome"] == "failed"
            and entry["execution"] != execution
            and entry["began"] > ended
        ):
            failed.append(entry)
    return failed


def _sentence(payload: str) -> str:
    """Return an execution's error as text: of a refused request Google's message and the URL."""
    try:
        error = json.loads(payload)
    except (ValueError, RecursionError):
        return payload
    if not isinstance(error, dict):
        return str(error)
    body = error.get("body")
    inner = body.get("error") if isinstance(body, dict) else None
    words = inner.get("message") if isinstance(inner, dict) else body if isinstance(body, str) else None
    return f"{words or error.get('message') or payload}{error.get('at') or ''}"


def missing(settings: Settings, message: str) -> str:
    """ "; it needs ROLE on …" for a refusal that lacks a grant; empty for anything else."""
    if "; it needs " in message:
        return ""
    role = access.lacking(settings, message)
    return f"; it needs {role}" if role else ""


def carried_by(settings: Settings) -> str:
    """Return a phrase: the grants by which events and the schedule start runs."""
    who = paths.account_id(settings, paths.TRIGGER)
    needed = [f"{grant.role} for {who}" for grant in access.grants(settings) if grant.who == who]
    agents = access.of_agents(settings)
    return f"that needs, on the project: {', '.join([*needed, *(agent.named for agent in agents)])}"
