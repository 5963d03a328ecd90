"""Handlers of storage.buckets.* and of the small resources around a bucket."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from rehearsal.cloud.core import constraints
from rehearsal.cloud.core.errors import ApiError, JsonObject, bad_request
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.iam.iam import agent
from rehearsal.cloud.iam.policies import requested_version
from rehearsal.cloud.services.storage import bucket_rules, encryption
from rehearsal.cloud.services.storage.conditions import Conditions, failed
from rehearsal.cloud.services.storage.resources import refuse_acls, refuse_soft_deleted
from rehearsal.cloud.services.storage.store import Store, bucket_resource

_EVERYONE = ("allUsers", "allAuthenticatedUsers")


class Buckets:
    """Bucket configuration and the small resources around it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def insert(self, call: Call) -> JsonObject:
        """storage.buckets.insert."""
        body = call.body or {}
        name = body.get("name") or ""
        self._require_project(call)
        refuse_acls(call)
        bucket_rules.check_name(name)
        if bucket_resource(name) in self._store.world.directory:
            text = "Your previous request to create the named bucket succeeded and you already own it."
            raise ApiError(409, "ALREADY_EXISTS", text, reason="conflict")
        world = self._store.world
        generation = self._store.next_generation()
        bucket = bucket_rules.new_bucket(body, world.number, generation, world.clock.rfc3339())
        self._check_default_key({}, bucket)
        constraints.require(world, "gcp.resourceLocations", [bucket["location"].lower()], "storage")
        if not bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]:
            constraints.require(world, "storage.uniformBucketLevelAccess")
        self._store.add_bucket(bucket)
        return bucket

    async def get(self, call: Call) -> JsonObject:
        """storage.buckets.get."""
        refuse_soft_deleted(call)
        bucket = self._store.bucket(call.path["bucket"])
        Conditions.of(call).check_resource(bucket, reading=True)
        return bucket

    async def list(self, call: Call) -> JsonObject:
        """storage.buckets.list: by name; the page token is the last name shown."""
        self._require_project(call)
        refuse_soft_deleted(call)
        prefix, after = call.query.get("prefix") or "", call.query.get("pageToken") or ""
        limit = min(int(call.query.get("maxResults") or 1000), 1000)
        bodies = [
            bucket
            for bucket in self._store.buckets()
            if bucket["name"].startswith(prefix)
            and bucket["name"] > after
            and bucket["projectNumber"] == self._store.world.number
        ]
        answer: JsonObject = {"kind": "storage#buckets"}
        if bodies:
            answer["items"] = bodies[:limit]
        if len(bodies) > limit:
            answer["nextPageToken"] = bodies[limit - 1]["name"]
        return answer

    async def patch(self, call: Call) -> JsonObject:
        """storage.buckets.patch."""
        return self._change(call, replace=False)

    async def update(self, call: Call) -> JsonObject:
        """storage.buckets.update: what the body leaves out goes back to its default."""
        return self._change(call, replace=True)

    def _change(self, call: Call, *, replace: bool) -> JsonObject:
        refuse_acls(call)
        name = call.path["bucket"]
        bucket = self._store.bucket(name)
        Conditions.of(call).check_resource(bucket)
        now = self._store.world.clock.rfc3339()
        changed = bucket_rules.changed_bucket(bucket, call.body or {}, now, replace=replace)
        self._check_default_key(bucket, changed)
        self._store.world.directory[bucket_resource(name)] = changed
        return changed

    def _check_default_key(self, before: JsonObject, bucket: JsonObject) -> None:
        key = bucket.get("encryption", {}).get("defaultKmsKeyName")
        if key and bucket["encryption"] != before.get("encryption"):
            encryption.kms_version(self._store, key, bucket["location"])

    async def delete(self, call: Call) -> web.Response:
        """storage.buckets.delete: 409 while any generation, noncurrent ones included, is left."""
        name = call.path["bucket"]
        Conditions.of(call).check_resource(self._store.bucket(name))
        if not self._store.objects(name).empty:
            text = "The bucket you tried to delete is not empty."
            raise ApiError(409, "FAILED_PRECONDITION", text, reason="conflict")
        self._store.remove_bucket(name)
        return web.Response(status=204)

    async def storage_layout(self, call: Call) -> JsonObject:
        """storage.buckets.getStorageLayout."""
        bucket = self._store.bucket(call.path["bucket"])
        return {
            "kind": "storage#storageLayout",
            "bucket": bucket["name"],
            "location": bucket["location"],
            "locationType": bucket["locationType"],
            "hierarchicalNamespace": bucket.get("hierarchicalNamespace", {"enabled": False}),
        }

    async def get_policy(self, call: Call) -> JsonObject:
        """storage.buckets.getIamPolicy."""
        name = call.path["bucket"]
        self._store.bucket(name)
        return _policy(name, self._store.iam.shown(bucket_resource(name), requested_version(call)))

    async def set_policy(self, call: Call) -> JsonObject:
        """storage.buckets.setIamPolicy."""
        name = call.path["bucket"]
        access = self._store.bucket(name)["iamConfiguration"]
        body = call.body or {}
        bindings: list[JsonObject] = body.get("bindings") or []
        public = {who for binding in bindings for who in binding.get("members", ()) if who in _EVERYONE}
        if public and access["publicAccessPrevention"] == "enforced":
            raise ApiError(
                412,
                "FAILED_PRECONDITION",
                "The member bindings allUsers and allAuthenticatedUsers are not allowed since public access "
                "prevention is enforced.",
                reason="conditionNotMet",
            )
        if (
            any("condition" in binding for binding in bindings)
            and not (access["uniformBucketLevelAccess"]["enabled"])
        ):
            raise bad_request("Conditional bindings require uniform bucket-level access.")
        policy: JsonObject = {key: body[key] for key in ("version", "etag", "bindings") if key in body}
        try:
            return _policy(name, self._store.iam.set_policy(bucket_resource(name), policy))
        except ApiError as error:
            if error.status == "ABORTED":  # IAM's other APIs say 409 where Cloud Storage says 412
                raise failed() from None
            raise

    async def test_permissions(self, call: Call) -> JsonObject:
        """storage.buckets.testIamPermissions."""
        name = call.path["bucket"]
        self._store.bucket(name)
        given: Any = call.query.get("permissions") or []
        permissions = [given] if isinstance(given, str) else list(given)
        held = self._store.iam.test(call.principal, permissions, bucket_resource(name))
        return {"kind": "storage#testIamPermissionsResponse"} | ({"permissions": held} if held else {})

    async def service_account(self, call: Call) -> JsonObject:
        """storage.projects.serviceAccount.get: the agent that uses a bucket's KMS key, which it makes."""
        world = self._store.world
        if call.path["projectId"] not in (world.project, world.number):
            raise bad_request(f"Unknown project id: {call.path['projectId']}")
        self._store.iam.make_agents("storage", "get", 0.0)
        return {"kind": "storage#serviceAccount", "email_address": agent(world, "storage")}

    async def none(self, call: Call) -> JsonObject:
        """storage.notifications.list and its like: none, because none can be made."""
        self._store.bucket(call.path["bucket"])
        return {"kind": f"storage#{call.method_id.split('.')[1]}"}

    def _require_project(self, call: Call) -> None:
        world = self._store.world
        project = call.query.get("project")
        if project not in (world.project, world.number):
            raise bad_request(f"Unknown project id: {project}")


def _policy(bucket: str, policy: JsonObject) -> JsonObject:
    return {"kind": "storage#policy", "resourceId": bucket_resource(bucket), **policy}
