"""The resource types that the stand-in knows."""

from __future__ import annotations

from rehearsal.standin.lifecycle import Resource
from rehearsal.standin.types import (
    accounts,
    bucket,
    bucket_object,
    compute,
    disk,
    iam_member,
    instance,
    kms,
    project_service,
    records,
    router_nat,
    services,
    tpu,
)

_MODULES = (
    accounts, bucket, bucket_object, compute, disk, iam_member, instance, kms, project_service, records,
    router_nat, services, tpu,
)  # fmt: skip

TYPES: dict[str, Resource] = {
    found.table.token: found
    for module in _MODULES
    for found in vars(module).values()
    if isinstance(found, Resource)
}
