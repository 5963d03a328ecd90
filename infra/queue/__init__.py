"""Queue layer: JobSet and Kueue on the cluster, its pools as quota, and the teams that submit jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infra import names
from infra.gcp.roles import Role
from infra.layers import Layer, Rendered, deferred
from infra.outputs import Outputs, output
from infra.queue import manifests
from infra.queue.cluster import KUBERNETES
from infra.queue.kueue import CLUSTER_QUEUE
from infra.queue.rules import RULES
from infra.queue.settings import QueueSettings
from infra.queue.team import teams
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from pulumi import Output


class QueueOutputs(Outputs):
    """Where jobs go."""

    cluster_queue: Output[str] = output(f"`{CLUSTER_QUEUE}`, which all teams share")
    namespaces: Output[dict[str, str]] = output("mapping: a team's namespace, by its name")
    chips: Output[int] = output("of all pools: the queue's quota")
    submit: Output[list[str]] = output("list: a team's command to submit a first job")


def _planned(settings: Settings) -> dict[str, Any]:
    return {
        "cluster_queue": CLUSTER_QUEUE,
        "namespaces": {team.name: team.namespace for team in teams(settings)},
    }


_ROLES = (
    # Controllers, their rights and the teams': who grants rights on the cluster must hold all of them.
    # https://cloud.google.com/kubernetes-engine/docs/how-to/iam
    Role(
        "roles/container.admin", "install JobSet and Kueue, and grant teams their rights",
        ("container.clusters.connect", "container.customResourceDefinitions.create",
         "container.deployments.create", "container.clusterRoles.bind", "container.clusterRoles.escalate",
         "container.namespaces.create", "container.persistentVolumes.create",
         "container.thirdPartyObjects.create"),
    ),
    Role(
        "roles/iam.roleAdmin", "define what members of teams may do in the project",
        ("iam.roles.create", "iam.roles.get", "iam.roles.update", "iam.roles.delete", "iam.roles.undelete"),
    ),
    Role(
        "roles/resourcemanager.projectIamAdmin", "grant it to them",
        ("resourcemanager.projects.getIamPolicy", "resourcemanager.projects.setIamPolicy"),
    ),
)  # fmt: skip

LAYER = Layer(
    name="queue",
    reads=("storage", "gke"),
    may_read=("data",),
    after=("pipeline",),  # whose account may be a member of a team
    settings=QueueSettings,
    rules=RULES,
    roles=_ROLES,
    grants=lambda given: (f"projects/{given.project}/roles/{names.queue_role_id(given.environment)}",),
    services=lambda _: ("container.googleapis.com",),
    providers=KUBERNETES,
    outputs=QueueOutputs,
    planned=_planned,
    holds="jobs",
    held_by="gke",
    rendered=Rendered(read=manifests.files, hashes=manifests.HASHES, variable=manifests.FOLDER_VARIABLE),
    program=deferred(f"{__name__}.program"),
)
