"""The IAM API's custom roles of a project.

https://cloud.google.com/iam/docs/creating-custom-roles: a deleted role can be undeleted for 7 days; after
them it and its bindings are gone, and for 30 days more its id can't be used again. Of a permission only the
form is checked, not whether Google has it.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Mapping

from rehearsal.cloud.iam import Iam
from rehearsal.cloud.service import ApiError, Call, JsonObject, Method, World, bad_request

UNDELETE_S, REUSE_S = 7 * 86400.0, 37 * 86400.0  # since the deletion
_ROLE_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
_PERMISSION = re.compile(r"[a-z][a-zA-Z]*\.[a-zA-Z]+\.[a-zA-Z]+")
_MUTABLE = ("title", "description", "includedPermissions", "stage")
_SPELT = {"included_permissions": "includedPermissions"}
_ALPHA = "ALPHA"  # of a role without a stage, and never shown


class RoleService:
    """The iam API, as far as it is about custom roles."""

    api = "iam"
    versions = ("v1",)

    def __init__(self, world: World, iam: Iam) -> None:
        self._world = world
        self._iam = iam
        self._deleted_at: dict[str, float] = {}
        self._etags = itertools.count(1)

    def methods(self) -> Mapping[str, Method]:
        """By method id."""
        collection, permissions = "iam.projects.roles", "iam.roles"
        table = {
            "create": (self._create, "create"),
            "get": (self._get, "get"),
            "list": (self._list, "list"),
            "patch": (self._patch, "update"),
            "delete": (self._delete, "delete"),
            "undelete": (self._undelete, "undelete"),
        }
        return {
            f"{collection}.{name}": Method(handler, f"{permissions}.{verb}")
            for name, (handler, verb) in table.items()
        }

    def _find(self, call: Call) -> JsonObject:
        name = call.path["name"]
        self._bury()
        body = self._world.directory.get(name)
        if body is None:
            raise ApiError(404, "NOT_FOUND", f"The role named {name} was not found.")
        etag = (call.body or {}).get("etag") or call.query.get("etag")
        if etag and etag != body["etag"]:
            text = "There were concurrent role changes. Please retry the whole read-modify-write."
            raise ApiError(409, "ABORTED", text, reason="aborted")
        return body

    def _bury(self) -> None:
        """Forget the roles that can't be undeleted any more."""
        for name, since in self._deleted_at.items():
            if name in self._world.directory and self._world.clock.now() >= since + UNDELETE_S:
                del self._world.directory[name]
                self._iam.forget_role(name)

    async def _create(self, call: Call) -> JsonObject:
        sent = call.body or {}
        role_id, role = sent.get("roleId", ""), sent.get("role") or {}
        if not _ROLE_ID.fullmatch(role_id):
            raise bad_request(f"The role_id ({role_id}) must match {_ROLE_ID.pattern}.")
        if role.get("name"):
            raise bad_request("The role name must not be set.")
        name = f"{call.path['parent']}/roles/{role_id}"
        self._bury()
        if self._world.clock.now() < self._deleted_at.get(name, float("-inf")) + REUSE_S:
            text = f"You can't create a role_id ({role_id}) which has been marked for deletion."
            raise _wrong_state(text)
        if name in self._world.directory:
            text = f"A role named {role_id} in {call.path['parent']} already exists."
            raise ApiError(409, "ALREADY_EXISTS", text)
        self._deleted_at.pop(name, None)
        body: JsonObject = {"name": name, **_checked(role, role.keys() & set(_MUTABLE))}
        self._world.directory[name] = body
        return self._changed(body)

    async def _get(self, call: Call) -> JsonObject:
        return _shown(self._find(call))

    async def _list(self, call: Call) -> JsonObject:
        self._bury()
        below, full = f"{call.path['parent']}/roles/", call.query.get("view") == "FULL"
        found = [
            _shown(body) if full else _shown(body) | {"includedPermissions": None}
            for name, body in sorted(self._world.directory.items())
            if name.startswith(below) and (call.query.get("showDeleted") or not body.get("deleted"))
        ]
        roles = [{key: value for key, value in one.items() if value is not None} for one in found]
        return {"roles": roles} if roles else {}

    async def _patch(self, call: Call) -> JsonObject:
        body, sent = self._find(call), call.body or {}
        paths = [path for path in call.query.get("updateMask", "").split(",") if path]
        named = {_SPELT.get(path, path) for path in paths} or sent.keys() & set(_MUTABLE)
        if unknown := named - set(_MUTABLE):
            raise bad_request(f"Invalid update mask: {', '.join(sorted(unknown))}.")
        if body.get("deleted"):
            raise _wrong_state(f"You can't update {body['name']}, which has been marked for deletion.")
        changes = _checked(sent, named)
        for key in named:
            body.pop(key, None)
        body |= changes
        return self._changed(body)

    async def _delete(self, call: Call) -> JsonObject:
        body = self._find(call)
        if body.get("deleted"):
            raise _wrong_state(f"You can't delete {body['name']}, which has been marked for deletion.")
        body["deleted"] = True
        self._deleted_at[body["name"]] = self._world.clock.now()
        return self._changed(body)

    async def _undelete(self, call: Call) -> JsonObject:
        body = self._find(call)
        if not body.pop("deleted", False):
            raise _wrong_state(f"You can't undelete {body['name']}, which isn't deleted.")
        del self._deleted_at[body["name"]]
        return self._changed(body)

    def _changed(self, body: JsonObject) -> JsonObject:
        """The role, once IAM knows what it grants now."""
        body["etag"] = base64.b64encode(next(self._etags).to_bytes(8, "big")).decode()
        off = body.get("deleted") or body.get("stage") == "DISABLED"
        self._iam.define_role(body["name"], () if off else body.get("includedPermissions", ()))
        return _shown(body)


def _checked(role: JsonObject, keys: set[str]) -> JsonObject:
    """The role's own values of these fields; those without one are left out."""
    for permission in role.get("includedPermissions") or ():
        if not _PERMISSION.fullmatch(permission):
            raise bad_request(f"Permission {permission} is not valid.")
    if len(role.get("title", "").encode()) > 100:
        raise bad_request("The role's title has more than 100 bytes.")
    return {key: role[key] for key in keys if role.get(key)}


def _shown(body: JsonObject) -> JsonObject:
    return {key: value for key, value in body.items() if (key, value) != ("stage", _ALPHA)}


def _wrong_state(text: str) -> ApiError:
    return ApiError(400, "FAILED_PRECONDITION", text, reason="failedPrecondition")
