"""Updates: the fields that a request changes, and those that it may not."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from typing import Any

from rehearsal.cloud.collections import words
from rehearsal.cloud.collections.change import Change
from rehearsal.cloud.collections.shape import COMPUTE, Shape, output_only, values
from rehearsal.cloud.core.errors import ApiError, JsonObject, bad_request


def apply(shape: Shape, method: JsonObject, change: Change, raw: JsonObject) -> None:
    """Apply the request to the draft. `raw` is the resource as it was sent."""
    paths = _paths(shape, change)
    if paths is None and method["httpMethod"] == "PUT":
        stored = {k: v for k, v in change.body.items() if k == "name" or output_only(shape.fields.get(k, {}))}
        change.body.clear()
        change.body.update(copy.deepcopy(change.collection.defaults) | stored)
        merge(change.body, copy.deepcopy(change.sent))
        return
    if paths is None:
        if change.collection.mask_required:
            raise bad_request("The request is missing the required field update_mask.")
        own = {key: value for key, value in raw.items() if not output_only(shape.fields.get(key, {}))}
        if shape.dialect == COMPUTE:
            merge(change.body, {k: v for k, v in copy.deepcopy(own).items() if k != "fingerprint"})
            return
        paths = [key for key in own if key not in ("name", "etag")]
    for path in paths:
        _copy(change.body, copy.deepcopy(raw), path.split("."))


def _paths(shape: Shape, change: Change) -> list[str] | None:
    """Return the mask in camel case; None if there is none. ApiError 400 for other fields."""
    call, collection = change.call, change.collection
    given = str(call.query.get("updateMask") or (call.body or {}).get("updateMask") or "")
    named = [*given.split(","), *call.query.get("paths", ())]
    named = [path.strip() for path in named if path.strip()]
    if not named:
        return None
    paths = []
    for path in named:
        field = shape.resolve(path)
        if field is None:
            raise bad_request(f"Invalid field mask: '{path}' is no field of {shape.schema}.")
        resolved, frozen = field
        top = resolved.partition(".")[0]
        if collection.mutable is not None and top not in collection.mutable:
            raise words.not_mutable(shape, path, collection.mutable)
        if not frozen:
            paths.append(resolved)
    return paths


def _copy(body: JsonObject, sent: JsonObject, path: list[str]) -> None:
    """Set one field of the draft to the value that was sent, or remove it."""
    *parents, last = path
    source: Any = sent
    for key in parents:
        source = source.get(key) or {}
        body = body.setdefault(key, {})
    if source.get(last) in (None, "", [], {}):
        body.pop(last, None)
    else:
        body[last] = source[last]


def check_immutable(change: Change) -> None:
    """Raise ApiError 400 if the draft changes an immutable field."""
    for path in sorted({"name", *change.shape.immutable(change.body | change.old)}):
        old, new = values(change.old, path), values(change.body, path)
        if old != new:
            raise words.immutable(change.shape, path, new[0] if new else "")


def check_etag(shape: Shape, change: Change, raw: JsonObject) -> None:
    """Raise ApiError 409 or 412 unless the etag or fingerprint that was sent, if any, is the resource's.

    Where a compute schema has a fingerprint, an update needs it.
    """
    if "etag" in shape.stamped and raw.get("etag") and raw["etag"] != change.old.get("etag"):
        raise words.changed_meanwhile()
    if shape.dialect == COMPUTE and "fingerprint" in shape.fields and change.sent:
        check_fingerprint(change.old, raw)


def check_fingerprint(body: JsonObject, sent: JsonObject) -> None:
    """Raise ApiError 412 unless the request has the resource's current fingerprint."""
    if not sent.get("fingerprint"):
        text = "Required field 'resource.fingerprint' not specified"
        raise ApiError(400, "INVALID_ARGUMENT", text, reason="required")
    if sent["fingerprint"] != body["fingerprint"]:
        raise ApiError(412, "FAILED_PRECONDITION", "Invalid fingerprint.", reason="conditionNotMet")


def set_labels(change: Change) -> None:
    """Serve compute's setLabels; ApiError 412 unless the request has the current labels' fingerprint."""
    if change.sent.get("labelFingerprint", "") != change.old.get("labelFingerprint"):
        text = "Labels fingerprint either invalid or resource labels have changed"
        raise ApiError(412, "FAILED_PRECONDITION", text, reason="conditionNotMet")
    change.body["labels"] = change.sent.get("labels") or {}


def fingerprint(value: Any) -> str:
    """Return eight bytes of a hash of the value in base64, the form of Google's fingerprints."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def merge(body: JsonObject, patch: JsonObject) -> None:
    """Apply a JSON merge patch (RFC 7396) in place."""
    for key, value in patch.items():
        if value is None:
            body.pop(key, None)
        elif isinstance(value, dict):
            body[key] = body[key] if isinstance(body.get(key), dict) else {}
            merge(body[key], value)
        else:
            body[key] = value
