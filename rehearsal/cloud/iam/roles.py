"""Decisions by predefined roles and permissions (google_facts/roles.toml)."""

from __future__ import annotations

import re
from functools import cache

from google_facts import roles
from rehearsal.cloud.core.errors import JsonObject, NotEmulatedError, bad_request

_PREDEFINED = re.compile(r"roles/([a-z]\w*)\.([\w.]+)")


def check(role: str) -> None:
    """ApiError 400 if Google has no predefined role of that name; NotEmulatedError if it may have."""
    exists = roles.exists(role)
    if exists and roles.of_role(role) is not None:
        return
    if exists is False or not _PREDEFINED.fullmatch(role) or "_withcond_" in role:
        raise bad_request(f"Role {role} is not supported for this resource.")
    raise NotEmulatedError(f"Role {role}")


@cache
def grants(role: str, permission: str) -> bool:
    """Return True if the role holds the permission.

    One that no list of Google's has (`container.operations.cancel`) goes with the service's `get`, `list` or,
    for all other verbs, `create`.
    """
    held = roles.of_role(role) or frozenset()
    if permission in roles.permissions():
        return permission in held
    service, verb = permission.partition(".")[0], permission.rpartition(".")[2]
    like = verb if verb in ("get", "list") else "create"
    return any(name.startswith(f"{service}.") and name.endswith(f".{like}") for name in held)


def by_role(policy: JsonObject) -> dict[str, list[str]]:
    """Return members with their condition, by role."""
    members: dict[str, list[str]] = {}
    for binding in policy.get("bindings") or ():
        marks = (f"{who} {binding.get('condition')}" for who in binding.get("members") or ())
        members.setdefault(binding.get("role", ""), []).extend(marks)
    return {role: sorted(marks) for role, marks in members.items() if marks}
