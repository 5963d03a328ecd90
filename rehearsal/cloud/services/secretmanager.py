"""Secret Manager: global secrets and their versions, which are never disabled.

https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets
"""

from __future__ import annotations

import base64

import google_crc32c

from rehearsal.cloud.collections import Change, Collection, Entry, Verb
from rehearsal.cloud.collections.checks import every, not_emulated, one_of, topic
from rehearsal.cloud.core.errors import JsonObject, bad_request
from rehearsal.cloud.core.world import World

_SECRETS = "secretmanager.projects.secrets"
_VERSIONS = f"{_SECRETS}.versions"
_MAX_BYTES = 64 << 10  # https://cloud.google.com/secret-manager/quotas


def _numbers(world: World, secret: str) -> list[int]:
    begin = f"{secret}/versions/"
    return sorted(int(name.removeprefix(begin)) for name in world.directory if name.startswith(begin))


def _latest(world: World, name: str) -> str:
    secret, _, version = name.partition("/versions/")
    numbers = _numbers(world, secret)
    return f"{secret}/versions/{numbers[-1]}" if version == "latest" and numbers else name


def _add(change: Change) -> JsonObject:
    """addVersion."""
    payload = change.sent.get("payload") or {}
    data = base64.b64decode(payload.get("data", ""))
    if not data or len(data) > _MAX_BYTES:
        raise bad_request(f"The secret payload must have between 1 and {_MAX_BYTES} bytes.")
    checksum = payload.get("dataCrc32c")
    if checksum is not None and int(checksum) != google_crc32c.value(data):
        raise bad_request("The checksum data_crc32c doesn't match the payload.")
    name = f"{change.name}/versions/{max([0, *_numbers(change.world, change.name)]) + 1}"
    body = {
        "name": name,
        "createTime": change.world.clock.rfc3339(),
        "state": "ENABLED",
        "replicationStatus": {"automatic": {}},
        "clientSpecifiedPayloadChecksum": checksum is not None,
        "etag": f'"{name.rpartition("/")[2]}"',
    }
    change.world.directory[name] = body
    change.world.private[name] = {"data": data}
    return body


def _access(change: Change) -> JsonObject:
    data = change.private["data"]
    payload = {"data": base64.b64encode(data).decode(), "dataCrc32c": str(google_crc32c.value(data))}
    return {"name": change.name, "payload": payload}


def _rotation(change: Change) -> None:
    if change.body.get("rotation") and not change.body.get("topics"):
        raise bad_request("Rotation needs at least one topic.")


ENTRY = Entry(
    "secretmanager",
    ("v1",),
    (
        Collection(
            _SECRETS,
            pattern=r"[-\w]{1,255}",
            permissions={"addVersion": "secretmanager.versions.add"},
            mask_required=True,
            references=(topic("topics.name"),),
            check=every(
                one_of("replication.automatic", "replication.userManaged"),
                not_emulated(
                    "ttl", "expireTime", "versionAliases", "versionDestroyTtl", "secretType", "tags",
                ),
                _rotation,
            ),
            verbs={"addVersion": Verb(_add)},
            exists="Secret [{name}] already exists.",
            not_found="Secret [{name}] not found.",
        ),
        Collection(
            _VERSIONS,
            permission="secretmanager.versions",
            alias=_latest,
            verbs={"access": Verb(_access)},
            not_found="Secret Version [{name}] not found.",
        ),
    ),
)  # fmt: skip
