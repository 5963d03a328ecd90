"""Secrets of a team's pods: its own, and those that every program may read."""

from __future__ import annotations

from infra.layers.gke.pods import member_of
from infra.layers.gke.settings import GkeSettings
from infra.layers.queue.kueue import Team
from infra.layers.storage.secrets import Reader
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings


def reader(settings: Settings, team: Team) -> Reader:
    """Return the account of a team's pods; with `gke:workloadAccountId` it is that of all teams."""
    granted = {
        **dict.fromkeys(team.secrets, "queue"),
        **dict.fromkeys(settings[StorageSettings].secrets, "gke"),
    }
    member = member_of(settings, team.namespace)
    if settings[GkeSettings].workload_account_id:
        return Reader(member, granted, layer="gke")
    return Reader(member, granted, f"secrets of {team.name} in queue:teams", "queue")
