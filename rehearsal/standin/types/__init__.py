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

# Types that are recorded, and whose behaviour is too far from plain: the stand-in refuses them.
NOT_CARRIED_OUT: dict[str, str] = {
    "gcp:container/cluster:Cluster": "its body isn't the properties', each change is a request",
    "gcp:container/nodePool:NodePool": "its node count is read from the zones' instance groups",
}
