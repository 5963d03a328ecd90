"""Grants of the controller's and the login nodes' accounts, and of the hosts' account on munge's key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.google.role import ON_NODES, only
from infra.layers.slurm import names
from infra.layers.storage.names import controller_bucket
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.slices.names import BLOBS, MANIFESTS

STACK = "STACK"
"""Placeholder in a condition: the id of the slices' stack, which is known once that is up."""
LOG_WRITER, OBJECT_VIEWER, OBJECT_USER = (
    "roles/logging.logWriter", "roles/storage.objectViewer", "roles/storage.objectUser",
)  # fmt: skip
ADDER = "roles/secretmanager.secretVersionAdder"
ROLE, PERMISSIONS = "slices", ON_NODES
"""Custom role of the controller's account."""
HOSTS = "hosts"
"""The hosts' account, which the storage layer makes."""


@dataclass(frozen=True)
class BucketGrant:
    """A role on a bucket under a condition, which is called `why`."""

    bucket: str
    role: str
    only: str
    why: str


def on_buckets(settings: Settings, role: str) -> Iterator[BucketGrant]:
    """Yield the grants on buckets of the machines of a role."""
    bucket = settings[StorageSettings].bucket_name
    read = [MANIFESTS, BLOBS, f"{names.programs(settings)}/"]
    yield BucketGrant(bucket, OBJECT_VIEWER, _any(read, bucket), "bundle and program")
    machines = [names.controller(settings)] if role == names.CONTROLLER else names.logins(settings)
    yield BucketGrant(bucket, OBJECT_USER, _any([f"boot/{name}/" for name in machines], bucket), "own status")
    if role == names.CONTROLLER:
        controllers = controller_bucket(settings)
        records = f'resource.type == "storage.googleapis.com/Bucket" || {only(f"{STACK}/", controllers)}'
        yield BucketGrant(controllers, OBJECT_USER, records, "records of slices")


def _any(prefixes: list[str], bucket: str) -> str:
    return " || ".join(only(prefix, bucket) for prefix in prefixes)


def on_project(settings: Settings) -> set[str]:
    """Return the roles that the layer grants on the project."""
    role = f"{names.account_id(settings, names.CONTROLLER)}_{ROLE}".replace("-", "_")
    return {LOG_WRITER, f"projects/{settings.project}/roles/{role}"}
