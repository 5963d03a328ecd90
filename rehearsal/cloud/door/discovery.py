"""Discovery documents: routing of requests to methods, and checks of their form.

The discovery documents are those that google-api-python-client ships. They are parsed when a request for
their API first arrives (compute takes about 0.1 s).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, unquote

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.door.schema import Check, Schemas, Violation, camel, matching, refusal, scalar, snake

_DOCUMENTS = files("googleapiclient") / "discovery_cache" / "documents"
# Every (API, version) that there is a document of.
APIS = frozenset(
    (name[0], name[1])
    for name in (item.name.removesuffix(".json").split(".", 1) for item in _DOCUMENTS.iterdir())
    if len(name) == 2
)
# `us-east5-aiplatform.googleapis.com` and `aiplatform.us-east5.rep.googleapis.com`: an API in one region.
_HOST = re.compile(r"(?:[a-z]+-[a-z]+\d+-)?([a-z0-9]+)(?:\.[a-z]+-[a-z]+\d+\.rep)?\.googleapis\.com")
# The host that all APIs once shared, where their paths still begin with their names.
_WWW = "www.googleapis.com"
# Fields that the official provider sends (recorded with 9.35.0) and that compute must therefore be ignoring,
# because its documents don't have them: (API, schema, field).
_TOLERATED = (
    ("compute", "NetworkRoutingConfig", "deleteBgpAlwaysCompareMed"),
    ("compute", "RouterNat", "initialNatIps"),
    ("compute", "Snapshot", "zone"),
    ("compute", "ZoneSetLabelsRequest", "name"),
)
# Query parameters of the same kind, by API: TensorStore makes its reads unlike any before, so that no cache
# on the way answers them (tensorstore/kvstore/gcs_http), and Cloud Storage lets the parameter pass. Compute's
# lists know returnPartialSuccess (https://cloud.google.com/compute/docs/reference/rest/v1/disks/list).
# The official provider names the mask of Pub/Sub's patches in the query too.
_TOLERATED_QUERY = {
    "compute": ("returnPartialSuccess",),
    "pubsub": ("updateMask",),
    "storage": ("tensorstore",),
}
# https://cloud.google.com/apis/docs/system-parameters, where the documents have other spellings.
_SYSTEM_QUERY = ("$alt", "$fields", "$prettyPrint", "$userProject", "userProject")
# Of what is wrong in one answer.
_MOST_SHOWN = 3
_MEDIA_PREFIXES = ("/upload", "/resumable/upload", "/download")


@dataclass(frozen=True)
class Route:
    """A method of a version of an API, with its checks compiled."""

    api: str
    version: str
    method_id: str
    http_method: str
    path_pattern: re.Pattern[str]
    path_checks: dict[str, Check]
    query_checks: dict[str, tuple[JsonObject, Check]]
    required_query: tuple[str, ...]
    body_check: Check | None
    body_field: str
    required_body: tuple[str, ...]
    answer_check: Check | None

    def parameters(self, raw_path: str, query: str) -> tuple[dict[str, str], dict[str, Any]]:
        """Return path and query parameters; ApiError 400 for invalid ones."""
        return self.path_parameters(raw_path), self.query_parameters(query)

    def path_parameters(self, raw_path: str) -> dict[str, str]:
        """Return decoded path parameters; ApiError 400 if a value doesn't match its pattern."""
        match = self.path_pattern.fullmatch(raw_path)
        assert match is not None, f"{raw_path} was routed to {self.method_id}"
        values = {name: unquote(value) for name, value in match.groupdict().items()}
        violations: list[Violation] = []
        for name, check in self.path_checks.items():
            check(values[name], name, violations)
        if violations:
            raise refusal(violations)
        return values

    def query_parameters(self, query: str) -> dict[str, Any]:
        """Return typed query parameters, repeated ones as lists; ApiError 400 for invalid ones."""
        values: dict[str, Any] = {}
        violations: list[Violation] = []
        for given, text in parse_qsl(query, keep_blank_values=True):
            # Google's front ends take a message's own spelling too, which the official provider sends.
            name = given if given in self.query_checks else camel(given)
            if name not in self.query_checks:
                violations.append(_unknown_query(given))
                continue
            schema, check = self.query_checks[name]
            value = _from_text(schema, text)
            check(value, snake(name), violations)
            if schema.get("repeated"):
                values.setdefault(name, []).append(value)
            else:
                values[name] = value
        for name in self.required_query:
            if name not in values:
                raise ApiError(400, "INVALID_ARGUMENT", f"Required parameter: {name}", reason="required")
        if violations:
            raise refusal(violations)
        return values

    def wrong_in_answer(self, answer: JsonObject) -> str:
        """Return violations of the method's response schema in an answer; "" if there are none."""
        violations: list[Violation] = []
        if self.answer_check is not None:
            self.answer_check(answer, "", violations)
        return "; ".join(violation.description for violation in violations[:_MOST_SHOWN])

    def check_body(self, body: Any) -> None:
        """Raise ApiError 400 unless the body matches the method's request schema."""
        if self.body_check is None:
            return
        violations: list[Violation] = []
        self.body_check(body, self.body_field, violations)
        if violations:
            raise refusal(violations)
        for name in self.required_body:
            if body.get(name) in (None, ""):
                raise ApiError(
                    400, "INVALID_ARGUMENT", f"Required field '{name}' not specified", reason="required"
                )


@dataclass(frozen=True)
class Match:
    """The method that a request is for. `media`: the body is an upload and is not to be parsed."""

    route: Route
    raw_path: str
    media: bool


class Document:
    """A discovery document, with the routes to its methods."""

    def __init__(self, text: str, api: str, version: str) -> None:
        document: JsonObject = json.loads(text)
        self.api, self.version = api, version
        for owner, schema, name in _TOLERATED:
            if owner == api:
                document["schemas"][schema]["properties"].setdefault(name, {"type": "any"})
        self.schemas = Schemas(document.get("schemas", {}))
        self.definitions: dict[str, JsonObject] = document.get("schemas", {})
        # Where there are endpoints in a region: for compute, all of Google's regions.
        self.locations = frozenset(str(endpoint["location"]) for endpoint in document.get("endpoints", ()))
        self._answers = Schemas(document.get("schemas", {}), answers=True)
        self._base = f"/{document['servicePath']}"
        common: JsonObject = document.get("parameters", {})
        for name in (*_SYSTEM_QUERY, *_TOLERATED_QUERY.get(api, ())):
            common.setdefault(name, {"type": "string"})
        self._common_query = {name: _parameter(p) for name, p in common.items()}
        self.methods: dict[str, JsonObject] = {method["id"]: method for method in _methods(document)}

    @cached_property
    def _routes(self) -> dict[tuple[str, int], list[Route]]:
        """The routes by HTTP method and number of segments, the most literal first; for the first request."""
        ranked: dict[tuple[str, int], list[tuple[list[int], Route]]] = {}
        for method in self.methods.values():
            places = [(self._base, method["httpMethod"])]
            for protocol in method.get("mediaUpload", {}).get("protocols", {}).values():
                prefix = protocol["path"].removesuffix(method["path"])
                places += [(prefix, http_method) for http_method in (method["httpMethod"], "PUT", "DELETE")]
            if method.get("useMediaDownloadService"):
                places.append((f"/download{self._base}", method["httpMethod"]))
            for prefix, http_method in places:
                rank = _rank(f"{prefix}{method.get('flatPath') or method['path']}")
                route = self._route(method, prefix, http_method)
                ranked.setdefault((http_method, len(rank)), []).append((rank, route))
        return {
            key: [route for _, route in sorted(routes, key=lambda item: item[0])]
            for key, routes in ranked.items()
        }

    def find(self, http_method: str, raw_path: str) -> Route | None:
        """Return the route of this percent-encoded path, or None."""
        of_length = self._routes.get((http_method, raw_path.count("/") + 1), ())
        # Ids with slashes: of metricDescriptors alone.
        routes = (*of_length, *(route for route in self._open if route.http_method == http_method))
        return next((route for route in routes if route.path_pattern.fullmatch(raw_path)), None)

    @cached_property
    def _open(self) -> list[Route]:
        every = (route for routes in self._routes.values() for route in routes)
        return [route for route in every if route.path_pattern.pattern.endswith("/.*)")]

    def _route(self, method: JsonObject, prefix: str, http_method: str) -> Route:
        parameters: JsonObject = method.get("parameters", {})
        query = {name: p for name, p in parameters.items() if p["location"] == "query"}
        checks = self._common_query | {name: _parameter(p) for name, p in query.items()}
        if prefix.startswith(_MEDIA_PREFIXES):
            # Issued by the server: the session of a resumable upload.
            checks["upload_id"] = _parameter({"type": "string"})
        schema = method.get("request", {}).get("$ref")
        return Route(
            api=self.api,
            version=self.version,
            method_id=method["id"],
            http_method=http_method,
            path_pattern=_path_pattern(prefix + method["path"], parameters),
            path_checks={
                name: matching(p["pattern"])
                for name, p in parameters.items()
                if p["location"] == "path" and "pattern" in p and f"{{{name}}}" in method["path"]
            },
            query_checks=checks,
            required_query=tuple(name for name, p in query.items() if p.get("required")),
            body_check=self.schemas.compile(method["request"]) if schema else None,
            body_field="" if not schema or schema.endswith("Request") else snake(schema),
            answer_check=self._answers.compile(method["response"]) if "response" in method else None,
            required_body=tuple(self.schemas.required(schema, method["id"])) if schema else (),
        )


@cache
def document(api: str, version: str) -> Document:
    """Return the parsed document of an API, read once in a process."""
    return Document((_DOCUMENTS / f"{api}.{version}.json").read_text(), api, version)


def match(host: str, http_method: str, raw_path: str) -> Match | None:
    """Return the method for a percent-encoded path without its query; None if Google has no such method."""
    media = raw_path.startswith(_MEDIA_PREFIXES)
    start = raw_path
    for prefix in _MEDIA_PREFIXES:
        start = start.removeprefix(prefix)
    segments = start.split("/")
    api = segments[1] if host == _WWW else (own[1] if (own := _HOST.fullmatch(host)) else "")
    version = next((segment for segment in segments[1:3] if (api, segment) in APIS), "")
    if not version:
        return None
    if api == "storage" and raw_path.endswith("/anywhereCaches/"):
        raw_path = raw_path[:-1]  # as the official provider writes it when it deletes a bucket
    route = document(api, version).find(http_method, raw_path)
    return Match(route, raw_path, media) if route else None


def _methods(resources: JsonObject) -> Iterator[JsonObject]:
    yield from resources.get("methods", {}).values()
    for resource in resources.get("resources", {}).values():
        yield from _methods(resource)


def _rank(path: str) -> list[int]:
    """Return how literal each segment is: before any text comes a verb behind it, before that a word."""
    segments = path.split("/")
    return [2 if part.endswith("}") else 1 if part.startswith("{") else 0 for part in segments]


def _path_pattern(template: str, parameters: JsonObject) -> re.Pattern[str]:
    """Return the regex of a path template, where `{+name}` spans segments and has its own pattern."""
    parts = []
    for text, reserved, name in re.findall(r"([^{]*)(?:\{(\+?)(\w+)\})?", template):
        parts.append(re.escape(text))
        if name:
            pattern = parameters[name].get("pattern", ".+").strip("^$") if reserved else "[^/]+"
            parts.append(f"(?P<{name}>{pattern})")
    return re.compile("".join(parts))


def _parameter(schema: JsonObject) -> tuple[JsonObject, Check]:
    return schema, scalar(schema)


def _from_text(schema: JsonObject, text: str) -> Any:
    """Convert a query parameter's text to a value of its type, or return the text itself."""
    kind = schema.get("type")
    if kind == "boolean":
        return {"true": True, "false": False, "1": True, "0": False}.get(text.lower(), text)
    if kind == "integer" and re.fullmatch(r"-?\d{1,20}", text):
        return int(text)
    return text


def _unknown_query(name: str) -> Violation:
    text = (
        f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter. '
        f"Field '{name}' could not be found in request message."
    )
    return Violation(name, text)
