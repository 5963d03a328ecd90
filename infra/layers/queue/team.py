"""The teams of the settings, and the cluster and node pools that they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.core import names
from infra.core.secrets import Reader
from infra.layers.gke.outputs import GkeOutputs
from infra.layers.gke.pods import member_of
from infra.layers.gke.settings import GkeSettings
from infra.layers.queue.kueue import CLUSTER_QUEUE, Quota, Team
from infra.layers.queue.settings import QueueSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings


def planned_pools(settings: Settings) -> Sequence[Mapping[str, Any]]:
    """Return the gke layer's future output `pools`."""
    pools: Sequence[Mapping[str, Any]] = _planned(settings)["pools"]
    return pools


def cluster(settings: Settings) -> str:
    """Full name of the cluster: `projects/P/locations/L/clusters/C`."""
    planned = _planned(settings)
    return f"projects/{settings.project}/locations/{planned['location']}/clusters/{planned['cluster_name']}"


def held_by(settings: Settings) -> Mapping[str, str]:
    """Return the labels of the cluster that jobs are on; of one that has none of ours, its full name."""
    if settings[GkeSettings].existing_cluster:
        return {"cluster": cluster(settings)}
    return names.labels(settings.environment, "gke")


def _planned(settings: Settings) -> Mapping[str, Any]:
    return GkeOutputs.planned(settings)


def teams(settings: Settings) -> tuple[Team, ...]:
    """In the order of the settings. One quota gives each team a queue of its own."""
    desired = settings[QueueSettings].teams
    shared = not any(team.quota for team in desired)
    return tuple(
        Team(
            team.name,
            team.namespace or team.name,
            "default" if shared else "quota",
            CLUSTER_QUEUE if shared else f"{CLUSTER_QUEUE}-{team.name}",
            quotas=tuple(Quota(item.pool, item.chips, item.borrow) for item in team.quota),
            weight=team.weight,
            priorities=team.priorities,
            secrets=team.secrets,
        )
        for team in desired
    )


def first_job(settings: Settings, team: str = "") -> str:
    """Return the command that submits a job of a team, by default the first; "" without one."""
    named = [team] if team else [item.name for item in settings[QueueSettings].teams]
    pools = settings[GkeSettings].tpu_pools
    pool = f" --pool {pools[0].name}" if len(pools) > 1 else ""
    return f"tpu job submit {settings.environment} {named[0]}{pool} -- train tiny.toml" if named else ""


def secret_names(settings: Settings) -> list[str]:
    """Return the secrets that teams have, once each; none without the layer."""
    queue = settings.get(QueueSettings)
    return list(dict.fromkeys(name for team in queue.teams for name in team.secrets)) if queue else []


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
