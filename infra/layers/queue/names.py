"""Names and ids that the queue layer owns and other layers read."""

from __future__ import annotations


def queue_role_id(environment: str) -> str:
    """Return the id of the teams' role, without the hyphens that role ids may not have."""
    return f"tpuQueue_{environment.replace('-', '_')}"
