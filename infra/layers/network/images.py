"""Images that nodes and hosts can pull: they have no external addresses."""

from __future__ import annotations

from collections.abc import Iterator

from google_facts import registries
from infra.errors import Problem
from infra.layers.network.settings import NetworkSettings
from infra.settings.schema import Settings


def unreachable(settings: Settings, key: str, image: str) -> Iterator[Problem]:
    """Yield a problem if no registry of that host is reached; of somebody else's network it isn't known."""
    network = settings[NetworkSettings]
    if not (network.cloud_nat or network.existing_network or registries.is_googles(image)):
        rule = "nodes have no external addresses, and reach Google's registries alone"
        fix = (
            "copy it to Artifact Registry (LOCATION-docker.pkg.dev/PROJECT/REPOSITORY/…), or add "
            "network:cloudNat: true"
        )
        yield Problem(key, f'"{image}"', rule, fix)
