"""Requests to Google's REST APIs: one login, retries where they help, pages, and what a failure means.

Errors are as https://cloud.google.com/apis/design/errors says; pages as https://google.aip.dev/158.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

import google.auth
import requests
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from google.auth.transport.requests import AuthorizedSession
from google.oauth2.credentials import Credentials
from requests.adapters import HTTPAdapter

from google_facts.scopes import LOGIN
from infra.errors import InfraError
from infra.google.failures import Failure, Kind, classify

T = TypeVar("T")
Query = Mapping[str, str | Sequence[str]]
Body = Mapping[str, Any] | bytes | None
NO_QUERY: Query = MappingProxyType({})

USERINFO = "https://openidconnect.googleapis.com/v1/userinfo"
TPU, STORAGE = "https://tpu.googleapis.com", "https://storage.googleapis.com"
_TIMEOUT_S = (5.0, 30.0)  # to connect, and for an answer
NOBODY = "no Google credentials|no token"
"""Pattern of failures without any login, unlike those of an account without permission."""
_PASSING = re.compile(r'"code": *(429|5\d\d)')  # in an answer that impersonation quotes
_PASSING_KINDS = (Kind.TRANSIENT, Kind.RATE, Kind.UNKNOWN)  # without an answer, it is unknown
_TRIES, _PAUSE_S, _LONGEST_PAUSE_S = 3, 1.0, 30.0
_CONNECTIONS = 128  # kept to one API: more than a controller of all of v6e's zones has threads
_LOG = logging.getLogger(__name__)


class RequestError(InfraError):
    """A request that failed for good; holds what that means.

    `repeated`: it was sent more than once, so that a refusal may be for what its first sending did.
    """

    def __init__(self, failure: Failure, *, repeated: bool = False):
        super().__init__(str(failure))
        self.failure, self.repeated = failure, repeated


class Client:
    """APIs of one project, used as the account that is logged in; every method raises RequestError."""

    def __init__(
        self,
        project: str,
        session: requests.Session | None = None,
        sleep: Callable[[float], None] = time.sleep,
        tries: int = _TRIES,
    ):
        """Create a client that logs in with the first request, unless `session` is given.

        `tries`: of each request, at most.
        """
        self.project = project
        self._sleep, self._lock, self._tries = sleep, Lock(), tries
        self._login: requests.Session | Failure | None = session

    @property
    def _session(self) -> requests.Session:
        with self._lock:  # once for all threads, whatever it comes to
            self._login = self._login or _login()
        if isinstance(self._login, Failure):
            raise RequestError(self._login)
        return self._login

    def nodes(self, zone: str, fields: str) -> Iterator[dict[str, Any]]:
        """Yield every TPU node of a zone, or with `-` of all zones. An incomplete list raises.

        https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes/list
        """
        query = {"pageSize": "1000", "fields": f"nodes({fields}),nextPageToken,unreachable"}
        for page in self.pages(self.tpu(f"locations/{zone}/nodes"), query):
            if page.get("unreachable"):
                why = f"{', '.join(page['unreachable'])} can't be reached; the list isn't complete"
                raise RequestError(Failure(Kind.UNKNOWN, why))
            yield from page.get("nodes") or ()

    def tpu(self, path: str) -> str:
        """URL of something of this project's in the TPU API."""
        return f"{tpu_api()}projects/{self.project}/{path}"

    def exists(self, url: str) -> bool:
        """Return True if a URL's resource exists."""
        return or_none(lambda: self.send("GET", url)) is not None

    def content(self, url: str) -> bytes | None:
        """Return an object's content; None where there is none."""
        answer = or_none(lambda: self.send("GET", url, {"alt": "media"}))
        return None if answer is None else answer.content

    def blocks(self, url: str, size: int) -> Iterator[bytes]:
        """Yield the content of an object's present generation in blocks, each of which is retried alone."""
        known = self.json("GET", url, {"fields": "size,generation"})
        query = {"alt": "media", "generation": str(known["generation"])}
        for start in range(0, int(known["size"]), size):
            yield self.send("GET", url, query, start=start, size=size).content

    def items(self, url: str, key: str, query: Query) -> Iterator[dict[str, Any]]:
        """Yield a collection's items, which its pages hold as `key`."""
        for page in self.pages(url, query):
            yield from page.get(key) or ()

    def pages(self, url: str, query: Query) -> Iterator[dict[str, Any]]:
        """Yield all pages of a collection."""
        token: str | None = ""
        while token is not None:
            page = self.json("GET", url, {**query, **({"pageToken": token} if token else {})})
            yield page
            token = page.get("nextPageToken") or None

    def make(
        self, url: str, body: Mapping[str, Any], find: Callable[[], dict[str, Any] | None]
    ) -> dict[str, Any]:
        """Create what Google names, once: after a lost answer, `find` looks for it before another request.

        `find` goes by a mark in `body` that no other request has.
        """

        def request(attempt: int) -> dict[str, Any]:
            return (find() if attempt else None) or self.json("POST", url, body=body, tries=1)

        return self._tried(request, self._tries, f"POST {url}")

    def upload(self, bucket: str, name: str, content: bytes, generation: int) -> int:
        """Replace a generation of an object (0: create it); return the new one.

        Raises RequestError, of kind INVALID if somebody else has written since. After a lost answer the
        object has `content` already: that is the new generation.
        """
        url = f"{bucket_url(bucket)}/o".replace("/storage/v1/", "/upload/storage/v1/")
        query = {"uploadType": "media", "name": name, "ifGenerationMatch": str(generation)}
        try:
            return int(self.json("POST", url, query, content)["generation"])
        except RequestError as error:
            if not error.repeated:
                raise
            try:
                stored = self.send("GET", object_url(bucket, name), {"alt": "media"}, tries=1)
            except RequestError:
                raise error from None
            if stored.content != content:
                raise
            return int(stored.headers["x-goog-generation"])

    def json(
        self, method: str, url: str, query: Query = NO_QUERY, body: Body = None, tries: int = 0
    ) -> dict[str, Any]:
        """Return an answer that must be a JSON object."""
        answer = self.send(method, url, query, body, tries)
        try:
            content = answer.json()
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise RequestError(Failure(Kind.TRANSIENT, f"no JSON object: {answer.text[:100]!r}"))
        return content

    def send(
        self, method: str, url: str, query: Query = NO_QUERY, body: Body = None, tries: int = 0,
        start: int = 0, size: int = 0,
    ) -> requests.Response:  # fmt: skip
        """Send a request; retry after transient failures: it must be one that may be repeated.

        With `size`, only so many bytes of the content are requested, from `start` on. Without `tries` it is
        sent as often as the client may.
        """
        content, headers = body, {"Range": f"bytes={start}-{start + size - 1}"} if size else {}
        if isinstance(body, Mapping):
            content, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        if "/billingAccounts/" in url:  # of no project, which a person's requests must count for
            headers["X-Goog-User-Project"] = self.project

        def request(_: int) -> requests.Response:
            try:
                answer = self._session.request(
                    method, url, params=query, data=content, headers=headers, timeout=_TIMEOUT_S
                )
            except RefreshError as error:
                raise RequestError(_no_token(error)) from None
            except (requests.RequestException, GoogleAuthError) as error:
                raise RequestError(classify(f"{method} {url}: connection: {error}")) from None
            if answer.ok:
                return answer
            raise RequestError(classify(_words(answer), answer.status_code, _retry_after_s(answer)))

        return self._tried(request, tries or self._tries, f"{method} {url}")

    def _tried(self, request: Callable[[int], T], tries: int, what: str) -> T:
        """Return the answer of a request, which gets the number of its attempt; repeat what may pass."""
        for attempt in range(tries):
            try:
                return request(attempt)
            except RequestError as error:
                failure, repeated = error.failure, error.repeated or attempt > 0
            pause_s = failure.retry_after_s or _PAUSE_S * 2 ** (attempt + 1)
            # After a longer pause a controller asks again, and continues with the rest until then.
            passes = failure.kind in _PASSING_KINDS and pause_s <= _LONGEST_PAUSE_S
            if not passes or attempt + 1 == tries:
                break
            _LOG.info("%s: again in %.0f s: %s", what, pause_s, failure.message)
            self._sleep(pause_s)
        raise RequestError(failure, repeated=repeated)


def or_none(request: Callable[[], T]) -> T | None:
    """Return a request's answer; None for a missing resource. Raises RequestError for other failures."""
    try:
        return request()
    except RequestError as error:
        if error.failure.kind is not Kind.MISSING:
            raise
        return None


def permissions_held(client: Client, resource: str, permissions: Iterable[str]) -> set[str]:
    """Return those of some permissions that the login has on a resource, given by its URL.

    https://cloud.google.com/storage/docs/json_api/v1/buckets/testIamPermissions
    """
    desired = {"permissions": sorted(permissions)}
    if resource.startswith(bucket_url("")):
        answer = client.json("GET", f"{resource}/iam/testPermissions", desired)
    else:
        answer = client.json("POST", f"{resource}:testIamPermissions", body=desired)
    return set(answer.get("permissions") or ())


def member(client: Client) -> str:
    """Return the login as IAM's policies name it; "" where it doesn't say whose it is."""
    try:
        email = str(client.json("GET", USERINFO).get("email") or "")
    except RequestError:
        return ""
    kind = "serviceAccount" if email.endswith(".gserviceaccount.com") else "user"
    return f"{kind}:{email}" if email else ""


@contextmanager
def about(url: str) -> Iterator[None]:
    """Add a URL to the failures of requests: refusals of several services name no resource."""
    try:
        yield
    except RequestError as error:
        failure = replace(error.failure, message=f"{error.failure.message} ({url})")
        raise RequestError(failure, repeated=error.repeated) from None


def tpu_api() -> str:
    """Return the base URL of the TPU API; the variable of Pulumi's provider overrides it."""
    return os.environ.get("GOOGLE_TPU_V2_CUSTOM_ENDPOINT", f"{TPU}/v2/")


def bucket_url(bucket: str) -> str:
    """URL of a bucket; the variable of Pulumi's provider overrides that of the API."""
    return f"{os.environ.get('GOOGLE_STORAGE_CUSTOM_ENDPOINT', f'{STORAGE}/storage/v1/')}b/{bucket}"


def object_url(bucket: str, name: str) -> str:
    """URL of an object: https://cloud.google.com/storage/docs/json_api/v1/objects"""
    return f"{bucket_url(bucket)}/o/{quote(name, safe='')}"


def _login() -> requests.Session | Failure:
    """Log in like Pulumi's provider: by the token in its variable, else by default credentials."""
    try:
        token = os.environ.get("GOOGLE_OAUTH_ACCESS_TOKEN")
        credentials = Credentials(token) if token else google.auth.default(scopes=LOGIN)[0]  # type: ignore[no-untyped-call]
    except Exception as error:  # what a file that is no login raises isn't GoogleAuthError alone
        return Failure(Kind.LOGIN, f"no Google credentials ({error})")
    session: requests.Session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    return session


def _no_token(error: RefreshError) -> Failure:
    """Classify a failure to get a token; the other API's own words are not interpreted."""
    # The metadata server of a VM, or the API that impersonates, didn't answer: that passes.
    passing = error.retryable or isinstance(error.__cause__, TransportError) or _PASSING.search(str(error))
    return Failure(Kind.TRANSIENT if passing else Kind.LOGIN, f"no token: {error}")


def _words(answer: requests.Response) -> str:
    """Google's sentence, with the reasons that programs are meant to read."""
    try:
        content = answer.json()
        if content.get("kind") == "Status":  # of a cluster's control plane
            return str(content["message"])
        error = content["error"]
        reasons = [
            str(detail.get("reason") or "") for detail in error.get("details") or error.get("errors") or ()
        ]
        return " ".join([str(error["message"]), *filter(None, reasons)])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"HTTP {answer.status_code}: {answer.text[:200]}"


def _retry_after_s(answer: requests.Response) -> float | None:
    output = answer.headers.get("Retry-After", "")
    return float(output) if re.fullmatch("[0-9]{1,9}", output) else None
