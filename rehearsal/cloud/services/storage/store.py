"""The state behind the service: buckets' API bodies in the world's directory, their objects here."""

from __future__ import annotations

from collections.abc import Callable

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.services.storage.blobs import BlobStore
from rehearsal.cloud.services.storage.limits import MutationLimit
from rehearsal.cloud.services.storage.resources import resource as object_data
from rehearsal.cloud.services.storage.versions import Objects, Version


def bucket_resource(bucket: str) -> str:
    """Return the bucket's name in IAM and in the directory."""
    return f"projects/_/buckets/{bucket}"


def object_resource(bucket: str, name: str) -> str:
    """Return the object's name in IAM, which conditions compare."""
    return f"{bucket_resource(bucket)}/objects/{name}"


class Store:
    """Look-up of buckets and objects, and access checks that the front door can't make."""

    def __init__(
        self, world: World, iam: Iam, blobs: BlobStore, finalized: Callable[[JsonObject], None]
    ) -> None:
        """Create the store; `finalized` receives the StorageObjectData of each new object."""
        self.world = world
        self.iam = iam
        self.blobs = blobs
        self._finalized = finalized
        self.limit = MutationLimit(virtual=world.clock.now)
        self._objects: dict[str, Objects] = {}
        self._generation = 0

    def add_bucket(self, body: JsonObject) -> None:
        """Register a new bucket with its first IAM policy."""
        name = body["name"]
        resource = bucket_resource(name)
        directory = self.world.directory
        directory[resource] = body
        self.iam.create_bucket(resource)
        self._objects[name] = Objects(
            name, lambda: directory[resource], self.blobs, self.world.clock, self.next_generation, self.limit,
            lambda version: self._finalized(object_data(version)),
        )  # fmt: skip

    def remove_bucket(self, name: str) -> None:
        """Forget a bucket with its policy and its objects."""
        self._objects.pop(name).discard()
        del self.world.directory[bucket_resource(name)]
        self.iam.drop(bucket_resource(name))

    def bucket(self, name: str) -> JsonObject:
        """Return the bucket's API body; ApiError 404."""
        body = self.world.directory.get(bucket_resource(name))
        if body is None:
            raise ApiError(404, "NOT_FOUND", "The specified bucket does not exist.")
        return body

    def objects(self, bucket: str) -> Objects:
        """Return the bucket's objects; ApiError 404 if there is no such bucket."""
        self.bucket(bucket)
        return self._objects[bucket]

    def version(self, bucket: str, name: str, generation: int | None = None) -> Version:
        """Return the live generation or the given one; ApiError 404."""
        version = self.objects(bucket).get(name, generation)
        if version is None:
            raise ApiError(404, "NOT_FOUND", f"No such object: {bucket}/{name}")
        return version

    def buckets(self) -> list[JsonObject]:
        """Every bucket's body, by name."""
        return [self.bucket(name) for name in sorted(self._objects)]

    def next_generation(self) -> int:
        """Microseconds of virtual time, as Cloud Storage's generations are, and never the same twice."""
        self._generation = max(self._generation + 1, int(self.world.clock.now() * 1e6))
        return self._generation

    def require_write(self, principal: str, bucket: str, name: str) -> None:
        """ApiError 403 unless they may write this name: create, and delete too if that overwrites.

        404 for a bucket that isn't there, whoever asks.
        """
        objects = self.objects(bucket)
        self.require(principal, "storage.objects.create", bucket, name)
        if objects.live(name) is not None:
            self.require(principal, "storage.objects.delete", bucket, name)

    def require(self, principal: str, permission: str, bucket: str, name: str) -> None:
        """ApiError 403 unless the principal has this permission on the object."""
        self.iam.require(principal, permission, object_resource(bucket, name))
