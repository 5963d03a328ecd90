"""The table of Cloud Storage methods: handler, IAM permission, and the resource that needs it.

Permissions: https://cloud.google.com/storage/docs/access-control/iam-json. A write needs
`storage.objects.create`, and `storage.objects.delete` too where it replaces a live object; the object's name
may stand in the request's body, so handlers of writes ask for these themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.service import Call, Handler, Method
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.doorway import Doorway
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.services.storage.blobs import BlobStore
from rehearsal.cloud.services.storage.buckets import Buckets
from rehearsal.cloud.services.storage.control import StorageControl
from rehearsal.cloud.services.storage.folders import Folders
from rehearsal.cloud.services.storage.objects import Objects
from rehearsal.cloud.services.storage.store import Store, bucket_resource, object_resource
from rehearsal.cloud.services.storage.uploads import Uploads


class StorageService:
    """Cloud Storage, with its content under `root`. `start` opens `control`, the gRPC door; `close` ends."""

    api = "storage"
    versions = ("v1",)

    def __init__(
        self,
        world: World,
        iam: Iam,
        root: Path,
        doorway: Doorway,
        *,
        finalized: Callable[[JsonObject], None],
        handlers: Sequence[Any] = (),
    ) -> None:
        """Create the service.

        `finalized` receives the StorageObjectData of each new object; `handlers`: other gRPC services'."""
        self.blobs = BlobStore(root / "content")
        self._store = Store(world, iam, self.blobs, finalized)
        self.limit = self._store.limit
        self._uploads = Uploads(self._store)
        self._objects = Objects(self._store)
        self._buckets = Buckets(self._store)
        self._folders = Folders(self._store)
        self.control = StorageControl(self.methods(), iam, root / "grpc.sock", doorway, handlers)

    async def start(self) -> None:
        """Open the gRPC server."""
        self.control.path.parent.mkdir(parents=True, exist_ok=True)
        await self.control.start()

    async def close(self) -> None:
        """Close the gRPC server."""
        await self.control.close()

    @property
    def grpc_socket(self) -> Path:
        """The Unix socket of StorageControl, for `HttpOrGrpcSite`."""
        return self.control.path

    def methods(self) -> Mapping[str, Method]:
        """Return methods by id."""
        buckets, folders, objects = self._buckets, self._folders, self._objects
        bucket, object_, source, project = self._bucket, self._object, self._source, self._project
        table: dict[str, tuple[Handler, str, Callable[[Call], str]]] = {
            "anywhereCaches.list": (buckets.none, "anywhereCaches.list", bucket),
            "buckets.delete": (buckets.delete, "buckets.delete", bucket),
            "buckets.get": (buckets.get, "buckets.get", bucket),
            "buckets.getIamPolicy": (buckets.get_policy, "buckets.getIamPolicy", bucket),
            "buckets.getStorageLayout": (buckets.storage_layout, "objects.list", bucket),
            "buckets.insert": (buckets.insert, "buckets.create", project),
            "buckets.list": (buckets.list, "buckets.list", project),
            "buckets.patch": (buckets.patch, "buckets.update", bucket),
            "buckets.setIamPolicy": (buckets.set_policy, "buckets.setIamPolicy", bucket),
            "buckets.update": (buckets.update, "buckets.update", bucket),
            "folders.delete": (folders.delete, "folders.delete", bucket),
            "folders.get": (folders.get, "folders.get", bucket),
            "folders.insert": (folders.insert, "folders.create", bucket),
            "folders.list": (folders.list, "folders.list", bucket),
            "folders.rename": (folders.rename, "folders.rename", bucket),
            "managedFolders.list": (buckets.none, "managedFolders.list", bucket),
            "notifications.list": (buckets.none, "buckets.get", bucket),
            "objects.copy": (objects.copy, "objects.get", source),
            "objects.delete": (objects.delete, "objects.delete", object_),
            "objects.get": (objects.get, "objects.get", object_),
            "objects.move": (objects.move, "objects.get", source),
            "objects.patch": (objects.patch, "objects.update", object_),
            "objects.rewrite": (objects.rewrite, "objects.get", source),
            "objects.update": (objects.update, "objects.update", object_),
        }
        plain = {
            f"storage.{method}": Method(handler, f"storage.{permission}", resource)
            for method, (handler, permission, resource) in table.items()
        }
        return plain | {
            "storage.buckets.operations.get": Method(folders.operation),
            "storage.buckets.testIamPermissions": Method(buckets.test_permissions),
            "storage.objects.compose": Method(objects.compose),
            "storage.objects.insert": Method(self._uploads.insert),
            "storage.objects.list": Method(
                objects.list, "storage.objects.list", bucket, lambda call: call.query.get("prefix", "")
            ),
            "storage.projects.serviceAccount.get": Method(
                buckets.service_account, "resourcemanager.projects.get", project
            ),
        }

    # A bucket that does not exist is a 404 to everybody, before permissions are checked.

    def _bucket(self, call: Call) -> str:
        return bucket_resource(self._store.bucket(call.path["bucket"])["name"])

    def _object(self, call: Call) -> str:
        return object_resource(self._store.bucket(call.path["bucket"])["name"], call.path["object"])

    def _source(self, call: Call) -> str:
        bucket = call.path.get("sourceBucket") or call.path["bucket"]
        return object_resource(self._store.bucket(bucket)["name"], call.path["sourceObject"])

    def _project(self, call: Call) -> str:
        project = call.path.get("projectId") or call.query.get("project") or self._store.world.project
        return f"projects/{project}"
