"""Objects as the JSON API shows them, and the fields of them that clients may set."""

from __future__ import annotations

from urllib.parse import quote

from rehearsal.cloud.service import Call, JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.storage.versions import Version

SETTABLE = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "eventBasedHold",
    "kmsKeyName",
    "metadata",
    "temporaryHold",
)
# What clients send back after reading it, and the API ignores.
_OUTPUT = frozenset(
    (
        "bucket",
        "componentCount",
        "crc32c",
        "etag",
        "generation",
        "hardDeleteTime",
        "id",
        "kind",
        "md5Hash",
        "mediaLink",
        "metageneration",
        "name",
        "owner",
        "retentionExpirationTime",
        "selfLink",
        "size",
        "softDeleteTime",
        "storageClass",
        "timeCreated",
        "timeDeleted",
        "timeFinalized",
        "timeStorageClassUpdated",
        "updated",
    )
)
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
    """NotEmulatedError if the request asks for an ACL."""
    for name in ("predefinedAcl", "predefinedDefaultObjectAcl", "destinationPredefinedAcl"):
        if call.query.get(name):
            raise NotEmulatedError(f"An ACL ({name})")


def settable(body: JsonObject) -> JsonObject:
    """The settable fields of a client's object body; NotEmulatedError for the others."""
    for key, value in body.items():
        if key not in SETTABLE and key not in _OUTPUT and value:
            raise NotEmulatedError(f"Object field '{key}'")
    storage_class(body)
    return {key: body[key] for key in SETTABLE if body.get(key) is not None}


def storage_class(body: JsonObject) -> str | None:
    """The class the body names; ApiError 400 if there is no such class."""
    name = body.get("storageClass") or None
    if name is not None and name not in STORAGE_CLASSES:
        raise bad_request(f"Invalid argument: storage class '{name}' does not exist.")
    return name


def merged(fields: JsonObject, patch: JsonObject) -> JsonObject:
    """The fields after a PATCH: null removes a field, `metadata` is merged key by key."""
    result = dict(fields)
    for key, value in patch.items():
        if key == "metadata" and value is not None:
            metadata = {**result.get("metadata", {}), **value}
            value = {name: text for name, text in metadata.items() if text is not None}
        result[key] = value
    settable({key: value for key, value in patch.items() if value is not None})
    return {key: value for key, value in result.items() if key in SETTABLE and value not in (None, {})}


def object_body(version: Version, base: str) -> JsonObject:
    """The object resource."""
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
        "etag": version.etag,
        "timeCreated": version.created,
        "updated": version.updated,
        "timeStorageClassUpdated": version.storage_class_updated,
        "timeFinalized": version.created,
    }
    optional = {
        "md5Hash": version.blob.md5,
        "componentCount": version.component_count,
        "timeDeleted": version.deleted,
        "softDeleteTime": version.soft_deleted,
        "hardDeleteTime": version.hard_deleted,
    }
    return body | {key: value for key, value in optional.items() if value is not None}
