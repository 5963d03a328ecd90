"""Names and ids that the queue layer owns and other layers read."""

from __future__ import annotations


def queue_role_id(environment: str) -> str:
    """What the project calls the role of the teams' members: an id of a role has no hyphens."""
    return f"tpuQueue_{environment.replace('-', '_')}"
