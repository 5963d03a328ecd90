"""The front door: every request to any `*.googleapis.com` name comes through here.

In this order: log → fault rules → authentication → routing and validation → API enabled? → IAM → service.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from google_facts import table
from rehearsal.cloud.core import constraints
from rehearsal.cloud.core.clock import SANDBOXES, by_virtual_clock
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError
from rehearsal.cloud.core.operations import on_failure
from rehearsal.cloud.core.service import Answer, Call, Method, Service, Site, Translator
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door import batch, discovery, enums, places
from rehearsal.cloud.door.discovery import Match
from rehearsal.cloud.door.doorway import Doorway, Passage, break_stream
from rehearsal.cloud.door.faults import Fault
from rehearsal.cloud.door.partial import trim
from rehearsal.cloud.door.schema import Violation, refusal
from rehearsal.cloud.iam.audit import Audit
from rehearsal.cloud.iam.iam import Iam, member

# The largest JSON body or batch that is read into memory; media is streamed by the storage service.
_MAX_JSON_BYTES = 64 * 2**20
_HEADERS = {
    "Content-Type": "application/json; charset=UTF-8",
    "Server": "ESF",
    "X-Content-Type-Options": "nosniff",
}

_CREDENTIAL = (
    "Expected OAuth 2 access token, login cookie or other valid authentication credential. "
    "See https://developers.google.com/identity/sign-in/web/devconsole-project."
)
_QUOTA = table("billing")["quota_project"]
_NO_TOKEN = f"Request is missing required authentication credential. {_CREDENTIAL}"
_BAD_TOKEN = f"Request had invalid authentication credentials. {_CREDENTIAL}"


class Enabled(Protocol):
    """The enabled APIs of the project."""

    def require(self, api: str) -> None:
        """Raise ApiError 403 unless the API is enabled in the project."""


Endpoint = Callable[[web.Request], Awaitable[Answer]]
Serve = Callable[[], Awaitable[web.StreamResponse]]


class FrontDoor:
    """Routes requests to services. `endpoints` are (host, path) pairs that no discovery document has."""

    def __init__(
        self,
        world: World,
        iam: Iam,
        enabled: Enabled,
        services: list[Service],
        *,
        endpoints: Mapping[tuple[str, str], Endpoint],
        doorway: Doorway,
        audit: Audit,
        sites: Sequence[Site] = (),
        translators: Sequence[Translator] = (),
    ) -> None:
        self._world = world
        self._iam = iam
        self._enabled = enabled
        self._methods: dict[tuple[str, str], Method] = {}  # by version and method id
        for service in services:
            methods = service.methods()
            served = {(version, name): methods[name] for version in service.versions for name in methods}
            if twice := self._methods.keys() & served.keys():
                raise ValueError(f"{', '.join(sorted({name for _, name in twice}))}: two services claim it.")
            self._methods |= served
        iam.permissions.update(method.permission for method in self._methods.values() if method.permission)
        self._endpoints = endpoints
        self._doorway = doorway
        self._audit = audit
        self._sites = sites
        self._translators = translators

    def app(self) -> web.Application:
        """Return the aiohttp application; the caller chooses the sockets and TLS."""
        app = web.Application(client_max_size=_MAX_JSON_BYTES)
        app.router.add_route("*", "/{path:(?s:.*)}", self.handle)
        app.on_response_prepare.append(break_stream)
        return app

    def covered(self) -> dict[str, list[str]]:
        """Return the methods that services implement, by API; unknown ids are left out."""
        covered: dict[str, set[str]] = {}
        for version, name in self._methods:
            api = name.partition(".")[0]
            if name in discovery.document(api, version).methods:
                covered.setdefault(api, set()).add(name)
        return {api: sorted(names) for api, names in covered.items()}

    def served(self) -> list[str]:
        """Return all of these methods."""
        return [method_id for method_ids in self.covered().values() for method_id in method_ids]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        by_virtual_clock.set((request.remote or "").startswith(SANDBOXES))
        passage, serve = self._route(request)
        return await self._doorway.http(request, passage, serve, _error_response)

    def _route(self, request: web.Request) -> tuple[Passage, Serve]:
        """Find what serves a request, without judging it: faults and the log need its method and account."""
        host = request.host.partition(":")[0].lower()
        path, _, query = request.raw_path.partition("?")
        passage = Passage("", request.method, host, path, "", request.remote or "", query)
        for site in self._sites:
            if site.owns(host):
                passage.method_id, passage.validated = site.method_id, True
                passage.principal = site.principal(host, path, _bearer(request))
                return passage, partial(site.serve, request, host, passage.principal)
        token = self._iam.find_token(_bearer(request))
        passage.principal = token.principal if token else ""
        if endpoint := self._endpoints.get((host, path)):
            passage.method_id = f"{host}{path}"
            return passage, partial(self._serve_endpoint, request, passage, endpoint)
        if request.method == "POST" and path.startswith("/batch"):
            passage.method_id = "batch"
            return passage, partial(self._batch, request, passage)
        missing = ""
        for translator in self._translators:
            passage.path, passage.query, missing = translator.translate(request, host, path, query)
        match = discovery.match(host, "GET" if request.method == "HEAD" else request.method, passage.path)
        passage.method_id = match.route.method_id if match else ""
        return passage, partial(self._serve, request, passage, match, missing)

    async def _serve_endpoint(
        self, request: web.Request, passage: Passage, endpoint: Endpoint
    ) -> web.StreamResponse:
        passage.validated = True
        answer = await endpoint(request)
        return answer if isinstance(answer, web.StreamResponse) else _json_response(answer)

    async def _serve(
        self, request: web.Request, passage: Passage, match: Match | None, missing: str
    ) -> web.StreamResponse:
        """Serve a method of a discovery document; `missing` is a feature that the emulation lacks."""
        if missing:
            raise NotEmulatedError(missing)
        if not passage.principal and not _is_session(request, match):
            passage.reason = passage.reason or "unauthenticated"
            raise ApiError(401, "UNAUTHENTICATED", _BAD_TOKEN if _bearer(request) else _NO_TOKEN)
        if match is None:
            passage.refuse("unknown-method")
            text = f"{request.method} {passage.host}{passage.path} is no method of a known API."
            raise ApiError(404, "NOT_FOUND", text)
        if quota_project := request.headers.get("X-Goog-User-Project"):
            self._iam.require_use(passage.principal, quota_project)
        elif match.route.api in _QUOTA["apis"] and member(passage.principal).startswith("user:"):
            raise ApiError(403, "PERMISSION_DENIED", _QUOTA["words"].format(api=match.route.api))
        call = await self._call(request, passage, match)
        method = self._methods.get((call.version, call.method_id))
        if method is None:
            raise NotEmulatedError(call.method_id)
        answer = await self._audited(call, method)
        if isinstance(answer, web.StreamResponse):
            return answer
        if wrong := match.route.wrong_in_answer(answer):
            self._world.blame(f"the answer to {call.method_id}", wrong)
        fields = call.query.get("fields")
        response = _json_response(trim(answer, fields) if fields else answer)
        if call.api == "storage" and "etag" in answer:
            response.headers["ETag"] = answer["etag"]
        return response

    async def _audited(self, call: Call, method: Method) -> Answer:
        """Return the service's answer if the caller may call it; calls that are audited leave an entry."""
        audited = self._audit.begin(call)
        on_failure.set(audited.failed if audited else None)
        try:
            constraints.require(self._world, "gcp.restrictServiceUsage", [f"{call.api}.googleapis.com"])
            self._enabled.require(call.api)
            places.require(call, method.permission or "")
            if method.permission is not None:
                resource = method.resource(call) if method.resource else f"projects/{self._world.project}"
                prefix = method.list_prefix(call) if method.list_prefix else ""
                self._iam.require(call.principal, method.permission, resource, prefix)
            places.require_allowed(call, self._world)
            answer = await method.handler(call)
        except ApiError as error:
            if audited:
                audited.failed(error)
            raise
        if audited:
            audited.done()
        return answer

    async def _call(self, request: web.Request, passage: Passage, match: Match) -> Call:
        """Validate a request; ApiError 400 in the words of Google's front ends."""
        route = match.route
        try:
            path, query = route.parameters(match.raw_path, passage.query)
            body = None
            if not match.media:
                body = _parse_json(await request.read(), expected=route.body_check is not None)
            if body is not None:
                if str(query.get("$alt", "")).endswith("enum-encoding=int"):
                    body = enums.by_name(route.api, route.version, route.method_id, body)
                route.check_body(body)
        except ApiError:
            passage.refuse("invalid-request")
            raise
        passage.validated = True
        return Call(route.api, route.version, route.method_id, path, query, body, passage.principal, request)

    async def _batch(self, request: web.Request, passage: Passage) -> web.Response:
        """Handle each part as a request of its own, with its own log entry, access check and faults."""
        passage.validated = True
        body = await request.content.read()
        parts = batch.parse(request.headers.get("Content-Type", ""), body)
        answers = []
        for part in parts:
            headers = CIMultiDict(part.headers)
            headers["Host"] = request.host
            headers.setdefault("Authorization", request.headers.get("Authorization", ""))
            inner = request.clone(
                method=part.http_method, rel_url=URL(part.target, encoded=True), headers=headers
            )
            inner._read_bytes = part.body  # as if it had been read from a connection of its own
            response = await self.handle(inner)
            if not isinstance(response, web.Response):
                raise ApiError(400, "INVALID_ARGUMENT", "Media can't be sent or fetched in a batch.")
            answers.append((part, response))
        return batch.render(answers)


def _is_session(request: web.Request, match: Match | None) -> bool:
    """Return True for the URI of a resumable upload, which is a credential itself."""
    return match is not None and match.media and "upload_id" in request.query and not _bearer(request)


def _bearer(request: web.Request) -> str:
    kind, _, value = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    return request.query.get("access_token") or request.query.get("oauth_token") or ""


def _parse_json(text: bytes, *, expected: bool) -> JsonObject | None:
    """Parse the body as JSON: {} if it is empty and the method expects one."""
    if not text.strip():
        return {} if expected else None
    try:
        body: Any = json.loads(text)
    except ValueError as error:
        text_shown = f"Invalid JSON payload received. Unexpected token. {error}"
        raise refusal([Violation("", text_shown)]) from None
    if not isinstance(body, dict):
        raise refusal([Violation("", "Invalid JSON payload received. The root element must be a message.")])
    if body and not expected:
        unknown = [
            Violation("", f'Invalid JSON payload received. Unknown name "{key}": Cannot find field.')
            for key in body
        ]
        raise refusal(unknown)
    return body


def _json_response(answer: JsonObject) -> web.Response:
    return web.Response(body=json.dumps(answer).encode(), headers=_HEADERS)


def _error_response(error: ApiError, fault: Fault | None) -> web.Response:
    headers = dict(_HEADERS)
    if fault is not None and fault.retry_after_s is not None:
        headers["Retry-After"] = f"{fault.retry_after_s:g}"
    if error.code == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="https://accounts.google.com/"'
    return web.Response(status=error.code, body=json.dumps(error.body()).encode(), headers=headers)
