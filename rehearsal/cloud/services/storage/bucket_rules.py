"""Rules and defaults of Cloud Storage's buckets.

Sources: the discovery document (storage v1, `Bucket`), https://cloud.google.com/storage/docs/buckets#naming,
https://cloud.google.com/storage/docs/locations, https://cloud.google.com/storage/docs/hns-overview.
"""

from __future__ import annotations

import copy
import ipaddress
import re
from contextlib import suppress

from rehearsal.cloud.collections.checks import wrong_labels
from rehearsal.cloud.collections.masks import merge
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.services.storage.resources import STORAGE_CLASSES
from rehearsal.cloud.services.storage.versions import etag, later

DEFAULT_SOFT_DELETE_S = 7 * 86_400
_SOFT_DELETE_RANGE_S = (7 * 86_400, 90 * 86_400)
_UNIFORM_LOCK_S = 90 * 86_400

# Fields of the schema that the server sets, and those that aren't emulated; clients set the others.
_OUTPUT = frozenset(
    (
        *("etag", "generation", "id", "kind", "locationType", "metageneration"),
        *("owner", "projectNumber", "selfLink", "timeCreated", "updated"),
    )
)
_NOT_EMULATED = (
    *("acl", "customPlacementConfig", "defaultObjectAcl", "hardDeleteTime", "ipFilter", "logging"),
    *("objectRetention", "retentionPolicy", "satisfiesPZI", "satisfiesPZS", "softDeleteTime", "website"),
)
_FIXED = ("name", "location", "hierarchicalNamespace")
_MULTI_REGIONS = frozenset(("US", "EU", "ASIA"))
_DUAL_REGIONS = frozenset(("NAM4", "EUR4", "EUR5", "EUR7", "EUR8", "ASIA1"))
# The words of which regions are named: https://cloud.google.com/about/locations
_REGION = re.compile(
    "(AFRICA|ASIA|AUSTRALIA|EUROPE|ME|NORTHAMERICA|SOUTHAMERICA|US)"
    "-(CENTRAL|(NORTH|SOUTH)(EAST|WEST)?|EAST|WEST)[1-9][0-9]?"
)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]")
_ACTIONS = frozenset(("Delete", "SetStorageClass", "AbortIncompleteMultipartUpload"))


def check_name(name: str) -> None:
    """ApiError 400 or 403 for a name that Cloud Storage would refuse."""
    if "." in name:
        with suppress(ValueError):
            ipaddress.ip_address(name)
            raise bad_request(f"Invalid bucket name: '{name}'")
        raise ApiError(
            403,
            "PERMISSION_DENIED",
            f"The bucket you tried to create requires domain ownership verification: '{name}' has dots.",
        )
    if not _NAME.fullmatch(name) or name.startswith("goog") or "google" in name:
        raise bad_request(f"Invalid bucket name: '{name}'")


def new_bucket(body: JsonObject, project_number: str, generation: int, now: str) -> JsonObject:
    """Return the resource that a valid insert creates; ApiError 400 where it is not valid."""
    bucket: JsonObject = {
        "kind": "storage#bucket",
        "id": body["name"],
        "selfLink": f"https://www.googleapis.com/storage/v1/b/{body['name']}",
        "projectNumber": project_number,
        "generation": str(generation),
        "location": "US",
        "storageClass": "STANDARD",
        "timeCreated": now,
    }
    return _finish(bucket, body, {}, now) | {"metageneration": "1", "etag": etag(1)}


def changed_bucket(bucket: JsonObject, body: JsonObject, now: str, *, replace: bool) -> JsonObject:
    """Return the resource after PATCH, or PUT where `replace`; ApiError 400 where the result is not valid."""
    for key in _FIXED:
        desired, actual = body.get(key), bucket.get(key)
        if key == "hierarchicalNamespace":
            desired, actual = _enabled(desired), _enabled(actual)
        if key in body and str(desired).upper() != str(actual).upper():
            raise bad_request(f"The bucket's {key} cannot be changed.")
    stored = bucket
    if replace:
        stored = {key: value for key, value in bucket.items() if key in _OUTPUT or key in _FIXED}
        stored["storageClass"] = bucket["storageClass"]
    metageneration = int(bucket["metageneration"]) + 1
    return _finish(stored, body, bucket, now) | {
        "metageneration": str(metageneration),
        "etag": etag(metageneration),
    }


def _enabled(feature: JsonObject | None) -> bool:
    return bool((feature or {}).get("enabled"))


def _finish(base: JsonObject, body: JsonObject, before: JsonObject, now: str) -> JsonObject:
    for key in _NOT_EMULATED:
        if body.get(key):
            raise NotEmulatedError(f"Bucket field '{key}'")
    desired = {key: value for key, value in body.items() if key not in (*_OUTPUT, *_NOT_EMULATED)}
    bucket = copy.deepcopy(base)
    merge(bucket, copy.deepcopy(desired))
    bucket["location"] = bucket["location"].upper()
    bucket["storageClass"] = bucket["storageClass"].upper()
    bucket["locationType"] = _location_type(bucket["location"])
    if bucket["locationType"] != "region":
        bucket.setdefault("rpo", "DEFAULT")
    if not bucket.get("lifecycle", {}).get("rule"):
        bucket.pop("lifecycle", None)
    _complete_access(bucket, before, now)
    _complete_soft_delete(bucket, before, now)
    if autoclass := bucket.get("autoclass"):
        autoclass.setdefault("toggleTime", now)
        if autoclass.get("enabled"):
            autoclass.setdefault("terminalStorageClass", "NEARLINE")
    _check(bucket)
    return bucket | {"updated": now}


def _complete_access(bucket: JsonObject, before: JsonObject, now: str) -> None:
    access = bucket.setdefault("iamConfiguration", {})
    legacy = access.pop("bucketPolicyOnly", {})
    uniform = access.setdefault("uniformBucketLevelAccess", dict(legacy))
    enabled = bool(uniform.get("enabled"))
    earlier = before.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {})
    access["uniformBucketLevelAccess"] = {"enabled": enabled}
    if enabled:
        locked = earlier.get("lockedTime") or later(now, _UNIFORM_LOCK_S)
        access["uniformBucketLevelAccess"]["lockedTime"] = locked
    elif earlier.get("enabled") and earlier["lockedTime"] <= now:
        raise bad_request("Cannot disable uniform bucket-level access after its locked time.")
    access["bucketPolicyOnly"] = dict(access["uniformBucketLevelAccess"])
    if access.setdefault("publicAccessPrevention", "inherited") == "unspecified":
        access["publicAccessPrevention"] = "inherited"


def _complete_soft_delete(bucket: JsonObject, before: JsonObject, now: str) -> None:
    policy = bucket.setdefault("softDeletePolicy", {})
    policy.setdefault("retentionDurationSeconds", str(DEFAULT_SOFT_DELETE_S))
    policy["retentionDurationSeconds"] = str(policy["retentionDurationSeconds"])
    earlier = before.get("softDeletePolicy", {})
    unchanged = earlier.get("retentionDurationSeconds") == policy["retentionDurationSeconds"]
    policy["effectiveTime"] = earlier["effectiveTime"] if unchanged else now


def _location_type(location: str) -> str:
    if location in _MULTI_REGIONS:
        return "multi-region"
    if location in _DUAL_REGIONS:
        return "dual-region"
    if _REGION.fullmatch(location):
        return "region"
    raise bad_request(f"The specified location constraint is not valid: '{location}'")


def _check(bucket: JsonObject) -> None:
    if bucket["storageClass"] not in STORAGE_CLASSES:
        raise bad_request(f"Invalid argument: storage class '{bucket['storageClass']}' does not exist.")
    access = bucket["iamConfiguration"]
    if access["publicAccessPrevention"] not in ("inherited", "enforced"):
        raise bad_request(f"Invalid publicAccessPrevention: '{access['publicAccessPrevention']}'")
    kept_s = int(bucket["softDeletePolicy"]["retentionDurationSeconds"])
    low, high = _SOFT_DELETE_RANGE_S
    if kept_s and not low <= kept_s <= high:
        raise bad_request(f"softDeletePolicy.retentionDurationSeconds must be 0 or between {low} and {high}.")
    if bucket.get("hierarchicalNamespace", {}).get("enabled"):
        if not access["uniformBucketLevelAccess"]["enabled"]:
            raise bad_request("Hierarchical namespace buckets must use uniform bucket-level access.")
        if bucket.get("versioning", {}).get("enabled"):
            raise bad_request("Object versioning is not supported in buckets with hierarchical namespace.")
    _check_labels(bucket.get("labels", {}))
    for rule in bucket.get("lifecycle", {}).get("rule", []):
        _check_rule(rule)


def _check_labels(labels: dict[str, str]) -> None:
    if len(labels) > 64:
        raise bad_request("Too many labels: a bucket has at most 64.")
    for key, value, _ in wrong_labels(labels):
        raise bad_request(f"Invalid label: '{key}': '{value}'")


def _check_rule(rule: JsonObject) -> None:
    action, condition = rule.get("action", {}), rule.get("condition", {})
    kind = action.get("type")
    if kind not in _ACTIONS:
        raise bad_request(f"Invalid lifecycle action type: '{kind}'")
    if kind == "SetStorageClass" and action.get("storageClass") not in STORAGE_CLASSES:
        raise bad_request("A lifecycle action of type SetStorageClass requires a valid storageClass.")
    if not condition:
        raise bad_request("A lifecycle rule requires at least one condition.")
    for key, value in condition.items():
        if isinstance(value, int) and value < 0:
            raise bad_request(f"The lifecycle condition '{key}' must not be negative.")
    if kind == "AbortIncompleteMultipartUpload":
        extra = set(condition) - {"age", "matchesPrefix", "matchesSuffix"}
        if extra:
            raise bad_request(
                f"AbortIncompleteMultipartUpload does not support the conditions {sorted(extra)}."
            )
