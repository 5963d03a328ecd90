"""Cloud KMS: key rings, symmetric keys and their versions; encrypt and decrypt by AES-256-GCM.

https://cloud.google.com/kms/docs/reference/rest/v1/projects.locations.keyRings.cryptoKeys/encrypt
"""

from __future__ import annotations

import base64
import os

import google_crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rehearsal.cloud.collections import Change, Collection, Entry, Verb
from rehearsal.cloud.core.clock import rfc3339
from rehearsal.cloud.core.errors import ApiError, JsonObject, bad_request

_ID = r"[a-zA-Z0-9_-]{1,63}"
# https://cloud.google.com/kms/docs/destroy-restore: the time between scheduling and destruction.
_DESTROY_AFTER_S = 30 * 24 * 3600
_RING = "cloudkms.projects.locations.keyRings"
_KEY, _VERSION = f"{_RING}.cryptoKeys", f"{_RING}.cryptoKeys.cryptoKeyVersions"
_USE = "cloudkms.cryptoKeyVersions"
_MOST_BYTES = 64 << 10  # of a plaintext: https://cloud.google.com/kms/quotas#resource_limits
_NONCE_BYTES = 12
_WORDS = ("{kind} {name} not found.", "{kind} {name} already exists.")


def _first_version(change: Change) -> None:
    """Create the version that stays a new key's primary one: rotation is not emulated."""
    if not change.call.query.get("skipInitialVersionCreation"):
        resources = change.resources
        shape, name = resources.shape(_VERSION), f"{change.name}/cryptoKeyVersions/1"
        now = change.world.clock.rfc3339()
        version = {"name": name, "createTime": now, "generateTime": now, "state": "ENABLED"}
        version |= change.body["versionTemplate"]
        resources.world.directory[name] = shape.writable(version, output=True)


def _show_primary(change: Change) -> None:
    if primary := change.world.directory.get(f"{change.name}/cryptoKeyVersions/1"):
        change.body["primary"] = primary


def _destroy(change: Change) -> JsonObject:
    state = change.old["state"]
    if state != "ENABLED":
        text = f"{change.name} is not enabled or disabled; its current state is: {state}."
        raise ApiError(400, "FAILED_PRECONDITION", text)
    change.old["state"] = "DESTROY_SCHEDULED"
    change.old["destroyTime"] = rfc3339(change.world.clock.now() + _DESTROY_AFTER_S)
    return change.old


def _bytes(change: Change, name: str) -> tuple[bytes, bool]:
    """Return a field of the request, and True if it has a checksum; ApiError 400 for a wrong one."""
    value, checksum = change.sent.get(name, ""), change.sent.get(f"{name}Crc32c")
    content = base64.b64decode(value)
    if checksum is not None and int(checksum) != google_crc32c.value(content):
        raise bad_request(f"The checksum in field {name}_crc32c did not match the data in field {name}.")
    return content, checksum is not None


def _checked(name: str, content: bytes) -> JsonObject:
    text = base64.b64encode(content).decode()
    return {name: text, f"{name}Crc32c": str(google_crc32c.value(content))}


def _cipher(change: Change) -> AESGCM:
    """Of the key's only version. ApiError 400 unless that is enabled and encrypts symmetrically."""
    name = f"{change.name}/cryptoKeyVersions/1"
    version = change.world.directory.get(name, {})
    if change.old["purpose"] != "ENCRYPT_DECRYPT" or version.get("state") != "ENABLED":
        text = f"{name} is not enabled, or not a key to encrypt and decrypt with."
        raise ApiError(400, "FAILED_PRECONDITION", text, reason="failedPrecondition")
    private = change.world.private.setdefault(name, {})
    return AESGCM(private.setdefault("key", AESGCM.generate_key(256)))


def _encrypt(change: Change) -> JsonObject:
    plaintext, checked = _bytes(change, "plaintext")
    more, more_checked = _bytes(change, "additionalAuthenticatedData")
    if len(plaintext) + len(more) > _MOST_BYTES:
        raise bad_request(f"The plaintext and the additional data have more than {_MOST_BYTES} bytes.")
    nonce = os.urandom(_NONCE_BYTES)
    sealed = nonce + _cipher(change).encrypt(nonce, plaintext, more)
    return {
        "name": f"{change.name}/cryptoKeyVersions/1",
        **_checked("ciphertext", sealed),
        "verifiedPlaintextCrc32c": checked,
        "verifiedAdditionalAuthenticatedDataCrc32c": more_checked,
        "protectionLevel": "SOFTWARE",
    }


def _decrypt(change: Change) -> JsonObject:
    sealed, _ = _bytes(change, "ciphertext")
    more, _ = _bytes(change, "additionalAuthenticatedData")
    try:
        plaintext = _cipher(change).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], more)
    except (InvalidTag, ValueError):
        raise bad_request("Decryption failed: verify that 'name' refers to the correct CryptoKey.") from None
    return {**_checked("plaintext", plaintext), "usedPrimary": True, "protectionLevel": "SOFTWARE"}


# Rings, keys and versions stay for good (https://cloud.google.com/kms/docs/object-hierarchy#lifetime).
ENTRY = Entry(
    "cloudkms",
    ("v1",),
    (
        Collection(_RING, pattern=_ID, omit=("delete",), not_found=_WORDS[0], exists=_WORDS[1]),
        Collection(
            _KEY,
            pattern=_ID,
            omit=("delete",),
            required=("purpose",),
            defaults={
                "destroyScheduledDuration": f"{_DESTROY_AFTER_S}s",
                "versionTemplate": {
                    "algorithm": "GOOGLE_SYMMETRIC_ENCRYPTION",
                    "protectionLevel": "SOFTWARE",
                },
            },
            mutable=("labels", "rotationPeriod", "nextRotationTime", "versionTemplate"),
            mask_required=True,
            created=_first_version,
            shown=_show_primary,
            permissions={"encrypt": f"{_USE}.useToEncrypt", "decrypt": f"{_USE}.useToDecrypt"},
            verbs={"encrypt": Verb(_encrypt), "decrypt": Verb(_decrypt)},
            not_found=_WORDS[0],
            exists=_WORDS[1],
        ),
        Collection(
            _VERSION,
            omit=("create", "patch", "delete"),
            verbs={"destroy": Verb(_destroy)},
            not_found=_WORDS[0],
        ),
    ),
    package="google.cloud.kms.v1",
    location_unknown=(
        404,
        "NOT_FOUND",
        "The request concerns location '{location}' but was sent to location 'global'. Either Cloud KMS is "
        "not available in '{location}' or the request was misrouted.",
    ),
)
