"""Queue layer: JobSet and Kueue on the cluster, its pools as quota, and the teams that submit jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from infra.core.layer import Hooks, Layer, Rendered, deferred
from infra.google.role import Role
from infra.layers.gke.pools import region
from infra.layers.queue import images, manifests
from infra.layers.queue.cluster import KUBERNETES
from infra.layers.queue.names import queue_role_id
from infra.layers.queue.outputs import QueueOutputs
from infra.layers.queue.rules import RULES
from infra.layers.queue.settings import QueueSettings
from infra.layers.queue.team import first_job, held_by
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from infra.prices.row import Rate

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
        "roles/artifactregistry.admin", "create a repository for the controllers' images, and let nodes pull",
        ("artifactregistry.repositories.create", "artifactregistry.repositories.get",
         "artifactregistry.repositories.update", "artifactregistry.repositories.delete",
         "artifactregistry.repositories.getIamPolicy", "artifactregistry.repositories.setIamPolicy"),
    ),
    Role(
        "roles/iam.roleAdmin", "create the team members' custom role",
        ("iam.roles.create", "iam.roles.get", "iam.roles.update", "iam.roles.delete", "iam.roles.undelete"),
    ),
    Role(
        "roles/resourcemanager.projectIamAdmin", "grant team members their custom role",
        ("resourcemanager.projects.getIamPolicy", "resourcemanager.projects.setIamPolicy"),
    ),
    Role(
        "roles/secretmanager.admin", "let a team's jobs read its secrets",
        ("secretmanager.secrets.get", "secretmanager.secrets.getIamPolicy",
         "secretmanager.secrets.setIamPolicy"),
        setting="teams[].secrets",
    ),
)  # fmt: skip


def _services(settings: Settings) -> Iterator[str]:
    yield "container.googleapis.com"
    yield "artifactregistry.googleapis.com"
    if any(team.secrets for team in settings[QueueSettings].teams):
        yield "secretmanager.googleapis.com"


def _rates(settings: Settings) -> Iterable[Rate]:
    from infra.prices.row import rate

    return (rate("registry", region(settings)),)


def _at_google(settings: Settings) -> dict[str, str]:
    name = images.mirror(settings).full_name
    return {name: f"https://artifactregistry.googleapis.com/v1/{name}"}


LAYER = Layer(
    name="queue",
    reads=("storage", "gke"),
    may_read=("data",),
    settings=QueueSettings,
    rules=RULES,
    roles=_ROLES,
    grants=lambda given: (f"projects/{given.project}/roles/{queue_role_id(given.environment)}",),
    services=_services,
    providers=KUBERNETES,
    outputs=QueueOutputs,
    holds="jobs",
    held_by=held_by,
    rates=_rates,
    at_google=_at_google,
    hooks=Hooks(
        after=("pipeline",),  # whose account may be a member of a team
        lacking=images.lacking,
        following=first_job,
        rendered=Rendered(read=manifests.files, variable=manifests.FOLDER_VARIABLE),
    ),
    program=deferred(f"{__package__}.program"),
)
