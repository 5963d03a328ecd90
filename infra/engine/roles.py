"""Who asks for which role: a platform engineer, an ML engineer and CI, each with no more than they use.

What a platform engineer needs stands with the layers that need it (`Layer.roles`). The tables of
docs/settings.md, the rehearsal's grants and the role in every sentence about a missing permission are made
from here. `python -m tests.proofs roles` takes each away.
https://cloud.google.com/iam/docs/roles-permissions
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from infra.google.role import ACT_AS, OBJECTS, TPU_ADMIN, Role, _both

if TYPE_CHECKING:
    from infra.core.layer import Layer
    from infra.settings.schema import Settings

PLATFORM, ML, CI = ACCOUNTS = ("platform-engineer", "ml-engineer", "ci")


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


def roles(account: str, settings: Settings | None = None) -> Iterator[Role]:
    """What an account asks for, in an environment or, without settings, ever."""
    from infra.engine import layers  # here, because layers declare roles

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


@cache
def role_of(permission: str) -> str | None:
    """The role to ask for; None where the permission is none of those that anybody needs."""
    every = (one for account in (ML, CI, PLATFORM) for one in roles(account))
    return next((one.name for one in every if permission.lower() in map(str.lower, one.permissions)), None)
