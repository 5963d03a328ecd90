"""Predefined roles, their permissions, and which permissions there are: roles.toml.

Of services and resources that nothing here uses, it has neither roles nor permissions.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache

from google_facts import table

_ABOUT = ("source", "read")


@cache
def permissions() -> frozenset[str]:
    """Return all permissions of the resources that are used here."""
    lines = table("roles")["permissions"]
    return frozenset(
        f"{service}.{name}"
        for service, line in lines.items()
        if service not in _ABOUT
        for pattern in line.split()
        for name in _spelled(pattern)
    )


@cache
def of_role(role: str) -> frozenset[str] | None:
    """Return the permissions of `roles/tpu.admin`; None for a role that nothing here uses."""
    line = table("roles")["roles"].get(role)
    return None if line is None else frozenset(name for pattern in line.split() for name in _known(pattern))


def exists(role: str) -> bool | None:
    """Return True for a predefined role; None for one of a service that nothing here uses."""
    service, _, name = role.removeprefix("roles/").partition(".")
    line = table("roles")["names"].get(service)
    if of_role(role) is not None:
        return True
    return None if line is None else name in line.split()


def is_permission(name: str) -> bool | None:
    """Return True for a permission of Google's; None for one of a resource that nothing here uses."""
    if name in permissions():
        return True
    resource = f"{name.rpartition('.')[0]}."
    return False if any(known.startswith(resource) for known in permissions()) else None


def above_projects(permission: str) -> bool:
    """Return True for a permission on organizations, folders or billing accounts, which no project grants."""
    patterns = table("roles")["above_projects"]["patterns"]
    owned = permission in (of_role("roles/owner") or ())
    return not owned and any(fnmatchcase(permission, pattern) for pattern in patterns)


def _known(pattern: str) -> Iterator[str]:
    if not pattern.endswith("*"):
        return _spelled(pattern)
    return (name for name in permissions() if name.startswith(pattern[:-1]))


def _spelled(pattern: str) -> Iterator[str]:
    """Yield `nodes.get` and `nodes.list` of `nodes.get+list`."""
    resource, _, verbs = pattern.rpartition(".")
    return (f"{resource}.{verb}" for verb in verbs.split("+"))
