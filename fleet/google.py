"""Google's APIs for a fleet: a list call per zone, a listing of the bucket, single nodes only to change them.

projects.locations.nodes.list  https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes/list
objects.list                   https://cloud.google.com/storage/docs/json_api/v1/objects/list
"""

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import requests

from fleet.model import ObservedNode, View, WorkerStatus, ZoneView
from fleet.proof import Attested
from infra.google import client
from infra.google.client import Client, RequestError, or_none
from infra.google.failures import Failure, Kind, classify
from settings_schema import foreign
from settings_schema.foreign import ForeignError

T = TypeVar("T")

_PATIENCE_S = 20.0  # with a zone; a later answer belongs to the next observation
_AT_ONCE = 16  # objects of the controller's bucket
_OLDEST_S = 90.0  # age of such an answer, less than a list may have (fleet/decide.py)
# The fields that `_seen` reads; a whole node has 4 kB of metadata.
_NODE_FIELDS = "name,id,state,createTime,labels,health"


class Google(Client):
    """TPU nodes of a project, heartbeats in its bucket, and the controller's bucket, by the current login."""

    def __init__(
        self,
        project: str,
        bucket: str,
        controller_bucket: str = "",
        session: requests.Session | None = None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ):
        super().__init__(project, session, sleep)
        self.bucket, self.controller_bucket = bucket, controller_bucket or f"{bucket}-fleet"
        self._now = now
        # Answers of slow zones to an earlier observation, with its time.
        self._late: dict[str, tuple[float, Future[ZoneView]]] = {}

    def observe(self, zones: Sequence[str]) -> View:
        """Observe all zones and the bucket concurrently. A slow zone delays no other."""
        begun: dict[str, tuple[float, Future[ZoneView]]] = {}
        for zone in zones:
            late = self._late.pop(zone, None)
            of_use = late and (not late[1].done() or self._now() - late[0] < _OLDEST_S)
            begun[zone] = late if late and of_use else (self._now(), _begin(self.zone, zone))
        booted, working = _begin(self._objects, "boot/"), _begin(self._objects, "heartbeats/")
        wait([answer for _, answer in begun.values()], _PATIENCE_S)
        views = {}
        for zone, (at_s, answer) in begun.items():
            if answer.done():
                views[zone] = answer.result()
            else:
                self._late[zone] = at_s, answer
                views[zone] = ZoneView(None, Failure(Kind.UNKNOWN, f"no answer within {_PATIENCE_S:.0f} s"))
        try:
            statuses, unread = spoken([*booted.result(), *working.result()])
        except RequestError as error:
            return View(self._now(), views, None, error.failure)
        return View(self._now(), views, statuses, unread=unread)

    def zone(self, zone: str) -> ZoneView:
        """List the nodes of a zone."""
        try:
            return ZoneView(
                {observed.name: observed for observed in map(_seen, self.nodes(zone, _NODE_FIELDS))}
            )
        except RequestError as error:
            return ZoneView(None, error.failure)

    def all_nodes(self) -> list[ObservedNode]:
        """List the nodes of the project, in all zones. Raises RequestError, also if a zone is unreachable."""
        return [_seen(node) for node in self.nodes("-", _NODE_FIELDS)]

    def node(self, zone: str, name: str) -> ObservedNode | None:
        """Return a node, which a list may not show yet; None if missing. Raises RequestError."""
        result = or_none(lambda: self.json("GET", self._node(zone, name), {"fields": _NODE_FIELDS}))
        name = f"projects/{self.project}/locations/{zone}/nodes/{name}"
        return None if result is None else _seen({**result, "name": name})

    def create(self, zone: str, name: str, body: Mapping[str, Any]) -> str:
        """Begin a creation; return the operation's name. Raises RequestError: EXISTS for an existing node."""
        return str(self.json("POST", self.tpu(f"locations/{zone}/nodes"), {"nodeId": name}, body)["name"])

    def operation(self, name: str) -> tuple[bool, Failure | None]:
        """Return whether an operation is done, and its failure. Raises RequestError."""
        answer = self.json("GET", f"{client.tpu_api()}{name}")
        error = answer.get("error") or {}
        message = f"Error code {error.get('code')}, message: {error.get('message')}"
        return bool(answer.get("done")), classify(message) if error else None

    def delete(self, zone: str, name: str) -> None:
        """Begin a deletion; a missing node is fine. Raises RequestError."""
        or_none(lambda: self.send("DELETE", self._node(zone, name)))

    def update(self, zone: str, name: str, body: Mapping[str, Any]) -> None:
        """Begin an update of a node's metadata and labels. Raises RequestError."""
        mapping = {key: body[key] for key in ("metadata", "labels") if key in body}
        self.send("PATCH", self._node(zone, name), {"updateMask": ",".join(mapping)}, mapping)

    def attested(self, zone: str, name: str) -> list[Attested]:
        """Return statuses of a node's workers by their own metadata servers. Raises RequestError.

        It requests all attributes: a path that one worker lacks would lead to a 404.
        """
        answer = self.json("POST", f"{self._node(zone, name)}:getGuestAttributes", body={})
        return [_attested(item) for item in answer.get("guestAttributes") or ()]

    def read(self, name: str) -> tuple[str, int] | None:
        """Return text and generation of an object of the controller's bucket; None if missing.

        Raises RequestError.
        """
        url = client.object_url(self.controller_bucket, name)
        answer = or_none(lambda: self.send("GET", url, {"alt": "media"}))
        return None if answer is None else (answer.text, int(answer.headers.get("x-goog-generation", "0")))

    def read_all(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        """Return texts and generations of several objects, as `read` does. Raises RequestError."""
        if len(names) < 2:
            return [*map(self.read, names)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return [*pool.map(self.read, names)]

    def age_s(self, name: str) -> float | None:
        """Return the seconds since an object of that bucket was written, by Google's clock; None: unknown.

        Raises RequestError.
        """
        url = client.object_url(self.controller_bucket, name)
        answer = or_none(lambda: self.send("GET", url, {"fields": "updated"}))
        if answer is None:
            return None
        with suppress(ValueError, TypeError, KeyError):
            sent_s = parsedate_to_datetime(answer.headers["Date"]).timestamp()
            age_s = sent_s - _unix_s(str(answer.json()["updated"]))
            return age_s if -1.0 < age_s < sent_s else None
        return None

    def write(self, name: str, text: str, generation: int) -> int:
        """Replace a generation of an object of that bucket (0: create it); return the new generation.

        Raises:
            RequestError: its kind is INVALID if another process has written since.
        """
        return self.upload(self.controller_bucket, name, text.encode(), generation)

    def remove(self, name: str, generation: int) -> None:
        """Remove a generation of an object of that bucket. Raises RequestError."""
        query = {"ifGenerationMatch": str(generation)}
        self.send("DELETE", client.object_url(self.controller_bucket, name), query)

    def saved(self, prefix: str) -> dict[str, int]:
        """Return that bucket's objects by prefix, with their generations. Raises RequestError."""
        query = {"prefix": prefix, "fields": "items(name,generation),nextPageToken", "maxResults": "1000"}
        result = self.items(f"{client.bucket_url(self.controller_bucket)}/o", "items", query)
        return {str(item["name"]): int(item["generation"]) for item in result}

    def caller(self) -> dict[str, str]:
        """Return the owner of what this login adds: its account if Google tells, and user and host."""
        try:
            account = str(self.json("GET", client.USERINFO, tries=1).get("email") or "")
        except RequestError:  # a login without the scope for its address
            credentials = getattr(self._session, "credentials", None)
            account = str(getattr(credentials, "service_account_email", "") or "")
        return {"who": account, "from": user_and_host()}

    def is_there(self, name: str) -> bool:
        """Return whether the bucket has an object. Raises RequestError."""
        return self.exists(client.object_url(self.bucket, name))

    def _objects(self, prefix: str) -> list[dict[str, Any]]:
        fields = "items(name,updated,metadata),nextPageToken"
        query = {"prefix": prefix, "fields": fields, "maxResults": "1000"}
        with client.about(f"gs://{self.bucket}/{prefix}"):
            return list(self.items(f"{client.bucket_url(self.bucket)}/o", "items", query))

    def _node(self, zone: str, name: str) -> str:
        return self.tpu(f"locations/{zone}/nodes/{name}")


def user_and_host() -> str:
    """Return who runs this program, and where."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or "user"
    return f"{user}@{socket.gethostname()}"


def spoken(items: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[WorkerStatus]], dict[str, str]]:
    """Return worker statuses by node, one per object, and why others weren't read, by object.

    Any host or pod may write such objects; those with other names are skipped.
    """
    statuses: dict[str, list[WorkerStatus]] = {}
    unread: dict[str, str] = {}
    for item in items:
        name = str(item.get("name"))
        named = re.fullmatch(r"(boot|heartbeats)/([a-z0-9-]{1,63})/worker-[0-9]{1,9}(\.json)?", name)
        if not named:
            continue
        try:
            status = _status(named[1], item)
        except ForeignError as error:
            unread[name] = str(error)
        else:
            statuses.setdefault(named[2], []).append(status)
    return statuses, unread


def _status(kind: str, item: Mapping[str, Any]) -> WorkerStatus:
    """Parse the metadata of an object of the bucket. Raises ForeignError."""
    metadata, at_s = foreign.group(item, "metadata"), _unix_s(str(item.get("updated")))
    state, why = foreign.text(metadata, "state"), foreign.text(metadata, "why")
    if kind == "boot":
        return WorkerStatus(at_s, boot=state, stage=foreign.text(metadata, "stage"), why=why)
    began_s = foreign.number(metadata, "began_s") or 0.0
    return WorkerStatus(
        at_s,
        work=state,
        samples=foreign.count(metadata, "samples"),
        of_samples=foreign.count(metadata, "of_samples"),
        shards=foreign.count(metadata, "shards"),
        size_bytes=foreign.count(metadata, "size_bytes"),
        command=foreign.text(metadata, "command"),
        why=why,
        disk_full=metadata.get("disk") == "full",
        loss=foreign.number(metadata, "loss"),
        goodput=foreign.number(metadata, "goodput"),
        final=metadata.get("final") == "1",
        run=foreign.text(metadata, "run"),
        began_s=began_s,
        last_began_s=began_s,
    )


def _seen(node: Mapping[str, Any]) -> ObservedNode:
    _, _, _, zone, _, name = str(node["name"]).split("/")
    return ObservedNode(
        name,
        zone,
        str(node.get("state") or ""),
        str(node.get("id") or ""),
        _unix_s(str(node.get("createTime") or "")),
        node.get("labels") or {},
        str(node.get("health") or ""),
    )


def _attested(worker: Mapping[str, Any]) -> Attested:
    """Parse a worker's guest attributes, as the host writes them (docs/internals/architecture.md)."""
    items = (worker.get("queryValue") or {}).get("items") or ()
    values = {
        str(item.get("key")): str(item.get("value") or "{}")
        for item in items
        if item.get("namespace") == "tpu"
    }
    try:
        boot, job = (foreign.parse(values.get(key, "{}")) for key in ("boot", "job"))
        return Attested(
            foreign.text(boot, "state"), foreign.number(boot, "updated_s") or 0.0,
            foreign.text(job, "state"), foreign.number(job, "updated_s") or 0.0, job.get("final") is True,
        )  # fmt: skip
    except ForeignError as error:
        return Attested(unread=f"a guest attribute {error}")


def _begin(call: Callable[[str], T], what: str) -> Future[T]:
    """Call a function in a thread that doesn't keep the process alive."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call(what))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def _unix_s(message: str) -> float:
    with suppress(ValueError):
        return datetime.fromisoformat(message.replace("Z", "+00:00")).timestamp()
    return 0.0
