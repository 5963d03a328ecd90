"""Who asks for which role, as tables of docs/settings.md."""

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
    """A table for each account."""
    made = zip(_TITLES, ACCOUNTS, strict=True)
    return "\n\n".join(f"{title}\n\n{_table(account)}" for title, account in made)


def _table(account: str) -> str:
    return "\n".join(["| role | on | for |", "| --- | --- | --- |", *_rows(account)])


def _rows(account: str) -> Iterator[str]:
    for one in roles(account):
        yield f"| `{one.name}` | the {one.on} | {one.why}{_only(one)} |"


def _only(role: Role) -> str:
    if not role.setting:
        return ""
    layer = next(one.name for one in layers() if role in one.roles)
    return f"; only with `{layer}:{camel_case(role.setting)}`"
