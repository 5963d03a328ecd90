"""What a fleet asks Google: one list call a zone, one listing of the bucket, and a node only to change it.

projects.locations.nodes.list  https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes/list
objects.list                   https://cloud.google.com/storage/docs/json_api/v1/objects/list
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import google.auth
import requests
from google.auth.exceptions import GoogleAuthError, RefreshError
from google.auth.transport.requests import AuthorizedSession

from fleet.errors import FleetError
from fleet.failures import Failure, Kind, classify
from fleet.proof import Attested
from fleet.state import Seen, View, Word, ZoneView

T = TypeVar("T")

TPU, STORAGE = "https://tpu.googleapis.com", "https://storage.googleapis.com"
_TIMEOUT_S = (5.0, 30.0)  # to connect, and for an answer
_TRIES, _PAUSE_S, _LONGEST_PAUSE_S = 3, 1.0, 30.0
_PAGE = 1000
_PATIENCE_S = 20.0  # with a zone that doesn't answer; what it says later is of the next look
_OLDEST_S = 90.0  # of such an answer, which is younger than a list may be (fleet/decide.py)
_JSON = {"Content-Type": "application/json"}
# Of a node what `_seen` reads, and no more: each carries its start-up script, 36 kB.
_ONE_NODE_FIELDS = "name,id,state,createTime,labels,health"
_NODE_FIELDS = f"nodes({_ONE_NODE_FIELDS}),nextPageToken,unreachable"


class AskedError(Exception):
    """A request that failed for good; holds what that means."""

    def __init__(self, failure: Failure):
        super().__init__(str(failure))
        self.failure = failure


class Google:
    """One project's TPU nodes, one bucket's heartbeats and the controller's bucket, as who is logged in."""

    def __init__(
        self,
        project: str,
        bucket: str,
        controller_bucket: str = "",
        session: requests.Session | None = None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.project, self.bucket = project, bucket
        self.controller_bucket = controller_bucket or f"{bucket}-fleet"
        self._session = session or _login()
        self._now, self._sleep = now, sleep
        # Zones that hadn't answered an earlier look, and when that was.
        self._late: dict[str, tuple[float, Future[ZoneView]]] = {}

    def look(self, zones: Sequence[str]) -> View:
        """Everything, at once: all zones and the bucket beside one another. A slow zone delays no other."""
        begun: dict[str, tuple[float, Future[ZoneView]]] = {}
        for zone in zones:
            late = self._late.pop(zone, None)
            of_use = late and (not late[1].done() or self._now() - late[0] < _OLDEST_S)
            begun[zone] = late if late and of_use else (self._now(), _begin(self.zone, zone))
        booted, working = _begin(self._objects, "boot/"), _begin(self._objects, "words/")
        wait([answer for _, answer in begun.values()], _PATIENCE_S)
        views = {}
        for zone, (at_s, answer) in begun.items():
            if answer.done():
                views[zone] = answer.result()
            else:
                self._late[zone] = at_s, answer
                views[zone] = ZoneView(None, Failure(Kind.UNKNOWN, f"no answer within {_PATIENCE_S:.0f} s"))
        try:
            words = spoken([*booted.result(), *working.result()])
        except AskedError as error:
            return View(self._now(), views, None, error.failure)
        return View(self._now(), views, words)

    def zone(self, zone: str) -> ZoneView:
        """Every node of a zone."""
        try:
            return ZoneView({node.name: node for node in self._nodes(zone)})
        except AskedError as error:
            return ZoneView(None, error.failure)

    def _nodes(self, zone: str) -> Iterator[Seen]:
        url = f"{TPU}/v2/projects/{self.project}/locations/{zone}/nodes"
        for page in self._pages(url, {"pageSize": str(_PAGE), "fields": _NODE_FIELDS}):
            if page.get("unreachable"):
                said = f"{', '.join(page['unreachable'])} can't be reached; the list isn't complete"
                raise AskedError(Failure(Kind.UNKNOWN, said))
            yield from map(_seen, page.get("nodes") or ())

    def node(self, zone: str, name: str) -> Seen | None:
        """A node as it is now, which a list may not show yet; None where there is none. Raises AskedError."""
        try:
            answer = self._ask("GET", self._node_url(zone, name), {"fields": _ONE_NODE_FIELDS})
        except AskedError as error:
            if error.failure.kind is Kind.MISSING:
                return None
            raise
        return _seen({**self._json(answer), "name": f"projects/{self.project}/locations/{zone}/nodes/{name}"})

    def create(self, zone: str, name: str, body: Mapping[str, Any]) -> str:
        """Asks for a node; the operation's name. Raises AskedError, of kind EXISTS where there is one."""
        url = f"{TPU}/v2/projects/{self.project}/locations/{zone}/nodes"
        content = json.dumps(body).encode()
        answer = self._json(self._ask("POST", url, {"nodeId": name}, content, _JSON))
        return str(answer["name"])

    def operation(self, name: str) -> tuple[bool, Failure | None]:
        """Whether an operation is over, and what it ended with, if it failed. Raises AskedError."""
        answer = self._json(self._ask("GET", f"{TPU}/v2/{name}", {}))
        error = answer.get("error") or {}
        message = f"Error code {error.get('code')}, message: {error.get('message')}"
        return bool(answer.get("done")), classify(message) if error else None

    def delete(self, zone: str, name: str) -> None:
        """Asks for a node's deletion; what is gone already is as good. Raises AskedError."""
        try:
            self._ask("DELETE", self._node_url(zone, name), {})
        except AskedError as error:
            if error.failure.kind is not Kind.MISSING:
                raise

    def update(self, zone: str, name: str, body: Mapping[str, Any]) -> None:
        """Gives a node what the body has of metadata and labels. Raises AskedError."""
        some = {key: body[key] for key in ("metadata", "labels") if key in body}
        url = self._node_url(zone, name)
        self._ask("PATCH", url, {"updateMask": ",".join(some)}, json.dumps(some).encode(), _JSON)

    def attested(self, zone: str, name: str) -> list[Attested]:
        """What a node's workers said through their own metadata servers. Raises AskedError.

        All attributes are asked for: a path that one worker lacks would be answered by 404.
        """
        url = f"{self._node_url(zone, name)}:getGuestAttributes"
        answer = self._json(self._ask("POST", url, {}, b"{}", _JSON))
        return [_attested(one) for one in answer.get("guestAttributes") or ()]

    def everywhere(self) -> list[Seen]:
        """Every node of the project, in whatever zone. Raises AskedError, where a zone isn't reached too."""
        return list(self._nodes("-"))

    def read(self, name: str) -> tuple[str, int] | None:
        """An object of the controller's bucket, text and generation; None where there is none.

        Raises AskedError.
        """
        url = f"{STORAGE}/storage/v1/b/{self.controller_bucket}/o/{quote(name, safe='')}"
        try:
            answer = self._ask("GET", url, {"alt": "media"})
        except AskedError as error:
            if error.failure.kind is Kind.MISSING:
                return None
            raise
        return answer.text, int(answer.headers.get("x-goog-generation", "0"))

    def write(self, name: str, text: str, generation: int) -> int:
        """Replaces that generation of an object of that bucket (0: creates it); the new one's number.

        Raises:
            AskedError: its kind is INVALID where somebody else has written it since.
        """
        url = f"{STORAGE}/upload/storage/v1/b/{self.controller_bucket}/o"
        wish = {"uploadType": "media", "name": name, "ifGenerationMatch": str(generation)}
        return int(self._ask("POST", url, wish, text.encode()).json()["generation"])

    def is_there(self, name: str) -> bool:
        """Whether the bucket has an object. Raises AskedError."""
        return self.exists(f"{STORAGE}/storage/v1/b/{self.bucket}/o/{quote(name, safe='')}")

    def exists(self, url: str) -> bool:
        """Whether Google knows what a URL names. Raises AskedError."""
        try:
            self._ask("GET", url, {})
        except AskedError as error:
            if error.failure.kind is Kind.MISSING:
                return False
            raise
        return True

    def _objects(self, prefix: str) -> list[Mapping[str, Any]]:
        url = f"{STORAGE}/storage/v1/b/{self.bucket}/o"
        fields = "items(name,updated,metadata),nextPageToken"
        wish = {"prefix": prefix, "fields": fields, "maxResults": str(_PAGE)}
        return [item for page in self._pages(url, wish) for item in page.get("items") or ()]

    def _pages(self, url: str, wish: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            answer = self._ask("GET", url, {**wish, **({"pageToken": token} if token else {})})
            page = self._json(answer)
            token = page.get("nextPageToken") or ""
            yield page
            if not token:
                return

    def _node_url(self, zone: str, name: str) -> str:
        return f"{TPU}/v2/projects/{self.project}/locations/{zone}/nodes/{name}"

    def _json(self, answer: requests.Response) -> dict[str, Any]:
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise AskedError(Failure(Kind.TRANSIENT, f"no JSON object: {answer.text[:100]!r}"))
        return found

    def _ask(
        self,
        method: str,
        url: str,
        wish: Mapping[str, str],
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """An answer; asked again where that may help, as long as the request may be repeated."""
        failure = Failure(Kind.UNKNOWN, "nobody was asked")
        for attempt in range(_TRIES):
            if attempt:
                pause_s = failure.retry_after_s or _PAUSE_S * 2**attempt
                if pause_s > _LONGEST_PAUSE_S:
                    break  # who looks again and again asks later, and goes on with the rest until then
                self._sleep(pause_s)
            try:
                answer = self._session.request(
                    method, url, params=wish, data=content, headers=headers, timeout=_TIMEOUT_S
                )
            except RefreshError as error:
                raise AskedError(classify(f"invalid_grant: {error}", 401)) from None
            except (requests.RequestException, GoogleAuthError) as error:
                failure = classify(f"{method} {url}: connection: {error}")
                continue
            if answer.ok:
                return answer
            failure = classify(_words(answer), answer.status_code, _retry_after_s(answer))
            if failure.kind not in (Kind.TRANSIENT, Kind.RATE):
                break
        raise AskedError(failure)


def spoken(items: Sequence[Mapping[str, Any]]) -> dict[str, list[Word]]:
    """By node: a word for each object. Hosts that never learnt their number, and folders, say nothing."""
    found: dict[str, list[Word]] = {}
    for item in items:
        named = re.fullmatch(r"(boot|words)/([^/]+)/worker-\d+(\.json)?", str(item.get("name")))
        if not named:
            continue
        said, at_s = item.get("metadata") or {}, _unix_s(str(item.get("updated")))
        state, why = str(said.get("state", "")), str(said.get("why", ""))
        if named[1] == "boot":
            word = Word(at_s, boot=state, stage=said.get("stage", ""), why=why)
        else:
            word = Word(
                at_s,
                work=state,
                samples=_count(said, "samples"),
                of_samples=_count(said, "of_samples"),
                shards=_count(said, "shards"),
                size_bytes=_count(said, "size_bytes"),
                command=str(said.get("command", "")),
                why=why,
                disk_full=said.get("disk") == "full",
            )
        found.setdefault(named[2], []).append(word)
    return found


def _seen(node: Mapping[str, Any]) -> Seen:
    _, _, _, zone, _, name = str(node["name"]).split("/")
    return Seen(
        name,
        zone,
        str(node.get("state") or ""),
        str(node.get("id") or ""),
        _unix_s(str(node.get("createTime") or "")),
        node.get("labels") or {},
        str(node.get("health") or ""),
    )


def _attested(worker: Mapping[str, Any]) -> Attested:
    """One worker's guest attributes, as boot script and job write them (docs/architecture.md)."""
    items = (worker.get("queryValue") or {}).get("items") or ()
    ours = (one for one in items if one.get("namespace") == "tpu")
    values = {str(one.get("key")): _object(str(one.get("value") or "")) for one in ours}
    boot, job = values.get("boot", {}), values.get("job", {})
    return Attested(
        str(boot.get("state") or ""), _number(boot.get("updated_s")), str(job.get("state") or ""),
        _number(job.get("updated_s")),
    )  # fmt: skip


def _object(text: str) -> Mapping[str, Any]:
    with suppress(ValueError):
        found = json.loads(text)
        return found if isinstance(found, dict) else {}
    return {}


def _number(said: object) -> float:
    with suppress(ValueError, TypeError):
        return float(str(said))
    return 0.0


def _begin(ask: Callable[[str], T], what: str) -> Future[T]:
    """Asks in a thread that keeps no process from ending."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask(what))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def _login() -> requests.Session:
    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except GoogleAuthError as error:
        raise FleetError(
            f"no Google credentials ({error})\n    fix: gcloud auth application-default login"
        ) from None
    session: requests.Session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
    return session


def _words(answer: requests.Response) -> str:
    """Google's sentence, with the reasons that programs are meant to read."""
    try:
        error = answer.json()["error"]
        reasons = [str(one.get("reason") or "") for one in error.get("details") or error.get("errors") or ()]
        return " ".join([str(error["message"]), *filter(None, reasons)])
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"HTTP {answer.status_code}: {answer.text[:200]}"


def _retry_after_s(answer: requests.Response) -> float | None:
    said = answer.headers.get("Retry-After", "")
    return float(said) if said.isdigit() else None


def _unix_s(said: str) -> float:
    try:
        return datetime.fromisoformat(said.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def _count(said: Mapping[str, Any], key: str) -> int:
    text = str(said.get(key, ""))
    return int(text) if text.isdigit() else 0
