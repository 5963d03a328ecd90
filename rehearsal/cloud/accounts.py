"""The IAM API's service accounts."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Mapping

from rehearsal.cloud.iam import Iam
from rehearsal.cloud.policies import policy_methods
from rehearsal.cloud.service import ApiError, Call, JsonObject, Method, World, bad_request

_ACCOUNT_ID = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
_MUTABLE = {"display_name": "displayName", "displayName": "displayName", "description": "description"}


class AccountService:
    """The iam API, as far as it is about service accounts."""

    api = "iam"

    def __init__(self, world: World, iam: Iam) -> None:
        self._world = world
        self._iam = iam
        self._ids = itertools.count(10**20 + time.time_ns() // 1000)
        self._deleted: dict[str, JsonObject] = {}

    def methods(self) -> Mapping[str, Method]:
        """By method id."""
        collection, permissions = "iam.projects.serviceAccounts", "iam.serviceAccounts"
        return {
            f"{collection}.create": Method(self._create, f"{permissions}.create", _parent),
            f"{collection}.get": Method(self._get, f"{permissions}.get", self._named),
            f"{collection}.list": Method(self._list, f"{permissions}.list", _parent),
            f"{collection}.patch": Method(self._patch, f"{permissions}.update", self._named),
            f"{collection}.delete": Method(self._delete, f"{permissions}.delete", self._named),
            f"{collection}.undelete": Method(self._undelete, f"{permissions}.undelete"),
            **policy_methods(self._iam, collection, permissions, self._named, self._find),
        }

    def _named(self, call: Call) -> str:
        """The full name by e-mail address, also where the path has `-` or a unique id instead."""
        name = call.path.get("name") or call.path["resource"]
        project, _, account = name.removeprefix("projects/").partition("/serviceAccounts/")
        if project in ("-", self._world.number):
            project = self._world.project
        parent = f"projects/{project}/serviceAccounts/"
        if account.isdigit():
            accounts = self._world.directory.items()
            return next(
                (full for full, body in accounts if full.startswith(parent) and body["uniqueId"] == account),
                parent + account,
            )
        return parent + account

    def _find(self, name: str) -> JsonObject:
        body = self._world.find(name)
        if body is None:
            email = name.rpartition("/")[2]
            raise ApiError(404, "NOT_FOUND", f"Unknown service account: {email}")
        return body

    async def _create(self, call: Call) -> JsonObject:
        sent = call.body or {}
        account_id = sent.get("accountId", "")
        if not 6 <= len(account_id) <= 30:
            raise bad_request(f'The account ID "{account_id}" does not have a length between 6 and 30.')
        if not _ACCOUNT_ID.fullmatch(account_id):
            raise bad_request(
                f'The account ID "{account_id}" must match the regular expression {_ACCOUNT_ID.pattern}.'
            )
        project = self._world.project
        email = f"{account_id}@{project}.iam.gserviceaccount.com"
        name = f"projects/{project}/serviceAccounts/{email}"
        if name in self._world.directory:
            text = f"Service account {account_id} already exists within project projects/{project}."
            raise ApiError(409, "ALREADY_EXISTS", text)
        details = sent.get("serviceAccount") or {}
        body: JsonObject = {
            **{key: details[key] for key in ("displayName", "description") if details.get(key)},
            "name": name,
            "projectId": project,
            "uniqueId": str(next(self._ids)),
            "email": email,
            "oauth2ClientId": str(next(self._ids)),
            "etag": "MDEwMjE5MjA=",
        }
        self._world.directory[name] = body
        self._world.show_later(name, self._world.lags.account_s)
        self._iam.create(name)
        return body

    async def _get(self, call: Call) -> JsonObject:
        return self._find(self._named(call))

    async def _list(self, call: Call) -> JsonObject:
        parent = f"projects/{self._world.project}/serviceAccounts/"
        accounts = [body for name, body in sorted(self._world.directory.items()) if name.startswith(parent)]
        return {"accounts": accounts} if accounts else {}

    async def _patch(self, call: Call) -> JsonObject:
        body, sent = self._find(self._named(call)), call.body or {}
        changes = sent.get("serviceAccount") or {}
        for path in filter(None, (sent.get("updateMask") or "").split(",")):
            if path.strip() not in _MUTABLE:
                raise bad_request(f"The field mask path '{path}' can't be updated.")
            key = _MUTABLE[path.strip()]
            body[key] = changes.get(key, "")
        return body

    async def _delete(self, call: Call) -> JsonObject:
        name = self._named(call)
        body = self._find(name)
        del self._world.directory[name]
        self._deleted[body["uniqueId"]] = body
        self._iam.drop(name)
        self._iam.forget_account(body["email"], body["uniqueId"])
        return {}

    async def _undelete(self, call: Call) -> JsonObject:
        unique_id = call.path["name"].rpartition("/")[2]
        body = self._deleted.pop(unique_id, None)
        if body is None or body["name"] in self._world.directory:
            raise ApiError(404, "NOT_FOUND", f"Unknown service account: {unique_id}")
        self._world.directory[body["name"]] = body
        self._iam.create(body["name"])
        return {"restoredAccount": body}


def _parent(call: Call) -> str:
    return call.path["name"]
