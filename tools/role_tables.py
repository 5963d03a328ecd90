"""Roles to request, by account, as tables of docs/settings.md."""

from __future__ import annotations

from infra.engine.registry import layers
from infra.engine.roles import ACCOUNTS, roles
from infra.google.role import Role
from infra.settings.spelling import camel_case
from views.table import markdown

_TITLES = (
    "A platform engineer, who brings layers up and down:",
    "An ML engineer:",
    "CI, which publishes and deploys:",
)


def tables() -> str:
    """Return a table for each account."""
    made = zip(_TITLES, ACCOUNTS, strict=True)
    return "\n\n".join(f"{title}\n\n{_table(account)}" for title, account in made)


def _table(account: str) -> str:
    rows = [(f"`{role.name}`", f"the {role.on}", f"{role.why}{_only(role)}") for role in roles(account)]
    return "\n".join(markdown(("role", "on", "for"), rows))


def _only(role: Role) -> str:
    if not role.setting:
        return ""
    layer = next(layer.name for layer in layers() if role in layer.roles)
    return f"; only with `{layer}:{camel_case(role.setting)}`"
