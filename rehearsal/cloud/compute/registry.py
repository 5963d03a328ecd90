"""What every compute collection shares: references, fingerprints, operations, and who uses what.

Bodies are kept in `World.directory` with v1 links; answers carry the links of the version that was asked.
A resource is busy while an operation on it runs, and Google refuses a second change meanwhile; so a client
that does not wait for its operations is found out.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from rehearsal.cloud.iam import Iam
from rehearsal.cloud.operations import Operations, compute_link
from rehearsal.cloud.service import (
    ApiError,
    Call,
    JsonObject,
    NotEmulatedError,
    World,
    already_exists,
    not_found,
)

_LINK = re.compile(r"https://(?:www|compute)\.googleapis\.com/compute/(?:v1|beta)/")
_V1 = compute_link("")


class Registry:
    """The project's compute resources."""

    def __init__(self, world: World, operations: Operations, iam: Iam) -> None:
        self.world = world
        self.iam = iam
        self._operations = operations
        self._busy: set[str] = set()
        self._ids = itertools.count(int(time.time() * 1e9))

    # Names

    def path(self, call: Call, *parts: str) -> str:
        """A full name in the project: `path(call, "global", "networks", "n")`.

        ApiError 404 for any other project than the one that exists.
        """
        if call.path["project"] not in (self.world.project, self.world.number):
            raise not_found(f"projects/{call.path['project']}")
        return "/".join((f"projects/{self.world.project}", *parts))

    def reference(self, value: str, field: str, pattern: str) -> str:
        """The full name behind a link or partial name, which must match `pattern` after the project.

        ApiError 400 if the text is no such name.
        """
        name = _LINK.sub("", value)
        if not name.startswith("projects/"):
            name = f"projects/{self.world.project}/{name}"
        number = f"projects/{self.world.number}/"
        if name.startswith(number):
            name = f"projects/{self.world.project}/{name[len(number) :]}"
        if not re.fullmatch(rf"projects/[^/]+/{pattern}", name):
            raise invalid(field, value, "The URL is malformed.")
        return name

    def check_place(self, kind: str, place: str, body: JsonObject | None = None) -> None:
        """ApiError 400 unless the zone or region exists and is the one that the body names, if it does."""
        if f"projects/{self.world.project}/{kind}s/{place}" not in self.world.directory:
            raise invalid(kind, place, f"Unknown {kind}.")
        named = (body or {}).get(kind)
        if named and named.rsplit("/", 1)[-1] != place:
            raise invalid(
                f"resource.{kind}", named, f"Cross-{kind} references for this resource are not allowed."
            )

    # Reading

    def find(self, name: str) -> JsonObject:
        """The body of a resource; ApiError 404."""
        return self.world.require(name)

    def ready(self, name: str) -> JsonObject:
        """The body of a resource that no operation is changing; ApiError 404, or 400 if one is."""
        body = self.find(name)
        if name in self._busy:
            text = f"The resource '{name}' is not ready"
            raise ApiError(400, "FAILED_PRECONDITION", text, reason="resourceNotReady")
        return body

    def below(self, prefix: str) -> list[tuple[str, JsonObject]]:
        """Resources directly in a collection (`projects/P/global/networks`), by name."""
        found = [
            (name, body)
            for name, body in self.world.directory.items()
            if name.startswith(f"{prefix}/") and "/" not in name[len(prefix) + 1 :]
        ]
        return sorted(found, key=lambda item: item[0])

    def listing(self, call: Call, kind: str, prefix: str) -> JsonObject:
        """A `compute#…List` of a collection, filtered by `name` where asked."""
        keep = _filter(call.query.get("filter"))
        items = [body for _, body in self.below(prefix) if keep(body)]
        answer: JsonObject = {"kind": kind, "id": prefix, "selfLink": compute_link(prefix)}
        return self.render(call, answer | ({"items": items} if items else {}))

    def render(self, call: Call, body: JsonObject) -> JsonObject:
        """The body with links of the version that was called."""
        if call.version == "v1":
            return body
        rendered: JsonObject = _relink(body, compute_link("").replace("/v1/", f"/{call.version}/"))
        return rendered

    def users(self, name: str) -> Iterator[str]:
        """Full names of the resources whose `network` or `subnetwork` is this one."""
        for other, body in self.world.directory.items():
            if other != name and _uses(body, name):
                yield other

    def check_unused(self, kind: str, name: str) -> None:
        """ApiError 400 if another resource uses this one."""
        for user in self.users(name):
            raise in_use(kind, name, user)

    # Changing

    def insert(
        self,
        call: Call,
        name: str,
        body: JsonObject,
        *,
        duration_s: float,
        finish: Callable[[], None] = lambda: None,
        verb: str = "insert",
        scope: str | None = None,
    ) -> JsonObject:
        """Register a new resource, complete after `duration_s`; ApiError 409 if there is one of that name."""
        if name in self.world.directory:
            raise already_exists(name)
        body.update(
            id=str(next(self._ids)),
            creationTimestamp=self.world.clock.rfc3339(),
            selfLink=compute_link(name),
        )
        self.world.directory[name] = body

        def undo(error: ApiError) -> None:
            del self.world.directory[name]

        return self._start(call, name, verb, duration_s, finish, undo, scope)

    def change(
        self, call: Call, name: str, work: Callable[[], None], *, verb: str, duration_s: float
    ) -> JsonObject:
        """Change a resource; `work` does it at the end."""
        self.ready(name)
        return self._start(call, name, verb, duration_s, work)

    def delete(
        self, call: Call, name: str, *, duration_s: float, finish: Callable[[], None] = lambda: None
    ) -> JsonObject:
        """Delete a resource that the caller has found unused."""
        self.ready(name)

        def work() -> None:
            del self.world.directory[name]
            self.iam.drop(name)
            finish()

        return self._start(call, name, "delete", duration_s, work)

    def _start(
        self,
        call: Call,
        name: str,
        verb: str,
        duration_s: float,
        work: Callable[[], None],
        on_error: Callable[[ApiError], None] = lambda error: None,
        scope: str | None = None,
    ) -> JsonObject:
        self._busy.add(name)

        def finished() -> None:
            work()
            self._busy.discard(name)

        def failed(error: ApiError) -> None:
            self._busy.discard(name)
            on_error(error)

        operation = self._operations.compute(
            call,
            verb=verb,
            target=name,
            target_id=self.world.directory[name]["id"],
            duration_s=duration_s,
            work=finished,
            on_error=failed,
            scope=scope,
        )
        return self.render(call, operation)


def set_labels(body: JsonObject, labels: JsonObject | None, expected: str) -> None:
    """Replace labels; ApiError 412 unless `expected` is the fingerprint of those that are there."""
    if expected != body["labelFingerprint"]:
        text = "Labels fingerprint either invalid or resource labels have changed"
        raise ApiError(412, "FAILED_PRECONDITION", text, reason="conditionNotMet")
    body["labels"] = labels or {}
    body["labelFingerprint"] = fingerprint(body["labels"])


def check_fingerprint(body: JsonObject, sent: JsonObject) -> None:
    """ApiError 412 unless the request names the fingerprint that the resource has now."""
    if not sent.get("fingerprint"):
        text = "Required field 'resource.fingerprint' not specified"
        raise ApiError(400, "INVALID_ARGUMENT", text, reason="required")
    if sent["fingerprint"] != body["fingerprint"]:
        raise ApiError(412, "FAILED_PRECONDITION", "Invalid fingerprint.", reason="conditionNotMet")


def fingerprint(value: Any) -> str:
    """Eight bytes of a hash of the value, base64, as Google's fingerprints look."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def compact(value: Any) -> Any:
    """The value without nulls and empty lists and objects, which Google's answers leave out."""
    if isinstance(value, dict):
        items = {key: compact(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item not in (None, [], {})}
    if isinstance(value, list):
        return [compact(item) for item in value if item is not None]
    return value


def merge(body: JsonObject, patch: JsonObject) -> None:
    """A JSON merge patch (RFC 7396) in place."""
    for key, value in patch.items():
        if value is None:
            body.pop(key, None)
        elif isinstance(value, dict) and isinstance(body.get(key), dict):
            merge(body[key], value)
        else:
            body[key] = value


def invalid(field: str, value: object, why: str) -> ApiError:
    """400 for one field of the request."""
    return ApiError(
        400, "INVALID_ARGUMENT", f"Invalid value for field '{field}': '{value}'. {why}", reason="invalid"
    )


def in_use(kind: str, name: str, user: str) -> ApiError:
    """400 for a resource that cannot be deleted."""
    text = f"The {kind} resource '{name}' is already being used by '{user}'"
    return ApiError(400, "FAILED_PRECONDITION", text, reason="resourceInUseByAnotherResource")


def missing(body: JsonObject, *fields: str) -> None:
    """ApiError 400 if one of the fields is not in the body."""
    for field in fields:
        if not body.get(field):
            text = f"Invalid value for field 'resource.{field}': ''. Required field not specified."
            raise ApiError(400, "INVALID_ARGUMENT", text, reason="required")


def _relink(value: Any, base: str) -> Any:
    if isinstance(value, str):
        return base + value[len(_V1) :] if value.startswith(_V1) else value
    if isinstance(value, dict):
        return {key: _relink(item, base) for key, item in value.items()}
    if isinstance(value, list):
        return [_relink(item, base) for item in value]
    return value


def _uses(value: Any, name: str) -> bool:
    if isinstance(value, dict):
        return any(
            (key in ("network", "subnetwork") and isinstance(item, str) and _LINK.sub("", item) == name)
            or _uses(item, name)
            for key, item in value.items()
        )
    return isinstance(value, list) and any(_uses(item, name) for item in value)


def _filter(expression: str | None) -> Callable[[JsonObject], bool]:
    """The comparison of one field with one value; NotEmulatedError for more."""
    if not expression:
        return lambda body: True
    match = re.fullmatch(r'\(?\s*(\w+)\s*(=|!=|eq|ne)\s*"?([^"()\s]+)"?\s*\)?', expression)
    if match is None:
        raise NotEmulatedError(f"The filter '{expression}' (other than one comparison, name = x)")
    key, operator, wanted = match.groups()
    return lambda body: (str(body.get(key, "")) == wanted) == (operator in ("=", "eq"))


__all__ = [
    "Registry",
    "check_fingerprint",
    "compact",
    "fingerprint",
    "in_use",
    "invalid",
    "merge",
    "missing",
    "not_found",
    "set_labels",
]
