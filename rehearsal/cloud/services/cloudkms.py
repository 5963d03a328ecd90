"""Cloud KMS: key rings, keys and their versions, without the cryptography itself."""

from __future__ import annotations

from rehearsal.cloud.clock import rfc3339
from rehearsal.cloud.collections import Change, Collection, Entry, Verb
from rehearsal.cloud.collections.resources import Resources
from rehearsal.cloud.service import ApiError, JsonObject

_ID = r"[a-zA-Z0-9_-]{1,63}"
# https://cloud.google.com/kms/docs/destroy-restore: the time between scheduling and destruction.
_DESTROY_AFTER_S = 30 * 24 * 3600
_RING = "cloudkms.projects.locations.keyRings"
_KEY, _VERSION = f"{_RING}.cryptoKeys", f"{_RING}.cryptoKeys.cryptoKeyVersions"
_WORDS = ("{kind} {name} not found.", "{kind} {name} already exists.")


def _first_version(change: Change) -> None:
    """A key is made with a version, which is its primary one for good: rotation is not emulated."""
    if not change.call.query.get("skipInitialVersionCreation"):
        resources = change.resources
        shape, name = resources.shape(_VERSION), f"{change.name}/cryptoKeyVersions/1"
        now = change.world.clock.rfc3339()
        version = {"name": name, "createTime": now, **_version(change.body, now)}
        resources.world.directory[name] = shape.writable(version, output=True)


def _version(key: JsonObject, now: str) -> JsonObject:
    return {"state": "ENABLED", "generateTime": now, **key["versionTemplate"]}


def _check_version(change: Change) -> None:
    if not change.old:
        key = change.world.directory[change.name.partition("/cryptoKeyVersions/")[0]]
        change.body.update(_version(key, change.world.clock.rfc3339()))
    elif change.body["state"] not in ("ENABLED", "DISABLED"):
        raise ApiError(400, "INVALID_ARGUMENT", f"{change.name} can't be made {change.body['state']}.")


def _next_version(resources: Resources, collection: str) -> str:
    return str(len(resources.below(collection)) + 1)


def _show_primary(change: Change) -> None:
    if primary := change.world.directory.get(f"{change.name}/cryptoKeyVersions/1"):
        change.body["primary"] = primary


def _destroy(change: Change) -> JsonObject:
    state = change.old["state"]
    if state not in ("ENABLED", "DISABLED"):
        text = f"{change.name} is not enabled or disabled; its current state is: {state}."
        raise ApiError(400, "FAILED_PRECONDITION", text)
    change.old["state"] = "DESTROY_SCHEDULED"
    change.old["destroyTime"] = rfc3339(change.world.clock.now() + _DESTROY_AFTER_S)
    return change.old


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
            not_found=_WORDS[0],
            exists=_WORDS[1],
        ),
        Collection(
            _VERSION,
            omit=("delete",),
            new_id=_next_version,
            mutable=("state",),
            mask_required=True,
            check=_check_version,
            verbs={"destroy": Verb(_destroy)},
            not_found=_WORDS[0],
            exists=_WORDS[1],
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
