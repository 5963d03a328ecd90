"""Accounts that those who bring layers up act as: by which setting, and why a refusal is about which."""

from __future__ import annotations

import re

from infra.core.environment import layers_on
from infra.core.layer import Acting, Layer, up_command
from infra.core.names import account_email
from infra.google.role import ACT_AS, Role
from infra.settings.schema import Settings, keys_of

_PERMISSION = re.escape(ACT_AS.permissions[0])
# Some services don't name the permission: https://cloud.google.com/iam/docs/attach-service-accounts
_REFUSED = re.compile(rf"(?i){_PERMISSION}|act as (?:the specified )?service account")
_ACCOUNT = re.compile(r"[\w-]+@[\w.-]+\.gserviceaccount\.com")


def acted_as(role: Role, settings: Settings) -> tuple[Layer, Acting] | None:
    """Return the layer of the accounts that a role is granted on; None where it isn't on any."""
    return next(
        (
            (layer, layer.hooks.acting)
            for layer in layers_on(settings)
            if layer.hooks.acting and layer.hooks.acting.on == role.on
        ),
        None,
    )


def addresses(acting: Acting, settings: Settings) -> list[str]:
    """Return the addresses of these accounts."""
    return [account_email(settings, id_) for id_ in acting.accounts(settings)]


def members(acting: Acting, settings: Settings) -> tuple[str, ...]:
    """Return the members that the setting names."""
    layer = next(layer for layer in layers_on(settings) if layer.hooks.acting is acting)
    field = keys_of(layer.settings)[acting.setting.partition(":")[2]]
    named: tuple[str, ...] = getattr(settings[layer.settings], field.name)
    return named


def admission(layer: Layer, acting: Acting, settings: Settings, member: str) -> str:
    """Return how a member comes to act as a layer's accounts."""
    return f"{member} in {acting.setting}, then {up_command(layer.name, settings.environment)}"


def refused(message: str, layer: Layer, settings: Settings) -> str:
    """Return the grant that an update of a layer lacks to act as an account; "" if the refusal is another.

    A message that names no account is about those that the layer's roles are granted on.
    """
    if not _REFUSED.search(message):
        return ""
    named = _ACCOUNT.findall(message)
    roles = [role for other in layers_on(settings) for role in other.roles] if named else layer.roles
    for role in roles:
        if ACT_AS.permissions[0] in role.permissions and (owned := acted_as(role, settings)):
            owner, acting = owned
            if not named or {*named} & {*addresses(acting, settings)}:
                return f"{role.name} on the {acting.on}: {admission(owner, acting, settings, 'user:YOU')}"
    return ""
