"""What the two accounts may do, derived from what the layers that builds bring up declare (`Layer.roles`)."""

from __future__ import annotations

from infra.core.environment import layers_on, required_roles
from infra.core.layer import Layer
from infra.google.role import OF_GUARDS, Role
from infra.layers.builds.settings import BuildsSettings
from infra.settings.schema import Settings

BOOTSTRAP = ("storage", "builds")
"""Layers that a platform engineer brings up beforehand: they hold the state, and the builds' accounts."""
MOST_GRANTED = 10
"""Roles in one condition, of which there may be several: https://cloud.google.com/iam/docs/setting-limits-on-granting-roles"""
STORAGE_ADMIN, PROJECT_IAM_ADMIN = "roles/storage.admin", "roles/resourcemanager.projectIamAdmin"
_READS = ("connect", "get", "getIamPolicy", "list")
# Asked for by a lookup of gke's program, whose permission roles for people hold anyway.
_ALWAYS_READ = ("resourcemanager.projects.get",)


def applied(settings: Settings, *, every: bool = False) -> tuple[Layer, ...]:
    """The layers that builds bring up, in their order; with `every` those that they could."""
    chosen = settings[BuildsSettings].layers
    return tuple(
        layer
        for layer in layers_on(settings)
        if layer.name not in BOOTSTRAP and (every or not chosen or layer.name in chosen)
    )


def applying(settings: Settings) -> tuple[Role, ...]:
    """What a platform engineer asks for to bring these layers up: the applying account's roles."""
    return tuple(required_roles(applied(settings), settings))


def previewing(settings: Settings) -> tuple[str, ...]:
    """The permissions among these that only read: all that the previewing account has in the project."""
    found = {one for role in applying(settings) for one in role.permissions}
    reads = {one for one in found if one.rpartition(".")[2] in _READS}
    return tuple(sorted({*reads, *_ALWAYS_READ}))


def grantable(settings: Settings) -> tuple[str, ...]:
    """The roles that these layers grant on the project, and that the applying account may grant."""
    return tuple(sorted({role for layer in applied(settings) for role in layer.grants(settings)}))


def asked(settings: Settings) -> tuple[str, ...]:
    """Permissions to list what lives on these layers, as a destroy does (infra/core/guard.py)."""
    ours = {layer.name for layer in applied(settings)}
    holding = (layer for layer in layers_on(settings) if layer.holds and ours & {layer.name, *layer.needs})
    return tuple(sorted({one for layer in holding for one in OF_GUARDS[layer.holds]}))


def on_buckets(settings: Settings) -> tuple[str, ...]:
    """What the applying account does with buckets, objects never among it."""
    found = {one for role in applying(settings) if role.name == STORAGE_ADMIN for one in role.permissions}
    return tuple(sorted(found))


def granting(roles: tuple[str, ...]) -> str:
    """A condition: only these roles are granted or revoked.

    https://cloud.google.com/iam/docs/setting-limits-on-granting-roles
    """
    listed = ", ".join(f"'{role}'" for role in roles)
    return f"api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly([{listed}])"
