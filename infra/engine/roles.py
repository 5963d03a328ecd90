"""Roles by account: a platform engineer, an ML engineer and CI, each with no more than they use.

The platform engineer's are declared by the layers (`Layer.roles`). The tables of docs/reference/access.md,
the rehearsal's grants and the role in messages about a missing permission come from here.
`python -m tests.proofs roles` removes each.
https://cloud.google.com/iam/docs/roles-permissions
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from infra.core.environment import layers_on, required_roles
from infra.engine import registry
from infra.google.failures import ROLE_WITH
from infra.google.role import ACT_AS, OBJECTS, TPU_ADMIN, Role
from infra.settings.schema import Settings

PLATFORM, ML, CI = ACCOUNTS = ("platform-engineer", "ml-engineer", "ci")


_OF: dict[str, tuple[Role, ...]] = {
    ML: (
        TPU_ADMIN,
        ACT_AS,
        Role(
            "roles/storage.objectUser", "hosts' statuses, jobs' results, bundles", OBJECTS,
            "checkpoint bucket",
        ),
        Role("roles/storage.objectUser", "the fleet's state", OBJECTS, "controller's bucket"),
        Role(
            "roles/storage.objectViewer", "checkpoints of running jobs",
            ("storage.objects.get", "storage.objects.list"), "steps bucket",
        ),
        Role(
            "roles/serviceusage.serviceUsageConsumer", "use the project's request quota; list enabled APIs",
            ("serviceusage.quotas.get", "serviceusage.services.list", "serviceusage.services.use"),
        ),
        Role("roles/logging.viewer", "logs of hosts, deleted ones included", ("logging.logEntries.list",)),
        Role(
            "roles/compute.osAdminLogin", "SSH with sudo; without: `roles/compute.osLogin`",
            ("compute.instances.osLogin", "compute.projects.get"),
        ),
        Role(
            "roles/iap.tunnelResourceAccessor", "SSH through Identity-Aware Proxy",
            ("iap.tunnelInstances.accessViaIAP",),
        ),
    ),
    CI: (
        TPU_ADMIN,
        ACT_AS,
        Role("roles/storage.objectUser", "publish bundles", OBJECTS, "checkpoint bucket"),
    ),
}  # fmt: skip


def roles(account: str, settings: Settings | None = None) -> Iterator[Role]:
    """Yield an account's roles in an environment; without settings in any."""
    if account == PLATFORM:
        layers = registry.layers() if settings is None else layers_on(settings)
        yield from required_roles(layers, settings)
    else:
        yield from _OF[account]


_ON_ACCOUNT = ", on that service account, by the setting that `tpu infra roles ENV` prints"


@cache
def role_of(permission: str) -> str | None:
    """Return the role to ask for; None for a permission that no account needs."""
    candidates = (role for account in (ML, CI, PLATFORM) for role in roles(account))
    permission = permission.lower()
    return next((role.name for role in candidates if permission in map(str.lower, role.permissions)), None)


def with_roles(message: str) -> str:
    """Return a message in which "a role that holds PERMISSION" names the role, where one is known."""

    def named(match: re.Match[str]) -> str:
        role = role_of(match[1])
        where = _ON_ACCOUNT if role == ACT_AS.name else ""
        return f"{role}, which holds {match[1]}{where}" if role else match[0]

    return re.sub(ROLE_WITH.format(r"([\w.]+\w)"), named, message)
