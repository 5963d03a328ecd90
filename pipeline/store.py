"""Objects of the pipeline in Cloud Storage: records of runs, people's requests, submissions, complete shards.

Refusals of Cloud Storage name no bucket, so each failure gets the URL of what was requested.
"""

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from infra.google.client import Client, RequestError, about, bucket_url, object_url, or_none
from infra.google.failures import Kind
from infra.layers.pipeline import paths
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.storage.names import controller_bucket
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from pipeline import record
from pipeline.record import MOST_OBJECTS, Run
from settings_schema import foreign
from settings_schema.foreign import ForeignError

CANCEL, RETRY = "cancel", "retry"
OLDEST_S = 7 * 86400.0
"""Age from which a submission without a record isn't started: it is of a time before this pipeline."""
_AT_ONCE = 32
_RECORD = re.compile(rf"{paths.RECORDS}/({record.RUN})/run\.json")
_REQUEST = re.compile(rf"{paths.REQUESTS}/({record.RUN})\.json")
_SUBMITTED = re.compile(rf"((?s:.*)/)?{paths.SUBMIT}")


class ConflictError(Exception):
    """Another process has written the object since it was read."""


@dataclass(frozen=True)
class Stored:
    """A record, with the generation that was read."""

    run: Run
    generation: int


@dataclass(frozen=True)
class Request:
    """A person's request.

    Attributes:
        run: name of the run.
        action: CANCEL or RETRY.
        by: who wrote it, as that program says.
        generation: of its object.
    """

    run: str
    action: str
    by: str
    generation: int


@dataclass(frozen=True)
class Submission:
    """A submitted folder of the raw bucket.

    Attributes:
        run: name of its run.
        raw: URL of the folder.
        at: time of the submission.
    """

    run: str
    raw: str
    at: str


@dataclass
class Listed:
    """Records of a bucket.

    Attributes:
        runs: those that were read.
        names: names of all, read or not.
        unread: by object, why a record wasn't read.
    """

    runs: list[Stored] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)


class Store:
    """Objects of one environment's pipeline; every method raises RequestError."""

    def __init__(self, client: Client, settings: Settings):
        self._client = client
        self.controllers = controller_bucket(settings)
        self.checkpoints = settings[StorageSettings].bucket_name
        self.raw = settings[PipelineSettings].raw_bucket_name
        self._ended: dict[str, int] = {}  # generations of records that have been read and have an outcome

    # Records

    def records(self, *, unfinished: bool = False) -> Listed:
        """Return the records; with `unfinished` without those that are known to have an outcome."""
        items = self._listed()
        listed = Listed(names={*items})
        wanted = {
            name: item
            for name, item in items.items()
            if not unfinished or self._ended.get(name) != int(item["generation"])
        }
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for name, stored in zip(wanted, pool.map(self._read_item, wanted, wanted.values()), strict=True):
                if isinstance(stored, ForeignError):
                    url = f"gs://{self.controllers}/{paths.record(name)}"
                    listed.unread[url] = record.explained(stored, url)
                elif stored and not (unfinished and not stored.run.running):
                    listed.runs.append(stored)
        return listed

    def names(self) -> set[str]:
        """Return the names of all runs that have a record."""
        return {*self._listed()}

    def _listed(self) -> dict[str, Mapping[str, Any]]:
        items = self._items(self.controllers, {"prefix": f"{paths.RECORDS}/r"}, "name,size,generation")
        return {match[1]: item for item in items if (match := _RECORD.fullmatch(str(item["name"])))}

    def _read_item(self, name: str, item: Mapping[str, Any]) -> Stored | ForeignError | None:
        """Return a listed record, or why it isn't one; None if it was removed since."""
        try:
            foreign.require_size(int(item.get("size", 0)))
            return self.read(name)
        except ForeignError as error:
            return error

    def read(self, run: str) -> Stored | None:
        """Return the record of a run, None if missing. Raises ForeignError if it isn't a record."""
        answer = self._content(self.controllers, paths.record(run))
        if answer is None:
            return None
        return self._noted(Stored(record.parse(run, answer[0]), answer[1]))

    def write(self, run: Run, generation: int) -> Stored:
        """Replace a generation of a record (0: create it). Raises ConflictError if another wrote since."""
        name = paths.record(run.run)
        return self._noted(Stored(run, self._upload(self.controllers, name, record.text(run), generation)))

    def _noted(self, stored: Stored) -> Stored:
        """Note the generation of a record with an outcome, which isn't read again for a sweep."""
        if not stored.run.running:
            self._ended[stored.run.run] = stored.generation
        return stored

    # Requests of people

    def requests(self) -> tuple[list[Request], dict[str, str]]:
        """Return people's requests, and by object why others aren't read."""
        requests, unread = list[Request](), dict[str, str]()
        for item in self._items(self.controllers, {"prefix": f"{paths.REQUESTS}/r"}, "name,size"):
            name = str(item["name"])
            if not (match := _REQUEST.fullmatch(name)):
                continue
            try:
                foreign.require_size(int(item.get("size", 0)))
                if request := self.requested(match[1]):
                    requests.append(request)
            except ForeignError as error:
                url = f"gs://{self.controllers}/{name}"
                unread[url] = record.explained(error, url)
        return requests, unread

    def requested(self, run: str) -> Request | None:
        """Return the request about a run. Raises ForeignError if it isn't one."""
        answer = self._content(self.controllers, paths.request(run))
        if answer is None:
            return None
        parsed = foreign.parse(answer[0])
        action = foreign.text(parsed, "action", f"{CANCEL}|{RETRY}")
        if not action:
            raise ForeignError("lacks action")
        return Request(
            run, action, foreign.text(parsed, "by", r"[^\x00-\x1f\x7f]{1,200}") or "somebody", answer[1]
        )

    def request(self, run: str, action: str, by: str) -> None:
        """Write a request. Raises ConflictError if there is one about this run."""
        self._upload(self.controllers, paths.request(run), json.dumps({"action": action, "by": by}), 0)

    def drop(self, request: Request) -> None:
        """Delete a request, unless another one has replaced it."""
        name = paths.request(request.run)
        query = {"ifGenerationMatch": str(request.generation)}
        with about(f"gs://{self.controllers}/{name}"):
            try:
                or_none(lambda: self._client.send("DELETE", object_url(self.controllers, name), query))
            except RequestError as error:
                if error.failure.kind is not Kind.INVALID:
                    raise

    # Text and shards

    def submissions(self) -> list[Submission]:
        """Return every submission, the oldest first."""
        query = {"matchGlob": f"**{paths.SUBMIT}"}
        items = self._items(self.raw, query, "name,generation,updated")
        submissions = [
            self.submission(str(item["name"]), str(item["generation"]), str(item["updated"]))
            for item in items
        ]
        return sorted(filter(None, submissions), key=lambda submission: (submission.at, submission.run))

    def submission(self, name: str, generation: str, at: str = "") -> Submission | None:
        """Return the submission that an object of the raw bucket is; None for other objects."""
        match = _SUBMITTED.fullmatch(name)
        if match is None or not re.fullmatch(record.RUN, f"r{generation}"):
            return None
        return Submission(f"r{generation}", f"gs://{self.raw}/{match[1] or ''}", at)

    def measured(self, folder: str) -> tuple[int, int]:
        """Return the number of objects and bytes of text in a folder of the raw bucket.

        It counts one object more than MOST_OBJECTS at most.
        """
        objects = size = 0
        for item in self._items(self.raw, {"prefix": folder}, "name,size"):
            if not _SUBMITTED.fullmatch(str(item["name"])):
                objects, size = objects + 1, size + int(item["size"])
            if objects > MOST_OBJECTS:
                break
        return objects, size

    def submit(self, folder: str, mark: bytes) -> str:
        """Write `_SUBMIT` into a folder; return its run. Raises ConflictError if another does it now."""
        known = self.submitted(folder)
        generation = int(known.run.removeprefix("r")) if known else 0
        return f"r{self._upload(self.raw, f'{folder}{paths.SUBMIT}', mark.decode(), generation)}"

    def submitted(self, folder: str) -> Submission | None:
        """Return the last submission of a folder; None if there is none."""
        name = f"{folder}{paths.SUBMIT}"
        url, query = object_url(self.raw, name), {"fields": "generation,updated"}
        with about(f"gs://{self.raw}/{name}"):
            known = or_none(lambda: self._client.json("GET", url, query))
        if known is None:
            return None
        return Submission(
            f"r{known['generation']}", f"gs://{self.raw}/{folder}", str(known.get("updated", ""))
        )

    def ready(self, run: str) -> str:
        """Return the newest folder of a run's complete shards; empty if there is none."""
        query = {"matchGlob": f"{paths.TOKENS}/{run}/*/_READY"}
        times = {
            name: str(item["updated"])
            for item in self._items(self.checkpoints, query, "name,updated", folder=f"{paths.TOKENS}/{run}/")
            if re.fullmatch(record.FOLDER, name := str(item["name"]).removesuffix("/_READY"))
        }
        return max(times, key=lambda name: times[name], default="")

    # Requests to Cloud Storage

    def _items(
        self, bucket: str, query: Mapping[str, str], fields: str, folder: str = ""
    ) -> Iterator[Mapping[str, Any]]:
        url = f"{bucket_url(bucket)}/o"
        with about(f"gs://{bucket}/{folder or query.get('prefix', '')}"):
            yield from self._client.items(url, "items", {**query, "fields": f"items({fields}),nextPageToken"})

    def _content(self, bucket: str, name: str) -> tuple[bytes, int] | None:
        """Return content and generation of an object; None if missing."""
        with about(f"gs://{bucket}/{name}"):
            answer = or_none(lambda: self._client.send("GET", object_url(bucket, name), {"alt": "media"}))
        return None if answer is None else (answer.content, int(answer.headers["x-goog-generation"]))

    def _upload(self, bucket: str, name: str, text: str, generation: int) -> int:
        try:
            with about(f"gs://{bucket}/{name}"):
                return self._client.upload(bucket, name, text.encode(), generation)
        except RequestError as error:
            if error.failure.kind is Kind.INVALID:
                raise ConflictError(f"gs://{bucket}/{name}: changed concurrently") from None
            raise
