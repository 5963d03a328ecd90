"""A bucket that is imported: compared with the settings before it becomes the stack's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra.core import upstream
from infra.errors import Problem, SettingsError
from infra.layers.storage.outputs import StorageOutputs
from infra.layers.storage.settings import SECONDS_PER_DAY, StorageSettings
from infra.settings.schema import Settings

_PATH = "storage:bucketName"
SETTLED_LATER = ("lifecycleRules", "labels")
"""Properties that an import leaves as they are, and the next update writes."""


def require_fit(
    settings: Settings, switch: str, name: str, kept: StorageSettings, provider: pulumi.ProviderResource
) -> bool:
    """Return True if the bucket is to be imported now, False if the stack has it.

    `switch`: the setting that imports it. Raises SettingsError with everything in which the bucket differs.
    """
    fields = ("bucket_name", "steps_bucket_name")
    if name in (upstream.known(StorageOutputs, field) for field in fields):
        return False
    opts = pulumi.InvokeOptions(provider=provider)
    try:
        bucket = gcp.storage.get_bucket(name=name, project=settings.project, opts=opts)
        own = gcp.storage.get_buckets(prefix=name, project=settings.project, opts=opts).buckets
    except Exception as error:  # the engine raises no narrower type
        rule = "it is there, and you may get and list it (storage.buckets.get, .list)"
        problems = [Problem(_PATH, f"{name}, which can't be looked up: {error}", rule, f"remove {switch}")]
    else:
        problems = list(_differences(name, kept, bucket))
        if name not in [item.name for item in own]:
            number = bucket.project_number
            whose = f"gcloud projects list --filter=projectNumber={number}"
            fix = f"name a bucket of {settings.project}, or write gcp:project as that is called: {whose}"
            rule = f"a bucket of {settings.project} is taken over"
            problems.insert(0, Problem(_PATH, f"{name}, of project number {number}", rule, fix))
    if problems:
        raise SettingsError(f"Pulumi.{settings.environment}.yaml", problems)
    return True


def _differences(name: str, kept: StorageSettings, bucket: Any) -> Iterator[Problem]:
    update = f"gcloud storage buckets update gs://{name}"
    folders = bool(_first(bucket.hierarchical_namespaces, "enabled"))
    versions = bool(_first(bucket.versionings, "enabled"))
    deleted = int(_first(bucket.soft_delete_policies, "retention_duration_seconds") or 0)
    on, kept_s = ("" if kept.versioning else "no-"), kept.soft_delete_days * SECONDS_PER_DAY
    key = _first(bucket.encryptions, "default_kms_key_name") or None
    key_option = (
        f"--default-encryption-key={kept.kms_key}" if kept.kms_key else "--clear-default-encryption-key"
    )
    for what, present, desired, fix in (
        ("location", bucket.location.lower(), kept.location, "name a bucket there: a bucket never moves"),
        ("folders", folders, kept.hierarchical_namespace,
         "name another bucket: only a new one gets or lacks storage:hierarchicalNamespace"),
        ("class", bucket.storage_class, kept.storage_class,
         f"{update} --default-storage-class={kept.storage_class}"),
        ("uniform access", bool(bucket.uniform_bucket_level_access), True,
         f"{update} --uniform-bucket-level-access"),
        ("public access prevention", bucket.public_access_prevention, "enforced",
         f"{update} --public-access-prevention"),
        ("versioning", versions, kept.versioning,
         f"{update} --{on}versioning"),
        ("soft delete, seconds", deleted, kept_s, f"{update} --soft-delete-duration={kept_s}s"),
        ("key", key, kept.kms_key, f"{update} {key_option}"),
    ):  # fmt: skip
        if present != desired:
            rule = f"it is taken over as the settings have it: {desired}"
            yield Problem(_PATH, f"{name}, {what} {present}", rule, fix)


def _first(parts: Any, field: str) -> Any:
    return getattr(parts[0], field) if parts else None
