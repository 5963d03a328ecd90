"""Event data of an object's new generation."""

from __future__ import annotations

from urllib.parse import quote

from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.services.storage.versions import Version


def event_data(version: Version) -> JsonObject:
    """Return a StorageObjectData.

    https://github.com/googleapis/google-cloudevents/tree/main/proto/google/events/cloud/storage
    """
    path = f"{version.bucket}/o/{quote(version.name, safe='')}"
    host = "https://www.googleapis.com"
    data: JsonObject = {
        "kind": "storage#object",
        "id": f"{version.bucket}/{version.name}/{version.generation}",
        "selfLink": f"{host}/storage/v1/b/{path}",
        "mediaLink": f"{host}/download/storage/v1/b/{path}?generation={version.generation}&alt=media",
        "name": version.name,
        "bucket": version.bucket,
        "generation": str(version.generation),
        "metageneration": str(version.metageneration),
        "contentType": version.fields.get("contentType", ""),
        "metadata": version.fields.get("metadata"),
        "storageClass": version.storage_class,
        "size": str(version.blob.size),
        "crc32c": version.blob.crc32c,
        "md5Hash": version.blob.md5,
        "etag": version.etag,
        "timeCreated": version.created,
        "updated": version.updated,
        "timeStorageClassUpdated": version.storage_class_updated,
    }
    return {key: value for key, value in data.items() if value}
