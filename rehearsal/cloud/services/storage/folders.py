"""Handlers of storage.folders.* in buckets with a hierarchical namespace, and of their operations.

https://cloud.google.com/storage/docs/folders-overview. A rename is atomic; like Google's it is answered with
an operation that isn't done yet, which clients must ask for again.
"""

from __future__ import annotations

import secrets

from aiohttp import web

from rehearsal.cloud.core.errors import ApiError, JsonObject, bad_request
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.services.storage.conditions import Conditions
from rehearsal.cloud.services.storage.listing import MAX_RESULTS
from rehearsal.cloud.services.storage.store import Store, bucket_resource
from rehearsal.cloud.services.storage.versions import Objects

_TYPES = "type.googleapis.com/google.storage.control.v2"


class Folders:
    """Methods of folders; each is atomic."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._operations: dict[str, tuple[str, JsonObject]] = {}  # by name, with who began it

    async def insert(self, call: Call) -> JsonObject:
        """storage.folders.insert: its parents too, if `recursive`."""
        tree, name = self._tree(call), _folder_name((call.body or {}).get("name", ""))
        if name in tree.folders:
            raise ApiError(409, "ALREADY_EXISTS", "The folder you tried to create already exists.")
        if call.query.get("recursive") not in (True, "true"):
            _require_parent(tree, name)
        tree.add_folders(name)
        return self._body(tree, name)

    async def get(self, call: Call) -> JsonObject:
        """storage.folders.get."""
        return self._addressed(call, call.path["folder"])

    async def list(self, call: Call) -> JsonObject:
        """storage.folders.list: by name; the page token is the last name shown."""
        tree, query = self._tree(call), call.query
        prefix, end, token = (query.get(key) or "" for key in ("prefix", "endOffset", "pageToken"))
        if query.get("delimiter") not in (None, "", "/"):
            raise bad_request("The delimiter of a list of folders must be '/'.")
        names = [
            name
            for name in sorted(tree.folders)
            if name.startswith(prefix) and name > token and name >= (query.get("startOffset") or "")
            if (not end or name < end) and not (query.get("delimiter") and "/" in name[len(prefix) : -1])
        ]
        limit = min(int(query.get("pageSize") or MAX_RESULTS), MAX_RESULTS)
        answer: JsonObject = {"kind": "storage#folders"}
        if names:
            answer["items"] = [self._body(tree, name) for name in names[:limit]]
        if len(names) > limit:
            answer["nextPageToken"] = names[limit - 1]
        return answer

    async def delete(self, call: Call) -> web.Response:
        """storage.folders.delete: 409 unless it is empty."""
        name = self._addressed(call, call.path["folder"])["name"]
        tree = self._tree(call)
        inside = tree.scan(name, name + "\0", versions=False, folders=True)
        if next(inside, None) is not None:
            raise _unfit("The folder you tried to delete is not empty.")
        del tree.folders[name]
        return web.Response(status=204)

    async def rename(self, call: Call) -> JsonObject:
        """storage.folders.rename: with all that is in it, live objects and folders."""
        tree, bucket = self._tree(call), call.path["bucket"]
        source = self._addressed(call, call.path["sourceFolder"], "ifSource")["name"]
        target = _folder_name(call.path["destinationFolder"])
        self._store.iam.require(call.principal, "storage.folders.create", bucket_resource(bucket))
        if target.startswith(source):
            raise bad_request("A folder can't be renamed to itself or into itself.")
        if target in tree.folders:
            raise ApiError(409, "ALREADY_EXISTS", f"The folder '{target}' already exists.")
        _require_parent(tree, target)
        tree.rename_folder(source, target)
        operation = f"operations/{secrets.token_urlsafe(12)}"
        common: JsonObject = {
            "kind": "storage#operation",
            "name": f"{bucket_resource(bucket)}/{operation}",
            "selfLink": f"https://www.googleapis.com/storage/v1/b/{bucket}/{operation}",
            "metadata": {
                "@type": f"{_TYPES}.RenameFolderMetadata",
                "sourceFolderId": source,
                "destinationFolderId": target,
            },
        }
        response = {"@type": f"{_TYPES}.Folder", **self._body(tree, target)}
        self._operations[common["name"]] = call.principal, common | {"done": True, "response": response}
        return common | {"done": False}

    async def operation(self, call: Call) -> JsonObject:
        """storage.buckets.operations.get."""
        bucket = bucket_resource(self._store.bucket(call.path["bucket"])["name"])
        name = f"{bucket}/operations/{call.path['operationId']}"
        principal, operation = self._operations.get(name, ("", {}))
        if principal != call.principal:  # who began it needs no more; gcsfuse polls with objectUser
            self._store.iam.require(call.principal, "storage.bucketOperations.get", bucket)
        if not operation:
            raise ApiError(404, "NOT_FOUND", f"The operation '{name}' does not exist.")
        return operation

    def _tree(self, call: Call) -> Objects:
        objects = self._store.objects(call.path["bucket"])
        if not objects.hierarchical:
            raise _unfit("The bucket does not support hierarchical namespace.")
        return objects

    def _addressed(self, call: Call, folder: str, prefix: str = "if") -> JsonObject:
        tree, name = self._tree(call), _folder_name(folder)
        if name not in tree.folders:
            raise ApiError(404, "NOT_FOUND", "The specified folder does not exist.")
        body = self._body(tree, name)
        Conditions.of(call, prefix).check_resource(body, reading=call.method_id.endswith(".get"))
        return body

    def _body(self, tree: Objects, name: str) -> JsonObject:
        made = tree.folders[name]
        return {
            "kind": "storage#folder",
            "id": f"{tree.bucket}/{name}",
            "name": name,
            "bucket": tree.bucket,
            "metageneration": "1",
            "createTime": made,
            "updateTime": made,
        }


def _folder_name(text: str) -> str:
    """With its slash, which clients may leave out; the longest: https://cloud.google.com/storage/quotas."""
    name = text.rstrip("/") + "/"
    if not 1 < len(name.encode()) <= 512 or "//" in name or name.startswith("/"):
        raise bad_request(f"Invalid folder name: '{text}'")
    return name


def _require_parent(tree: Objects, name: str) -> None:
    parent = name[: name[:-1].rfind("/") + 1]
    if parent and parent not in tree.folders:
        raise _unfit(f"The parent folder '{parent}' does not exist.")


def _unfit(text: str) -> ApiError:
    return ApiError(409, "FAILED_PRECONDITION", text, reason="conflict")
