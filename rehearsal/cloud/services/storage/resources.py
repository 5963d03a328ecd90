"""Objects as the JSON API shows them, and the fields of them that clients may set."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

from rehearsal.cloud.core.errors import JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.door import discovery
from rehearsal.cloud.services.storage.versions import Version

SETTABLE = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "metadata",
)
_NOT_EMULATED = ("acl", "contexts", "eventBasedHold", "restoreToken", "retention", "temporaryHold")
_METADATA_BYTES = 8 << 10  # https://cloud.google.com/storage/quotas
STORAGE_CLASSES = frozenset(
    (
        "STANDARD",
        "NEARLINE",
        "COLDLINE",
        "ARCHIVE",
        "MULTI_REGIONAL",
        "REGIONAL",
        "DURABLE_REDUCED_AVAILABILITY",
    )
)


def base_url(call: Call) -> str:
    """Scheme and host under which the client reached us: its links must lead back here."""
    return f"{call.raw.scheme}://{call.raw.headers['Host']}"


def refuse_acls(call: Call) -> None:
    """NotEmulatedError for a request with an ACL."""
    for name in ("predefinedAcl", "predefinedDefaultObjectAcl", "destinationPredefinedAcl"):
        if call.query.get(name):
            raise NotEmulatedError(f"An ACL ({name})")


def refuse_soft_deleted(call: Call) -> None:
    """NotEmulatedError for a request about what was removed."""
    if call.query.get("softDeleted"):
        raise NotEmulatedError("What soft delete keeps (softDeleted)")


def settable(body: JsonObject) -> JsonObject:
    """Return the settable fields of a client's object body; NotEmulatedError for the others."""
    known = discovery.document("storage", "v1").definitions["Object"]["properties"]
    for key, value in body.items():
        if value and (key in _NOT_EMULATED or key not in known):
            raise NotEmulatedError(f"Object field '{key}'")
    storage_class(body)
    custom = body.get("metadata") or {}
    size = sum(len(f"{key}{value or ''}".encode()) for key, value in custom.items())
    if size > _METADATA_BYTES:
        raise bad_request(f"Custom metadata has {size} bytes; at most {_METADATA_BYTES} are allowed.")
    return {key: body[key] for key in SETTABLE if body.get(key) is not None}


def check_name(name: str, sent: str) -> None:
    """ApiError 400 unless an object may have this name, which `sent`, a percent-encoded text, may contain.

    https://cloud.google.com/storage/docs/objects#naming
    """
    if not name:
        raise bad_request("Required parameter: name")
    # What isn't UTF-8 arrives as replacement characters from a query and as surrogates from JSON.
    broken = "\ufffd" in name and "%EF%BF%BD" not in sent.upper()
    if broken or name.encode(errors="replace") != name.encode(errors="ignore"):
        raise bad_request("Object names must be valid UTF-8.")
    forbidden = name in (".", "..") or name.startswith(".well-known/acme-challenge/")
    if len(name.encode()) > 1024 or "\n" in name or "\r" in name or forbidden:
        raise bad_request(f"Invalid object name: {name!r}")


def storage_class(body: JsonObject) -> str | None:
    """Return the class the body names; ApiError 400 if there is no such class."""
    name = body.get("storageClass") or None
    if name is not None and name not in STORAGE_CLASSES:
        raise bad_request(f"Invalid argument: storage class '{name}' does not exist.")
    return name


def merged(fields: JsonObject, patch: JsonObject) -> JsonObject:
    """Return the fields after a PATCH: null removes a field, `metadata` is merged key by key."""
    result = dict(fields)
    for key, value in patch.items():
        if key == "metadata" and value is not None:
            metadata = {**result.get("metadata", {}), **value}
            value = {name: text for name, text in metadata.items() if text is not None}
        result[key] = value
    settable({key: value for key, value in patch.items() if value is not None})
    return settable({key: value for key, value in result.items() if value not in (None, {})})


def check_custom_time(before: JsonObject, after: JsonObject) -> None:
    """ApiError 400 if the custom time goes or moves back."""
    old, new = before.get("customTime"), after.get("customTime")
    if old and (not new or datetime.fromisoformat(new) < datetime.fromisoformat(old)):
        raise bad_request("Custom time cannot be removed or set to an earlier time.")


def object_body(version: Version, call: Call) -> JsonObject:
    """Return the object resource."""
    return resource(version, base_url(call)) | {"timeFinalized": version.created}


def resource(version: Version, base: str = "https://www.googleapis.com") -> JsonObject:
    """Return a StorageObjectData, which events have; the object resource has one field more.

    https://github.com/googleapis/google-cloudevents/tree/main/proto/google/events/cloud/storage
    """
    path = f"/b/{version.bucket}/o/{quote(version.name, safe='')}"
    body: JsonObject = {
        "kind": "storage#object",
        "id": f"{version.bucket}/{version.name}/{version.generation}",
        "selfLink": f"https://www.googleapis.com/storage/v1{path}",
        "mediaLink": f"{base}/download/storage/v1{path}?generation={version.generation}&alt=media",
        "name": version.name,
        "bucket": version.bucket,
        "generation": str(version.generation),
        "metageneration": str(version.metageneration),
        **version.fields,
        "storageClass": version.storage_class,
        "size": str(version.blob.size),
        "crc32c": version.blob.crc32c,
        "md5Hash": version.blob.md5,
        "etag": version.etag,
        "timeCreated": version.created,
        "updated": version.updated,
        "timeStorageClassUpdated": version.storage_class_updated,
        "componentCount": version.component_count,
        "timeDeleted": version.deleted,
    }
    return {key: value for key, value in body.items() if value is not None}
