"""Encryption of objects by a key in Cloud KMS.

Nothing is encrypted here; who may read, and what a bad key is answered, is as at Google:
https://cloud.google.com/storage/docs/encryption/customer-managed-keys and, for the reasons,
https://cloud.google.com/storage/docs/json_api/v1/status-codes.
"""

from __future__ import annotations

import re

from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import agent
from rehearsal.cloud.services.storage.store import Store
from rehearsal.cloud.services.storage.versions import Version

_CUSTOMERS = "X-Goog-Encryption-Algorithm"
_KEY = re.compile(r"projects/[^/]+/locations/(?P<location>[^/]+)/keyRings/[^/]+/cryptoKeys/[^/]+")


def for_new(store: Store, call: Call, bucket: str, named: str | None) -> JsonObject:
    """Return the fields of an object that is about to be written; ApiError where its key can't be used.

    `named` is the KMS key that the request names; without one, the bucket's default key is used.
    """
    if _CUSTOMERS in call.raw.headers:
        raise NotEmulatedError("A customer-supplied encryption key")
    body = store.bucket(bucket)
    key = named or body.get("encryption", {}).get("defaultKmsKeyName")
    return {"kmsKeyName": kms_version(store, key, body["location"])} if key else {}


def kms_version(store: Store, key: str, location: str) -> str:
    """Return the version of a KMS key that encrypts in a bucket at this location; ApiError if none may."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise _refused("cloudKmsBadKey", f"Malformed Cloud KMS crypto key: {key}")
    if match["location"] != {"EU": "europe"}.get(location, location.lower()):
        text = f"Cloud KMS region '{match['location']}' not available for use with GCS region '{location}'."
        raise _refused("cloudKmsKeyLocationNotAllowed", text)
    _require_granted(store, "useToEncrypt", key)
    version = f"{key}/cryptoKeyVersions/1"
    if key not in store.world.directory:
        raise _refused("cloudKmsEncryptionKeyNotFound", "Cloud KMS encryption key not found.")
    _require_enabled(store.world, version)
    return version


def require_readable(store: Store, version: Version) -> None:
    """ApiError unless the content can be decrypted with what KMS allows."""
    if key := version.fields.get("kmsKeyName"):
        _require_granted(store, "useToDecrypt", key.partition("/cryptoKeyVersions/")[0])
        _require_enabled(store.world, key)


def _require_granted(store: Store, verb: str, key: str) -> None:
    if not store.iam.allowed(agent(store.world, "storage"), f"cloudkms.cryptoKeyVersions.{verb}", key):
        raise ApiError(
            403,
            "PERMISSION_DENIED",
            "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service account has "
            "been authorized to use this key.",
        )


def _require_enabled(world: World, version: str) -> None:
    if world.directory.get(version, {}).get("state") != "ENABLED":
        text = "Cloud KMS key is disabled, destroyed, or scheduled to be destroyed."
        raise _refused("cloudKmsDisabledKey", text)


def _refused(reason: str, text: str) -> ApiError:
    return ApiError(400, "INVALID_ARGUMENT", text, reason=reason)
