"""Handlers of storage.objects.* other than insert."""

from __future__ import annotations

from aiohttp import web

from rehearsal.cloud.core.errors import ApiError, JsonObject, bad_request
from rehearsal.cloud.core.service import Answer, Call
from rehearsal.cloud.services.storage import downloads, encryption
from rehearsal.cloud.services.storage.conditions import Conditions, failed, generation_of, integer
from rehearsal.cloud.services.storage.listing import list_page
from rehearsal.cloud.services.storage.resources import (
    check_custom_time,
    check_name,
    merged,
    object_body,
    refuse_acls,
    refuse_soft_deleted,
    settable,
    storage_class,
)
from rehearsal.cloud.services.storage.store import Store
from rehearsal.cloud.services.storage.versions import Version

MAX_COMPONENTS = 32


class Objects:
    """Methods of existing objects."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, call: Call) -> Answer:
        """storage.objects.get: metadata, or content with alt=media and under /download."""
        version = self._addressed(call)
        Conditions.of(call).check(version, reading=True)
        if call.query.get("alt") == "media" or call.raw.path.startswith("/download/"):
            encryption.require_readable(self._store, version)
            return await downloads.send(call.raw, version, self._store.blobs)
        return object_body(version, call)

    async def list(self, call: Call) -> JsonObject:
        """storage.objects.list."""
        refuse_soft_deleted(call)
        page = list_page(self._store.objects(call.path["bucket"]), call.query)
        answer: JsonObject = {"kind": "storage#objects"}
        if page.prefixes:
            answer["prefixes"] = page.prefixes
        if page.versions:
            answer["items"] = [object_body(version, call) for version in page.versions]
        if page.next_token is not None:
            answer["nextPageToken"] = page.next_token
        return answer

    async def patch(self, call: Call) -> JsonObject:
        """storage.objects.patch."""
        version = self._addressed(call)
        Conditions.of(call).check(version)
        return self._annotate(call, version, merged(version.fields, call.body or {}))

    async def update(self, call: Call) -> JsonObject:
        """storage.objects.update: what the body leaves out is removed."""
        version = self._addressed(call)
        Conditions.of(call).check(version)
        return self._annotate(call, version, settable(call.body or {}))

    def _annotate(self, call: Call, version: Version, fields: JsonObject) -> JsonObject:
        refuse_acls(call)
        named = (call.body or {}).get("kmsKeyName")
        if named and named != version.fields.get("kmsKeyName"):
            raise ApiError(
                400,
                "INVALID_ARGUMENT",
                "Cloud KMS key name cannot be changed.",
                reason="cloudKmsCannotChangeKeyName",
            )
        check_custom_time(version.fields, fields)
        fields |= {"kmsKeyName": key} if (key := version.fields.get("kmsKeyName")) else {}
        return object_body(self._store.objects(version.bucket).annotate(version, fields), call)

    async def delete(self, call: Call) -> web.Response:
        """storage.objects.delete: with a generation, for good; without, by the bucket's versioning."""
        version = self._addressed(call)
        Conditions.of(call).check(version)
        for_good = generation_of(call.query) is not None
        self._store.objects(version.bucket).delete(version, for_good=for_good)
        return web.Response(status=204)

    async def copy(self, call: Call) -> JsonObject:
        """storage.objects.copy."""
        return object_body(self._copy(call), call)

    async def rewrite(self, call: Call) -> JsonObject:
        """storage.objects.rewrite: always done in one call, because blobs are shared and not copied."""
        if call.query.get("rewriteToken"):
            raise bad_request("Invalid rewriteToken: rewrites here are done in one call.")
        version = self._copy(call)
        size = str(version.blob.size)
        return {
            "kind": "storage#rewriteResponse",
            "done": True,
            "objectSize": size,
            "totalBytesRewritten": size,
            "resource": object_body(version, call),
        }

    def _copy(self, call: Call) -> Version:
        refuse_acls(call)
        path = call.path
        generation = generation_of(call.query, "sourceGeneration")
        source = self._store.version(path["sourceBucket"], path["sourceObject"], generation)
        Conditions.of(call, "ifSource").check(source)
        body = call.body or {}
        fields = settable(body)
        # A copy keeps the source's metadata unless the request brings its own.
        fields = fields or {key: value for key, value in source.fields.items() if key != "kmsKeyName"}
        encryption.require_readable(self._store, source)
        named = call.query.get("destinationKmsKeyName") or body.get("kmsKeyName")
        fields |= encryption.for_new(self._store, call, path["destinationBucket"], named)
        return self._create(
            call,
            path["destinationBucket"],
            path["destinationObject"],
            source,
            fields,
            storage_class(body) or (source.storage_class if not body else None),
        )

    def _create(
        self,
        call: Call,
        bucket: str,
        name: str,
        source: Version,
        fields: JsonObject,
        chosen_class: str | None,
    ) -> Version:
        objects = self._store.objects(bucket)
        self._store.require_write(call.principal, bucket, name)
        check_name(name, call.raw.raw_path)
        Conditions.of(call).check(objects.live(name))
        self._store.blobs.retain(source.blob)
        return objects.write(name, source.blob, fields, chosen_class, source.component_count)

    async def move(self, call: Call) -> JsonObject:
        """storage.objects.move: the rename of one object within its bucket, atomically."""
        bucket, name, target = (call.path[key] for key in ("bucket", "sourceObject", "destinationObject"))
        source = self._store.version(bucket, name)
        Conditions.of(call, "ifSource").check(source)
        objects = self._store.objects(bucket)
        if name == target:
            raise bad_request("The source and the destination of a move must be different objects.")
        self._store.require(call.principal, "storage.objects.move", bucket, name)
        self._store.require_write(call.principal, bucket, target)
        check_name(target, call.raw.raw_path)
        Conditions.of(call).check(objects.live(target))
        return object_body(objects.move(source, target), call)

    async def compose(self, call: Call) -> JsonObject:
        """storage.objects.compose: at most 32 sources of one bucket."""
        refuse_acls(call)
        bucket, name = call.path["destinationBucket"], call.path["destinationObject"]
        body = call.body or {}
        desired: list[JsonObject] = body.get("sourceObjects") or []
        if not 1 <= len(desired) <= MAX_COMPONENTS:
            raise bad_request(f"The number of source components provided ({len(desired)}) must be 1 to 32.")
        check_name(name, call.raw.raw_path)
        sources = [self._component(call, bucket, entry) for entry in desired]
        destination = body.get("destination") or {}
        named = call.query.get("kmsKeyName") or destination.get("kmsKeyName")
        fields = settable(destination) | encryption.for_new(self._store, call, bucket, named)
        conditions = Conditions.of(call)
        objects = self._store.objects(bucket)
        self._store.require_write(call.principal, bucket, name)
        conditions.check(objects.live(name))
        # The sources' content must stay while it is read, even if they are deleted.
        for source in sources:
            self._store.blobs.retain(source.blob)
        try:
            blob = await self._store.blobs.compose([source.blob for source in sources])
        finally:
            for source in sources:
                self._store.blobs.release(source.blob)
        try:  # again: the world continued while the content was put together
            self._store.require_write(call.principal, bucket, name)
            conditions.check(self._store.objects(bucket).live(name))
        except ApiError:
            self._store.blobs.release(blob)
            raise
        count = sum(source.component_count or 1 for source in sources)
        version = objects.write(name, blob, fields, storage_class(destination), count)
        if body.get("deleteSourceObjects"):
            for source in sources:
                if source.name != name:
                    self._store.require(call.principal, "storage.objects.delete", bucket, source.name)
                    objects.delete(source, for_good=False)
        return object_body(version, call)

    def _component(self, call: Call, bucket: str, entry: JsonObject) -> Version:
        name = entry.get("name", "")
        self._store.require(call.principal, "storage.objects.get", bucket, name)
        version = self._store.version(bucket, name, generation_of(entry))
        required = integer(entry.get("objectPreconditions") or {}, "ifGenerationMatch")
        if required is not None and required != version.generation:
            raise failed()
        encryption.require_readable(self._store, version)
        return version

    def _addressed(self, call: Call) -> Version:
        refuse_soft_deleted(call)
        return self._store.version(call.path["bucket"], call.path["object"], generation_of(call.query))
