"""Roles to request, by account, as tables of docs/settings.md."""

from __future__ import annotations

from collections.abc import Iterator

from infra.engine.registry import layers
from infra.engine.roles import ACCOUNTS, roles
from infra.google.role import Role
from infra.settings.spelling import camel_case

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
    return "\n".join(["| role | on | for |", "| --- | --- | --- |", *_rows(account)])


def _rows(account: str) -> Iterator[str]:
    for role in roles(account):
        yield f"| `{role.name}` | the {role.on} | {role.why}{_only(role)} |"


def _only(role: Role) -> str:
    if not role.setting:
        return ""
    layer = next(layer.name for layer in layers() if role in layer.roles)
    return f"; only with `{layer}:{camel_case(role.setting)}`"
