"""Who asks for which role: a platform engineer, an ML engineer and CI, each with no more than they use.

What a platform engineer needs stands with the layers that need it (`Layer.roles`). The tables of
docs/settings.md, the rehearsal's grants and the role in every sentence about a missing permission are made
from here. `python -m tests.proofs roles` takes each away.
https://cloud.google.com/iam/docs/roles-permissions
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from infra.layers import Layer
    from infra.settings import Settings

On = Literal[
    "project",
    "hosts' account",
    "GKE nodes' account",
    "pipeline's accounts",
    "checkpoint bucket",
    "controller's bucket",
    "billing account",
]
BASIC = ("roles/owner", "roles/editor", "roles/viewer")
"""What Google calls basic roles: each is of nearly every service."""
PLATFORM, ML, CI = ACCOUNTS = ("platform-engineer", "ml-engineer", "ci")

# What a controller does with nodes. Guest attributes are read by tpu.nodes.get.
ON_NODES = (
    "tpu.nodes.create", "tpu.nodes.delete", "tpu.nodes.get", "tpu.nodes.list", "tpu.nodes.update",
    "tpu.operations.get",
)  # fmt: skip

# What finds out whether something lives on a layer (infra/guard.py), by what that is (`Layer.holds`).
OF_GUARDS = {
    "members": ("tpu.nodes.list",),
    "jobs": ("container.clusters.connect", "container.clusters.list", "container.thirdPartyObjects.list"),
}


@dataclass(frozen=True)
class Role:
    """A role to ask for.

    Attributes:
        name: at Google.
        why: what for, in words.
        permissions: those of it that are used.
        on: on what it is granted.
        setting: field of the layer's settings without which it isn't needed.
    """

    name: str
    why: str
    permissions: tuple[str, ...]
    on: On = "project"
    setting: str = ""


TPU_ADMIN = Role(
    "roles/tpu.admin", "create, update and delete slices; see what is offered",
    (*ON_NODES, "tpu.acceleratortypes.list", "tpu.runtimeversions.list"),
)  # fmt: skip
ACT_AS = Role(
    "roles/iam.serviceAccountUser", "start hosts that run as it", ("iam.serviceAccounts.actAs",),
    "hosts' account",
)  # fmt: skip
ACT_AS_NODES = Role(
    "roles/iam.serviceAccountUser", "create nodes that run as it", ("iam.serviceAccounts.actAs",),
    "GKE nodes' account",
)  # fmt: skip
OBJECTS = (
    "storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list",
)  # fmt: skip
_OF: dict[str, tuple[Role, ...]] = {
    ML: (
        TPU_ADMIN,
        ACT_AS,
        Role("roles/storage.objectUser", "statuses of hosts, results of jobs", OBJECTS, "checkpoint bucket"),
        Role("roles/storage.objectUser", "the fleet's state", OBJECTS, "controller's bucket"),
        Role(
            "roles/serviceusage.serviceUsageConsumer", "the project's quota for requests; enabled APIs",
            ("serviceusage.quotas.get", "serviceusage.services.list", "serviceusage.services.use"),
        ),
        Role("roles/logging.viewer", "logs of hosts, gone ones too", ("logging.logEntries.list",)),
        Role(
            "roles/compute.osAdminLogin", "SSH with sudo (`osLogin`: without)",
            ("compute.instances.osLogin", "compute.projects.get"),
        ),
        Role("roles/iap.tunnelResourceAccessor", "SSH's tunnel", ("iap.tunnelInstances.accessViaIAP",)),
    ),
    CI: (
        TPU_ADMIN,
        ACT_AS,
        Role("roles/storage.objectUser", "publish bundles", OBJECTS, "checkpoint bucket"),
    ),
}  # fmt: skip


def only(prefix: str, bucket: str) -> str:
    """A condition: objects of a bucket whose names begin so.

    https://cloud.google.com/iam/docs/conditions-attribute-reference
    """
    return f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{prefix}")'


def roles(account: str, settings: Settings | None = None) -> Iterator[Role]:
    """What an account asks for, in an environment or, without settings, ever."""
    from infra import layers  # here, because layers declare roles

    if account != PLATFORM:
        yield from _OF[account]
    else:
        yield from of_layers(layers.layers() if settings is None else layers.on(settings), settings)


def of_layers(layers: Iterable[Layer], settings: Settings | None = None) -> Iterator[Role]:
    """What brings these layers up, each role once."""
    found: dict[tuple[str, ...], Role] = {}
    for layer in layers:
        for one in layer.roles:
            if settings is None or not one.setting or getattr(settings[layer.settings], one.setting):
                key = (one.name, one.on, one.setting)
                found[key] = _both(found[key], one) if key in found else one
    yield from found.values()


def _both(first: Role, second: Role) -> Role:
    """One role for what two layers need it for."""
    permissions = tuple(dict.fromkeys((*first.permissions, *second.permissions)))
    return replace(first, why=f"{first.why}; {second.why}", permissions=permissions)


@cache
def role_of(permission: str) -> str | None:
    """The role to ask for; None where the permission is none of those that anybody needs."""
    every = (one for account in (ML, CI, PLATFORM) for one in roles(account))
    return next((one.name for one in every if permission.lower() in map(str.lower, one.permissions)), None)
