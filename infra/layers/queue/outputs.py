"""Outputs of the queue layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.core.outputs import Outputs, output
from infra.layers.queue.kueue import CLUSTER_QUEUE
from infra.layers.queue.team import teams
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from pulumi import Output


class QueueOutputs(Outputs, layer="queue"):
    """The queues, for jobs."""

    cluster_queue: Output[str] = output(
        f"`{CLUSTER_QUEUE}`, which all teams share, or borrow from where they have quotas"
    )
    namespaces: Output[dict[str, str]] = output("mapping: a team's namespace, by its name")
    chips: Output[int] = output("of all pools: the queue's quota")
    submit: Output[list[str]] = output("list: a team's command to submit a first job")

    @staticmethod
    def planned(settings: Settings) -> Mapping[str, Any]:
        """Return the outputs that the settings determine, for previews of layers that read them."""
        return {
            "cluster_queue": CLUSTER_QUEUE,
            "namespaces": {team.name: team.namespace for team in teams(settings)},
        }
