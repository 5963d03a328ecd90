"""The teams of the settings."""

from __future__ import annotations

from infra.queue.kueue import Team
from infra.queue.settings import QueueSettings
from infra.settings.schema import Settings


def teams(settings: Settings) -> tuple[Team, ...]:
    """In the order of the settings."""
    return tuple(Team(one.name, one.namespace or one.name) for one in settings[QueueSettings].teams)
