"""Addresses of accounts that Google makes in a project."""

from __future__ import annotations

from google_facts.agents import AGENTS
from rehearsal.cloud.core.errors import NotEmulatedError
from rehearsal.cloud.core.world import World


def agent(world: World, api: str) -> str:
    """Return the address of a service's agent (https://cloud.google.com/iam/docs/service-agents)."""
    if api not in AGENTS:
        raise NotEmulatedError(f"The service agent of {api}")
    return AGENTS[api].email(world.number)


def compute_account(world: World) -> str:
    """Return the address of the Compute Engine default service account."""
    return f"{world.number}-compute@developer.gserviceaccount.com"
