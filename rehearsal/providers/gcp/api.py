"""Requests to Google's APIs: endpoints, credentials, retries, and errors in Google's words."""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import google.auth
import google.auth.credentials
import google.auth.exceptions
import google.oauth2.credentials
import requests
from google.auth.transport.requests import Request as AuthRequest

from rehearsal.providers.gcp.retries import Lost, is_retried, why_lost
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.table import Service
from rehearsal.providers.plugin.errors import ProviderApiError, StandInError

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 10.0
DEFAULT_TIMEOUT_S = 1200.0  # the official provider's, for most types
HTTP_TIMEOUT_S = 120.0

Query = Mapping[str, str | Iterable[str]]


class Client:
    """Connection of a provider to Google; safe to use from several threads."""

    def __init__(self, settings: Settings, *, first_backoff_s: float = FIRST_BACKOFF_S) -> None:
        self._settings = settings
        self._first_backoff_s = first_backoff_s
        self._local = threading.local()
        # Hosts that have answered: their connection is taken to be one that was used before. On such a one
        # Go's HTTP client sends a GET once more, at once, when it ends without an answer.
        self._answered: set[str] = set()
        self._auth_lock = threading.Lock()
        self._credentials: google.auth.credentials.Credentials | None = None
        self.cancelled = threading.Event()

    def send(
        self,
        service: Service,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        content_type: str = "application/json",
        library: bool = False,
        deadline: float | None = None,
    ) -> Any:
        """Send a request and return the answer's JSON (None if there is none).

        `path` stands under the service's base, or under its origin if it begins with a slash. `body`: bytes
        as they are, anything else as JSON. `library`: as Google's Go client library would, with
        `prettyPrint=false`. `deadline`: end of retries, on the monotonic clock. Raises ProviderApiError.
        """
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        url = self._url(
            service, path, {"alt": "json", **({"prettyPrint": "false"} if library else {}), **(query or {})}
        )
        deadline = time.monotonic() + DEFAULT_TIMEOUT_S if deadline is None else deadline
        backoff_s = self._first_backoff_s
        while True:
            response, lost = self._try(method, url, data, content_type)
            if response is not None and not is_retried(response):
                return _answer(response)
            if lost is not None and not lost.again:
                raise ProviderApiError(0, f'{method.capitalize()} "{url}": {lost.words}')
            if time.monotonic() + backoff_s > deadline:
                if response is not None:
                    return _answer(response)
                raise ProviderApiError(
                    0, f'{method.capitalize()} "{url}": {lost.words if lost else "no answer"}'
                )
            self.pause(backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    def pause(self, seconds: float) -> None:
        """Sleep; StandInError if the engine cancels."""
        if self.cancelled.wait(seconds):
            raise StandInError("interrupted: cancelled by the engine")

    def _url(self, service: Service, path: str, query: Query) -> str:
        base = self._settings.base(service)
        if path.startswith("/"):
            parts = urlsplit(base)
            base, path = f"{parts.scheme}://{parts.netloc}/", path[1:]
        pairs = sorted(query.items())
        return f"{base}{path}?{urlencode(pairs, doseq=True, quote_via=quote, safe='')}"

    def _try(
        self, method: str, url: str, data: bytes | None, content_type: str
    ) -> tuple[requests.Response | None, Lost | None]:
        """Make one attempt: return the response, or the reason why there is none."""
        headers = {"Content-Type": content_type} if data is not None else {}
        if self._settings.user_project_override:
            headers["X-Goog-User-Project"] = self._settings.billing_project or self._settings.project
        self._authorize(method, url, headers)
        host = urlsplit(url).netloc
        attempts = 2 if method == "GET" and host in self._answered else 1
        while True:
            attempts -= 1
            try:
                response = self._session.request(
                    method, url, data=data, headers=headers, timeout=HTTP_TIMEOUT_S
                )
            except requests.RequestException as problem:
                lost = why_lost(problem)
                if not (lost.ended and attempts):
                    return None, lost
            else:
                self._answered.add(host)
                return response, None

    @property
    def _session(self) -> requests.Session:
        """Return this thread's session; it trusts the system's CAs as the official provider (Go) does."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.verify = _system_authorities()
        session: requests.Session = self._local.session
        return session

    def _authorize(self, method: str, url: str, headers: dict[str, str]) -> None:
        with self._auth_lock:
            try:
                if self._credentials is None:
                    self._credentials = _credentials(self._settings)
                self._credentials.before_request(AuthRequest(self._session), method, url, headers)  # type: ignore[no-untyped-call]
            except google.auth.exceptions.DefaultCredentialsError as problem:
                advice = "gcloud auth application-default login"
                raise StandInError(f"no Google credentials: {problem}", fix=advice) from problem
            except (OSError, ValueError) as problem:  # the file that `credentials` names, or its JSON
                raise StandInError(f"gcp:credentials can't be read: {problem}") from problem
            except google.auth.exceptions.GoogleAuthError as problem:
                raise StandInError(f"no token for the Google credentials: {problem}") from problem


def _credentials(settings: Settings) -> google.auth.credentials.Credentials:
    """Credentials as the official provider finds them: token, key, then application default ones."""
    if settings.access_token:
        return google.oauth2.credentials.Credentials(settings.access_token)  # type: ignore[no-untyped-call]
    scopes = list(settings.scopes)
    if settings.credentials:
        text = settings.credentials
        if not text.lstrip().startswith("{"):
            text = Path(text).expanduser().read_text()
        login, _ = google.auth.load_credentials_from_dict(json.loads(text), scopes=scopes)  # type: ignore[no-untyped-call]
    else:
        login, _ = google.auth.default(scopes=scopes)
    credentials: google.auth.credentials.Credentials = login
    return credentials


def _system_authorities() -> str | bool:
    """Return the system's CA bundle; `REQUESTS_CA_BUNDLE` overrides it."""
    paths = ssl.get_default_verify_paths()
    candidates = [os.environ.get("SSL_CERT_FILE"), paths.cafile, "/etc/ssl/certs/ca-certificates.crt"]
    return next((path for path in candidates if path and Path(path).is_file()), True)


def _answer(response: requests.Response) -> Any:
    """Return the JSON of a successful answer. Raises ProviderApiError, worded as by Google's Go library."""
    if response.ok:
        return response.json() if response.content else None
    message, reason = response.text.strip(), ""
    try:
        error = response.json()["error"]
        message = error["message"]
        reason = next((f", {item['reason']}" for item in error.get("errors", ()) if "reason" in item), "")
    except (ValueError, KeyError, TypeError):
        pass  # not Google's form, such as a proxy's page: its text is the message
    raise ProviderApiError(
        response.status_code, f"googleapi: Error {response.status_code}: {message}{reason}"
    )
