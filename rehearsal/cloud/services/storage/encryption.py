"""Encryption of objects: a key in Cloud KMS, or a customer's key that comes with each request.

Nothing is encrypted here; who may read, and what a bad key is answered, is as at Google:
https://cloud.google.com/storage/docs/encryption/customer-managed-keys,
https://cloud.google.com/storage/docs/encryption/customer-supplied-keys and, for the reasons,
https://cloud.google.com/storage/docs/json_api/v1/status-codes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import agent
from rehearsal.cloud.services.storage.store import Store
from rehearsal.cloud.services.storage.versions import Version

# Of an object's fields those that its encryption decides, and no client sets.
FIELDS = ("customerEncryption", "kmsKeyName")
COPY_SOURCE = "X-Goog-Copy-Source-Encryption"
_KEY = re.compile(r"projects/[^/]+/locations/(?P<location>[^/]+)/keyRings/[^/]+/cryptoKeys/[^/]+")


def for_new(store: Store, call: Call, bucket: str, named: str | None) -> JsonObject:
    """Return the fields of an object that is about to be written; ApiError where its key can't be used.

    `named` is the KMS key that the request names; without one, the bucket's default key is used.
    """
    if own := customer_key(call.raw.headers):
        if named:
            raise _refused("invalid", "A customer-supplied key and a Cloud KMS key can't be used together.")
        return {"customerEncryption": {"encryptionAlgorithm": "AES256", "keySha256": own}}
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


def require_readable(store: Store, headers: Mapping[str, str], version: Version, sent: str = "") -> None:
    """ApiError unless the content can be decrypted with what the request brought and KMS lets us use.

    `sent`: how the headers with the key begin, where it isn't the usual way.
    """
    if key := version.fields.get("kmsKeyName"):
        _require_granted(store, "useToDecrypt", key.partition("/cryptoKeyVersions/")[0])
        _require_enabled(store.world, key)
    own = customer_key(headers, sent) if sent else customer_key(headers)
    needed = version.fields.get("customerEncryption", {}).get("keySha256")
    if own == needed:
        return
    if own is None:
        text = "The target object is encrypted by a customer-supplied encryption key."
        raise _refused("resourceIsEncryptedWithCustomerEncryptionKey", text)
    if needed is None:
        text = "The target object is not encrypted by a customer-supplied encryption key."
        raise _refused("resourceNotEncryptedWithCustomerEncryptionKey", text)
    raise _refused("customerEncryptionKeyIsIncorrect", "The provided encryption key is incorrect.")


def customer_key(headers: Mapping[str, str], sent: str = "X-Goog-Encryption") -> str | None:
    """Return the SHA-256 of the key in the headers, as base64, or None; ApiError 400 for wrong headers."""
    algorithm, key, sha256 = (headers.get(f"{sent}-{part}") for part in ("Algorithm", "Key", "Key-Sha256"))
    if algorithm is None and key is None and sha256 is None:
        return None
    if algorithm != "AES256":
        text = "Missing or invalid encryption algorithm: AES256 is the only one."
        raise _refused("customerEncryptionAlgorithmIsInvalid", text)
    try:
        content = base64.b64decode(key or "", validate=True)
    except binascii.Error:
        content = b""
    if len(content) != 32:
        text = (
            "Missing an encryption key, or it is not base64 encoded, or it does not meet the required length."
        )
        raise _refused("customerEncryptionKeyFormatIsInvalid", text)
    actual = base64.b64encode(hashlib.sha256(content).digest()).decode()
    if sha256 != actual:
        text = "Missing a SHA256 hash of the encryption key, or it does not match the encryption key."
        raise _refused("customerEncryptionKeySha256IsInvalid", text)
    return actual


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
