"""Cloud KMS: key rings, keys and their versions, without the cryptography itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rehearsal.cloud.clock import rfc3339
from rehearsal.cloud.iam import Iam
from rehearsal.cloud.policies import policy_methods
from rehearsal.cloud.service import ApiError, Call, JsonObject, Method, World, bad_request

_ID = re.compile(r"[a-zA-Z0-9_-]{1,63}")
# https://cloud.google.com/kms/docs/destroy-restore: the time between scheduling and destruction.
_DESTROY_AFTER_S = 30 * 24 * 3600
_MUTABLE = ("labels", "rotationPeriod", "nextRotationTime", "versionTemplate")
_RING, _KEY, _VERSION = (
    "cloudkms.projects.locations.keyRings",
    "cloudkms.projects.locations.keyRings.cryptoKeys",
    "cloudkms.projects.locations.keyRings.cryptoKeys.cryptoKeyVersions",
)


class KmsService:
    """The cloudkms API. Rings and keys can't be deleted, as at Google."""

    api = "cloudkms"
    versions = ("v1",)

    def __init__(self, world: World, iam: Iam) -> None:
        self._world = world
        self._iam = iam

    def methods(self) -> Mapping[str, Method]:
        """By method id."""
        methods = {
            f"{_RING}.create": Method(self._create_ring, "cloudkms.keyRings.create", _parent),
            f"{_RING}.get": Method(self._get, "cloudkms.keyRings.get", _name),
            f"{_RING}.list": Method(self._list, "cloudkms.keyRings.list", _parent),
            f"{_KEY}.create": Method(self._create_key, "cloudkms.cryptoKeys.create", _parent),
            f"{_KEY}.get": Method(self._get, "cloudkms.cryptoKeys.get", _name),
            f"{_KEY}.list": Method(self._list, "cloudkms.cryptoKeys.list", _parent),
            f"{_KEY}.patch": Method(self._patch_key, "cloudkms.cryptoKeys.update", _name),
            f"{_VERSION}.create": Method(self._create_version, "cloudkms.cryptoKeyVersions.create", _parent),
            f"{_VERSION}.get": Method(self._get, "cloudkms.cryptoKeyVersions.get", _name),
            f"{_VERSION}.list": Method(self._list, "cloudkms.cryptoKeyVersions.list", _parent),
            f"{_VERSION}.destroy": Method(self._destroy, "cloudkms.cryptoKeyVersions.destroy", _name),
        }
        methods.update(policy_methods(self._iam, _RING, "cloudkms.keyRings", _resource, self._find))
        methods.update(policy_methods(self._iam, _KEY, "cloudkms.cryptoKeys", _resource, self._find))
        return methods

    def _find(self, name: str) -> JsonObject:
        body = self._world.directory.get(name)
        if body is None:
            kind = {"keyRings": "KeyRing", "cryptoKeys": "CryptoKey"}.get(
                name.split("/")[-2], "CryptoKeyVersion"
            )
            raise ApiError(404, "NOT_FOUND", f"{kind} {name} not found.")
        return body

    def _add(self, name: str, body: JsonObject) -> JsonObject:
        short = name.rpartition("/")[2]
        if not _ID.fullmatch(short):
            raise bad_request(f"Resource id '{short}' must match {_ID.pattern}.")
        if name in self._world.directory:
            raise ApiError(409, "ALREADY_EXISTS", f"{name} already exists.")
        body |= {"name": name, "createTime": self._world.clock.rfc3339()}
        self._world.directory[name] = body
        return body

    async def _create_ring(self, call: Call) -> JsonObject:
        return self._add(f"{call.path['parent']}/keyRings/{call.query.get('keyRingId', '')}", {})

    async def _create_key(self, call: Call) -> JsonObject:
        self._find(call.path["parent"])
        sent = call.body or {}
        if not sent.get("purpose"):
            raise bad_request("The request is missing the required field crypto_key.purpose.")
        body = {key: sent[key] for key in (*_MUTABLE, "purpose") if key in sent}
        body["destroyScheduledDuration"] = f"{_DESTROY_AFTER_S}s"
        body.setdefault("versionTemplate", {}).setdefault("algorithm", "GOOGLE_SYMMETRIC_ENCRYPTION")
        body["versionTemplate"].setdefault("protectionLevel", "SOFTWARE")
        name = f"{call.path['parent']}/cryptoKeys/{call.query.get('cryptoKeyId', '')}"
        self._add(name, body)
        if not call.query.get("skipInitialVersionCreation"):
            self._add_version(name)
        return self._shown(name)

    async def _create_version(self, call: Call) -> JsonObject:
        self._find(call.path["parent"])
        return self._add_version(call.path["parent"])

    def _add_version(self, key: str) -> JsonObject:
        template = self._find(key)["versionTemplate"]
        number = len(self._below(f"{key}/cryptoKeyVersions/")) + 1
        version: JsonObject = {"state": "ENABLED", **template, "generateTime": self._world.clock.rfc3339()}
        return self._add(f"{key}/cryptoKeyVersions/{number}", version)

    async def _get(self, call: Call) -> JsonObject:
        return self._shown(_name(call))

    def _shown(self, name: str) -> JsonObject:
        """The resource; a key with its primary version, its first here, since rotation is not emulated."""
        body = self._find(name)
        primary = self._world.directory.get(f"{name}/cryptoKeyVersions/1")
        return body | {"primary": primary} if primary else body

    async def _list(self, call: Call) -> JsonObject:
        kind = call.method_id.rsplit(".", 2)[1]
        parent = call.path["parent"]
        if kind != "keyRings":
            self._find(parent)
        found = [self._shown(name) for name in self._below(f"{parent}/{kind}/")]
        return ({kind: found} if found else {}) | {"totalSize": len(found)}

    def _below(self, prefix: str) -> list[str]:
        names = self._world.directory
        return [name for name in names if name.startswith(prefix) and "/" not in name[len(prefix) :]]

    async def _patch_key(self, call: Call) -> JsonObject:
        body, sent = self._find(_name(call)), call.body or {}
        mask = call.query.get("updateMask", "")
        if not mask:
            raise bad_request("The request is missing the required field update_mask.")
        for path in mask.split(","):
            if path not in _MUTABLE:
                raise bad_request(f"Update mask path '{path}' is not supported; {', '.join(_MUTABLE)} are.")
            if sent.get(path) in (None, {}, ""):
                body.pop(path, None)
            else:
                body[path] = sent[path]
        return self._shown(_name(call))

    async def _destroy(self, call: Call) -> JsonObject:
        version = self._find(_name(call))
        if version["state"] not in ("ENABLED", "DISABLED"):
            text = f"{_name(call)} is not enabled or disabled; its current state is: {version['state']}."
            raise ApiError(400, "FAILED_PRECONDITION", text)
        version["state"] = "DESTROY_SCHEDULED"
        version["destroyTime"] = rfc3339(self._world.clock.now() + _DESTROY_AFTER_S)
        return version


def _name(call: Call) -> str:
    return call.path["name"]


def _parent(call: Call) -> str:
    return call.path["parent"]


def _resource(call: Call) -> str:
    return call.path["resource"]
