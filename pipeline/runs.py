"""Runs as people see and command them, by their records, submissions and requests in Cloud Storage."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from fleet.google import user_and_host
from infra.core.layer import up_command
from infra.errors import CommandError, InputError
from infra.google.client import Client, RequestError, or_none
from infra.google.failures import Kind
from infra.layers.pipeline import access, paths
from infra.settings.schema import Settings
from pipeline import record
from pipeline.decide import rfc3339
from pipeline.record import GOOD, Run, Stage
from pipeline.store import CANCEL, OLDEST_S, RETRY, ConflictError, Request, Store, Submission
from settings_schema.foreign import ForeignError

LOGGING = "https://logging.googleapis.com/v2"
WAITING = "waiting"
_URL = re.compile(r"gs://([^/]+)/(?:((?s:.*))/)?")


class NoRunError(InputError):
    """There is no run of that name."""


class Runs:
    """Runs of one environment, for the user who is logged in.

    Attributes:
        unread: why a record isn't read, by its URL.
    """

    def __init__(self, settings: Settings, client: Client):
        self._settings, self._client = settings, client
        self._store = Store(client, settings)
        self.unread: dict[str, str] = {}

    def measure(self, url: str) -> tuple[str, int, int]:
        """Return the folder below the raw bucket, its number of objects, and their bytes.

        Raises CommandError for a folder elsewhere or an empty one.
        """
        raw, match = self._store.raw, _URL.fullmatch(url if url.endswith("/") else f"{url}/")
        if match is None or match[1] != raw:
            raise CommandError(
                f"{url}: is no folder of gs://{raw}, the raw bucket\n"
                f"    fix: gcloud storage cp -r FILES gs://{raw}/FOLDER/, then that folder"
            )
        folder = f"{match[2]}/" if match[2] else ""
        with self._role(raw):
            objects, size = self._store.measured(folder)
        if not size:
            raise CommandError(
                f"{url}: nothing is there\n    fix: gcloud storage cp FILES gs://{raw}/{folder}"
            )
        return folder, objects, size

    def require_ended(self, folder: str) -> None:
        """Raise CommandError if a submission of a folder hasn't ended: another one would be another batch."""
        with self._role(self._store.raw):
            known = self._store.submitted(folder)
        if known is None:
            return
        with self._role(self._store.controllers):
            stored = self._store.read(known.run)
        oldest = rfc3339(time.time() - OLDEST_S)
        if stored.run.running if stored else known.at >= oldest:
            which, state = f"{self._settings.environment} {known.run}", WAITING
            fix = f"tpu pipeline status {which}"
            if stored:
                state = f"at {stored.run.stage}"
                fix += f", or tpu pipeline cancel {which}, and then this command"
            problem = f"gs://{self._store.raw}/{folder} was submitted already, as {known.run}"
            raise CommandError(f"{problem}, which is {state}\n    fix: {fix}")

    def submit(self, folder: str) -> str:
        """Write `_SUBMIT` into a folder; return the run that its event or the next sweep starts.

        Raises CommandError if somebody else submits the folder at this moment.
        """
        mark = str(uuid.uuid4()).encode()  # by which a lost answer's generation is known
        try:
            with self._role(self._store.raw):
                return self._store.submit(folder, mark)
        except ConflictError:
            fix = f"tpu pipeline status {self._settings.environment}, which shows that run"
            raise CommandError(
                f"gs://{self._store.raw}/{folder}: somebody else has just submitted it\n    fix: {fix}"
            ) from None

    def all(self) -> list[Run]:
        """Return every run that has a record, the newest first."""
        with self._role(self._store.controllers):
            listed = self._store.records()
        self.unread = listed.unread
        return sorted((stored.run for stored in listed.runs), key=lambda run: run.began, reverse=True)

    def waiting(self) -> list[Submission]:
        """Return submissions without a record, the newest first; none if the raw bucket can't be listed."""
        with self._role(self._store.controllers):
            names = self._store.names()
        try:
            submissions = self._store.submissions()
        except RequestError as error:
            if error.failure.kind is Kind.PERMISSION:
                return []
            raise
        return [submission for submission in reversed(submissions) if submission.run not in names]

    def named(self, run: str) -> Run:
        """Return a run by its name. Raises NoRunError if there is none."""
        try:
            with self._role(self._store.controllers):
                stored = self._store.read(run) if re.fullmatch(record.RUN, run) else None
        except ForeignError as error:
            url = f"gs://{self._store.controllers}/{paths.record(run)}"
            raise CommandError(f"{url}: {record.explained(error, url)}") from None
        if stored is None:
            raise NoRunError(f"no run {run}\n    fix: tpu pipeline status {self._settings.environment}")
        return stored.run

    def batch(self, run: Run) -> str:
        """Return the state of the batch that a run waits for; empty if it waits for none."""
        if not run.running or run.stage is not Stage.PREPROCESS or not run.batch:
            return ""
        url = f"{paths.batches(self._settings)}/{run.batch}"
        with self._role():
            answer = or_none(lambda: self._client.json("GET", url))
        return f"{answer['state']} since {answer['stateTime']}" if answer else "not there yet"

    def refuse(self, run: Run, action: str) -> None:
        """Raise CommandError if a request about a run would change nothing."""
        environment = self._settings.environment
        if action == CANCEL and not run.running:
            fix = f"tpu pipeline status {environment} {run.run}"
            raise CommandError(f"{run.run} has ended: {run.outcome}\n    fix: {fix}")
        if action == RETRY and run.running:
            fix = f"tpu pipeline cancel {environment} {run.run} first, or wait"
            raise CommandError(f"{run.run} is running\n    fix: {fix}")
        if action == RETRY and run.outcome in GOOD:
            fix = f"tpu pipeline run {environment} {run.raw}, for a new one"
            raise CommandError(f"{run.run} has ended well\n    fix: {fix}")

    def request(self, run: Run, action: str) -> None:
        """Request an action on a run, which the next sweep applies. `refuse` comes first."""
        try:
            with self._role(self._store.controllers, changes=True):
                self._store.request(run.run, action, user_and_host())
        except ConflictError:
            fix = f"tpu pipeline status {self._settings.environment} {run.run}, which shows it"
            raise CommandError(f"{run.run}: another request isn't applied yet\n    fix: {fix}") from None

    def pending(self, run: str) -> Request | None:
        """Return the request about a run that the next sweep applies; None: none can be read."""
        try:
            return self._store.requested(run)
        except (RequestError, ForeignError):  # of viewers, who may not read requests
            return None

    def logs(self, run: Run) -> Iterator[str]:
        """Yield the output of a run's batch, the oldest line first."""
        query = {
            "resourceNames": [f"projects/{self._settings.project}"],
            "filter": f'resource.type="cloud_dataproc_batch" AND resource.labels.batch_id="{run.batch}" '
            'AND logName:"dataproc.googleapis.com"',  # no audit entries
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

    def applied_by(self) -> str:
        """Return what applies a request: the next sweep, and the grants that it needs."""
        grants = ", ".join(grant.named for grant in access.of_requests(self._settings))
        return f"applied by the next sweep; that needs {grants}"

    def why_waiting(self) -> str:
        """Return why a submission may wait: the grants by which events and sweeps reach the function."""
        grants = ", ".join(grant.named for grant in access.of_starts(self._settings))
        return f"neither its event nor the sweep has started it yet; that needs {grants}"

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
            raise CommandError(
                f"{failure.message}\n    fix: {_fix(self._settings, lacked, bucket)}"
            ) from None


def _fix(settings: Settings, lacked: dict[str, access.Grant], bucket: str) -> str:
    """Return the settings that grant one of these roles."""
    lists = {access.VIEWER: "pipeline:viewers", access.RUNNER: "pipeline:runners"}
    roles = " or ".join(f"{lacked[who].role} ({name})" for who, name in lists.items() if who in lacked)
    where = f"the bucket {bucket}" if bucket else "the project"
    return f"{roles} on {where}, then {up_command('pipeline', settings.environment)}"


def described(submission: Submission, why: str) -> dict[str, str]:
    """Return a submission without a record as `status` shows it."""
    return {
        "run": submission.run, "began": submission.at, "stage": "submitted", "outcome": WAITING,
        "raw": submission.raw, "why": why,
    }  # fmt: skip
