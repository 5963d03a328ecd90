"""The table of Cloud Storage methods: handler, IAM permission, and the resource that it is asked on.

Permissions: https://cloud.google.com/storage/docs/access-control/iam-json. A write needs
`storage.objects.create`, and `storage.objects.delete` too where it replaces a live object; the object's name
may stand in the request's body, so handlers of writes ask for these themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rehearsal.cloud.doorway import Doorway
from rehearsal.cloud.iam import Iam
from rehearsal.cloud.service import Call, Method, World
from rehearsal.cloud.storage.blobs import BlobStore
from rehearsal.cloud.storage.buckets import Buckets
from rehearsal.cloud.storage.control import StorageControl
from rehearsal.cloud.storage.folders import Folders
from rehearsal.cloud.storage.objects import Objects
from rehearsal.cloud.storage.store import Store, bucket_resource, object_resource
from rehearsal.cloud.storage.uploads import Uploads


class StorageService:
    """Cloud Storage, with its content under `root`. `start` opens its gRPC door, `close` shuts it."""

    api = "storage"
    versions = ("v1",)

    def __init__(self, world: World, iam: Iam, root: Path, doorway: Doorway) -> None:
        self._blobs = BlobStore(root / "content")
        self._store = Store(world, iam, self._blobs)
        self.limit = self._store.limit
        self._uploads = Uploads(self._store)
        self._objects = Objects(self._store)
        self._buckets = Buckets(self._store)
        self._folders = Folders(self._store)
        self._control = StorageControl(self.methods(), iam, root / "grpc.sock", doorway)

    async def start(self) -> None:
        """Open the gRPC door."""
        self._control.path.parent.mkdir(parents=True, exist_ok=True)
        await self._control.start()

    async def close(self) -> None:
        """Shut the gRPC door."""
        await self._control.close()

    @property
    def grpc_socket(self) -> Path:
        """The Unix socket of StorageControl, for `HttpOrGrpcSite`."""
        return self._control.path

    def methods(self) -> Mapping[str, Method]:
        """Method id → method."""
        buckets, folders, objects = self._buckets, self._folders, self._objects
        return {
            "storage.anywhereCaches.list": Method(
                buckets.anywhere_caches, "storage.anywhereCaches.list", self._bucket
            ),
            "storage.buckets.delete": Method(buckets.delete, "storage.buckets.delete", self._bucket),
            "storage.buckets.get": Method(buckets.get, "storage.buckets.get", self._bucket),
            "storage.buckets.getIamPolicy": Method(
                buckets.get_policy, "storage.buckets.getIamPolicy", self._bucket
            ),
            "storage.buckets.getStorageLayout": Method(
                buckets.storage_layout, "storage.objects.list", self._bucket
            ),
            "storage.buckets.insert": Method(buckets.insert, "storage.buckets.create", self._project),
            "storage.buckets.list": Method(buckets.list, "storage.buckets.list", self._project),
            "storage.buckets.operations.get": Method(folders.operation),
            "storage.buckets.patch": Method(buckets.patch, "storage.buckets.update", self._bucket),
            "storage.buckets.setIamPolicy": Method(
                buckets.set_policy, "storage.buckets.setIamPolicy", self._bucket
            ),
            "storage.buckets.testIamPermissions": Method(buckets.test_permissions),
            "storage.buckets.update": Method(buckets.update, "storage.buckets.update", self._bucket),
            "storage.folders.delete": Method(folders.delete, "storage.folders.delete", self._bucket),
            "storage.folders.get": Method(folders.get, "storage.folders.get", self._bucket),
            "storage.folders.insert": Method(folders.insert, "storage.folders.create", self._bucket),
            "storage.folders.list": Method(folders.list, "storage.folders.list", self._bucket),
            "storage.folders.rename": Method(folders.rename, "storage.folders.rename", self._bucket),
            "storage.managedFolders.list": Method(
                folders.managed, "storage.managedFolders.list", self._bucket
            ),
            "storage.notifications.list": Method(buckets.notifications, "storage.buckets.get", self._bucket),
            "storage.objects.compose": Method(objects.compose),
            "storage.objects.copy": Method(objects.copy, "storage.objects.get", self._source),
            "storage.objects.delete": Method(objects.delete, "storage.objects.delete", self._object),
            "storage.objects.get": Method(objects.get, "storage.objects.get", self._object),
            "storage.objects.insert": Method(self._uploads.insert),
            "storage.objects.list": Method(
                objects.list, "storage.objects.list", self._bucket, lambda call: call.query.get("prefix", "")
            ),
            "storage.objects.move": Method(objects.move, "storage.objects.get", self._source),
            "storage.objects.patch": Method(objects.patch, "storage.objects.update", self._object),
            "storage.objects.restore": Method(objects.restore, "storage.objects.restore", self._object),
            "storage.objects.rewrite": Method(objects.rewrite, "storage.objects.get", self._source),
            "storage.objects.update": Method(objects.update, "storage.objects.update", self._object),
            "storage.projects.serviceAccount.get": Method(
                buckets.service_account, "resourcemanager.projects.get", self._project
            ),
        }

    # A bucket that does not exist is a 404 to everybody, before IAM is asked about it.

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
