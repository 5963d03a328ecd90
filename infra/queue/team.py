"""The teams of the settings, and the node pools that they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.queue.kueue import Team
from infra.queue.settings import QueueSettings
from infra.settings.schema import Settings


def planned_pools(settings: Settings) -> Sequence[Mapping[str, Any]]:
    """What the gke layer will export as `pools`."""
    from infra import layers  # here, because it imports this layer

    gke = layers.named("gke")
    assert gke is not None, "the queue layer reads it"
    found: Sequence[Mapping[str, Any]] = gke.planned(settings)["pools"]
    return found


def teams(settings: Settings) -> tuple[Team, ...]:
    """In the order of the settings."""
    return tuple(Team(one.name, one.namespace or one.name) for one in settings[QueueSettings].teams)
