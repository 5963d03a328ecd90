"""Permissions of the builds' account, derived from the layers that builds bring up (`Layer.roles`)."""

from __future__ import annotations

from infra.core.environment import layers_on, required_roles
from infra.core.layer import Layer
from infra.google.role import OF_GUARDS, Role
from infra.layers.builds import names
from infra.layers.builds.settings import BuildsSettings
from infra.settings.schema import Settings

BOOTSTRAP = ("storage", "builds")
"""Layers that a platform engineer brings up beforehand: they hold the state, and the builds' account."""
MOST_GRANTED = 10
"""Roles in one condition, of which there may be several: https://cloud.google.com/iam/docs/setting-limits-on-granting-roles"""
STORAGE_ADMIN, PROJECT_IAM_ADMIN = "roles/storage.admin", "roles/resourcemanager.projectIamAdmin"


def applied(settings: Settings, *, every: bool = False) -> tuple[Layer, ...]:
    """Return the layers that builds bring up, in their order; with `every`, all that they could."""
    chosen = settings[BuildsSettings].layers
    return tuple(
        layer
        for layer in layers_on(settings)
        if layer.name not in BOOTSTRAP and (every or not chosen or layer.name in chosen)
    )


def applying(settings: Settings) -> tuple[Role, ...]:
    """Return the account's roles: those that a platform engineer needs for these layers."""
    return tuple(required_roles(applied(settings), settings))


def grantable(settings: Settings) -> tuple[str, ...]:
    """Return the roles that these layers grant on the project, and that the account may grant."""
    return tuple(sorted({role for layer in applied(settings) for role in layer.grants(settings)}))


def guarding(settings: Settings) -> tuple[str, ...]:
    """Return the permissions by which a destroy lists what runs on these layers (infra/core/guard.py)."""
    names = {layer.name for layer in applied(settings)}
    holding = (layer for layer in layers_on(settings) if layer.holds and names & {layer.name, *layer.needs})
    return tuple(sorted({permission for layer in holding for permission in OF_GUARDS[layer.holds]}))


def by_hand(settings: Settings) -> tuple[str, ...]:
    """Return the commands that a billing administrator types once: no project grants these roles."""
    member = f"serviceAccount:{names.email(settings)}" if BuildsSettings in settings.sections else ""
    return tuple(
        f"gcloud billing accounts add-iam-policy-binding {getattr(settings[layer.settings], role.setting)} "
        f"--member={member} --role={role.name}"
        for layer in (applied(settings) if member else ())
        for role in required_roles([layer], settings)
        if role.on == "billing account"
    )


def on_buckets(settings: Settings) -> tuple[str, ...]:
    """Return the account's permissions on buckets; none is on objects."""
    permissions = {
        permission
        for role in applying(settings)
        if role.name == STORAGE_ADMIN
        for permission in role.permissions
    }
    return tuple(sorted(permissions))


def granting(roles: tuple[str, ...]) -> str:
    """Return a condition: only these roles are granted or revoked.

    https://cloud.google.com/iam/docs/setting-limits-on-granting-roles
    """
    listed = ", ".join(f"'{role}'" for role in roles)
    return f"api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly([{listed}])"
