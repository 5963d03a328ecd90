"""Effects of a workflow: requests, waits, its clock, its environment, its log.

https://cloud.google.com/workflows/docs/http-requests and …/docs/reference/stdlib/sys/log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

from rehearsal.cloud.core.runtime import OAUTH2, OIDC, HttpRequest, Reply
from rehearsal.cloud.services.workflows.engine.library import call as library
from rehearsal.cloud.services.workflows.engine.values import encoded, error, is_number, type_name

MAX_REPLY_BYTES = 2 << 20  # https://cloud.google.com/workflows/quotas
_TIMEOUT_S, _MAX_TIMEOUT_S = 300.0, 1800.0
_METHODS = ("get", "post", "put", "patch", "delete")
_SEVERITIES = (
    "DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY",
)  # fmt: skip
_AUTH = (OAUTH2, OIDC)


class Outside(Protocol):
    """Environment of a workflow."""

    environment: Mapping[str, str]

    def now(self) -> float:
        """Seconds since the Unix epoch."""

    async def sleep(self, seconds: float) -> None:
        """Let them pass."""

    async def send(self, request: HttpRequest) -> Reply:
        """Its answer; ConnectionError where there is none, TimeoutError where it takes too long."""

    async def log(self, severity: str, payload: Any) -> None:
        """Write text or a map to Cloud Logging; Raised if the account may not."""


@dataclass(frozen=True)
class _Args:
    """The arguments of a call by name; those that it doesn't know are refused when it is deployed."""

    values: Mapping[str, Any]
    of: str

    def get(self, name: str, kind: str, default: Any = None) -> Any:
        value = self.values.get(name, default)
        if value is not default and type_name(value) != kind:
            raise error("TypeError", f"{self.of}: {name} must be a {kind}, not a {type_name(value)}")
        return value

    def need(self, name: str, kind: str) -> Any:
        if name not in self.values:
            raise error("TypeError", f"{self.of}: argument {name} is missing")
        return self.get(name, kind)


async def _http(outside: Outside, args: _Args) -> Any:
    url = args.need("url", "string")
    if not re.match(r"https?://[^/\s]+", url):
        raise error("ValueError", f"{args.of}: url {url} must begin with http:// or https:// and a host")
    method = args.of.partition(".")[2].upper()
    if method == "REQUEST":
        method = args.need("method", "string").upper()
    auth = args.get("auth", "map", {})
    if auth and auth.get("type") not in _AUTH:
        raise error("ValueError", f"{args.of}: auth.type must be one of {', '.join(_AUTH)}")
    timeout_s = args.values.get("timeout", _TIMEOUT_S)
    if not is_number(timeout_s) or not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise error("ValueError", f"{args.of}: timeout must be above 0 and at most {_MAX_TIMEOUT_S:.0f} s")
    headers = {name: _header(value) for name, value in args.get("headers", "map", {}).items()}
    body = _body(args.values.get("body"), headers)
    if query := args.get("query", "map", {}):
        pairs = {name: value if isinstance(value, str) else encoded(value) for name, value in query.items()}
        url = f"{url}{'&' if '?' in url else '?'}{urlencode(pairs)}"
    audience = auth.get("audience") or url.partition("?")[0]
    request = HttpRequest(method, url, headers, body, auth.get("type", ""), audience, float(timeout_s))
    try:
        reply = await outside.send(request)
    except TimeoutError:
        raise error("TimeoutError", f"HTTP request lasted more than the configured timeout: {url}") from None
    except ConnectionError as lost:
        raise error("ConnectionError", f"HTTP request failed: {lost}") from None
    return _answer(reply)


def _answer(reply: Reply) -> dict[str, Any]:
    if len(reply.body) > MAX_REPLY_BYTES:
        raise error("ResourceLimitError", f"the response is larger than {MAX_REPLY_BYTES} bytes")
    kind = next((value for name, value in reply.headers.items() if name.lower() == "content-type"), "")
    body: Any = reply.body
    if kind.startswith("application/json"):
        try:
            body = json.loads(reply.body) if reply.body else None
        except ValueError:
            raise error("ResponseTypeError", "the response isn't the JSON that its type says") from None
    elif kind.startswith("text/") or not reply.body:
        body = reply.body.decode(errors="replace")
    mapping = {"code": reply.status, "headers": dict(reply.headers), "body": body}
    if reply.status >= 400:
        raise error("HttpError", f"HTTP server responded with error code {reply.status}", **mapping)
    return mapping


def _header(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise error("TypeError", f"a header must be a string, not a {type_name(value)}")


def _body(body: Any, headers: dict[str, str]) -> bytes | None:
    """Return a map or list as JSON, or as a form where the header says so; adds the header of the type."""
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    if body is None or isinstance(body, bytes):
        return body
    if isinstance(body, dict) and kind.startswith("application/x-www-form-urlencoded"):
        return urlencode(body).encode()
    if not kind:
        headers["Content-Type"] = "text/plain" if isinstance(body, str) else "application/json"
    return body.encode() if isinstance(body, str) else encoded(body).encode()


async def _sleep(outside: Outside, args: _Args) -> None:
    seconds = args.values.get("seconds")
    if not is_number(seconds) or seconds < 0:  # type: ignore[operator]
        raise error("TypeError", f"{args.of}: seconds must be a number of at least 0")
    await outside.sleep(float(seconds))  # type: ignore[arg-type]


async def _sleep_until(outside: Outside, args: _Args) -> None:
    await outside.sleep(max(0.0, library("time.parse", [args.need("time", "string")]) - outside.now()))


async def _log(outside: Outside, args: _Args) -> None:
    given = [name for name in ("data", "text", "json") if name in args.values]
    if len(given) != 1:
        raise error("ValueError", f"{args.of}: exactly one of data, text and json must be given")
    payload, severity = args.values[given[0]], args.get("severity", "string", "DEFAULT")
    if severity not in _SEVERITIES:
        raise error("ValueError", f"{args.of}: severity {severity} must be one of {', '.join(_SEVERITIES)}")
    if given[0] == "json" and not isinstance(payload, dict):
        raise error("TypeError", f"{args.of}: json must be a map, not a {type_name(payload)}")
    plain = payload if isinstance(payload, str | dict) else encoded(payload)
    await outside.log(severity, plain)


_COMMON = ("url", "headers", "body", "query", "auth", "timeout")
Effect = Callable[[Outside, _Args], Awaitable[Any]]
# Of `call` steps, with the arguments that they know.
CALLS: Mapping[str, tuple[Effect, tuple[str, ...]]] = {
    **{f"http.{method}": (_http, _COMMON) for method in _METHODS},
    "http.request": (_http, ("method", *_COMMON)),
    "sys.sleep": (_sleep, ("seconds",)),
    "sys.sleep_until": (_sleep_until, ("time",)),
    "sys.log": (_log, ("data", "text", "json", "severity", "timeout")),
}
# Of expressions, and of `call` steps too.
READS = {"sys.now": ((), 0), "sys.get_env": (("name", "default"), 1)}


async def perform(outside: Outside, name: str, values: Mapping[str, Any]) -> Any:
    """Return a function of `CALLS`."""
    return await CALLS[name][0](outside, _Args(values, name))


def read(outside: Outside, name: str, arguments: list[Any]) -> Any:
    """Return a function of `READS`."""
    if name == "sys.now":
        return outside.now()
    if not arguments or not isinstance(arguments[0], str):
        raise error("TypeError", f"{name}: name must be a string")
    if arguments[0] in outside.environment:
        return outside.environment[arguments[0]]
    if len(arguments) > 1:
        return arguments[1]
    raise error("KeyError", f"environment variable {arguments[0]} not found")
