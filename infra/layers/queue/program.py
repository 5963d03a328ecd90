"""Declares the queue layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pulumi
import pulumi_gcp as gcp

from google_facts import registries
from infra.core import names, upstream
from infra.core.guard import JOBS, Living
from infra.core.secrets import ACCESSOR
from infra.layers.data.names import disk_name
from infra.layers.data.outputs import DataOutputs
from infra.layers.gke.outputs import GkeOutputs
from infra.layers.gke.pods import PRINCIPALS, member_of
from infra.layers.gke.settings import GkeSettings
from infra.layers.queue import admission, images, kueue, manifests, namespace
from infra.layers.queue.kueue import CLUSTER_QUEUE, Object, Team
from infra.layers.queue.names import queue_role_id
from infra.layers.queue.outputs import QueueOutputs
from infra.layers.queue.ready import Ready
from infra.layers.queue.settings import QueueSettings
from infra.layers.queue.team import cluster as cluster_name
from infra.layers.queue.team import first_job, held_by, planned_pools, secret_names, teams
from infra.layers.storage.outputs import StorageOutputs
from infra.settings.schema import Settings
from infra.slices import nodes

_VOLUME = "PersistentVolume"
# To find the cluster and reach its control plane; what people may do there, their namespace says.
_CONNECT = ("container.clusters.connect", "container.clusters.get", "container.clusters.list")


class Manifest(pulumi.CustomResource):
    """An object of the cluster, as its manifest says."""

    def __init__(self, document: Object, opts: pulumi.ResourceOptions):
        version, kind, meta = document["apiVersion"], document["kind"], document["metadata"]
        name = "-".join(filter(None, (kind, meta.get("namespace"), meta["name"])))
        group = version if "/" in version else f"core/{version}"
        super().__init__(f"kubernetes:{group}:{kind}", name, dict(document), opts)


class Controller(pulumi.ComponentResource):
    """JobSet or Kueue, from its released manifests; what runs comes behind `needs`."""

    def __init__(
        self,
        name: str,
        image: str,
        opts: pulumi.ResourceOptions,
        needs: Sequence[pulumi.Resource] = (),
        fair_sharing: bool = False,
    ):
        super().__init__("tpu:queue:Controller", name, None, opts)
        self.objects: list[Manifest] = []
        *first, last = manifests.stages(name, image, fair_sharing)
        for stage in first:
            self._declare(stage, self.objects)
        self._declare(last, [*self.objects, *needs])
        self.register_outputs({})

    def _declare(self, stage: Iterable[Object], needs: Sequence[pulumi.Resource]) -> None:
        opts = pulumi.ResourceOptions(parent=self, depends_on=list(needs))
        self.objects += [Manifest(document, opts) for document in stage]


class Images(pulumi.ComponentResource):
    """Lets nodes pull: a remote repository in front of registry.k8s.io, and the right to read it."""

    def __init__(
        self, settings: Settings, nodes: Mapping[str, pulumi.Input[str]], opts: pulumi.ResourceOptions
    ):
        """`nodes`: addresses of the accounts that nodes run as, by the ends of their grants' names.

        Those of others ("" is ours) read our repository alone.
        """
        super().__init__("tpu:queue:Images", "images", None, opts)
        self.resources: list[pulumi.Resource] = []
        mirror = images.mirror(settings)
        for place in images.readable(settings):
            child = pulumi.ResourceOptions(parent=self)
            if place == mirror:
                self.resources.append(self._mirror(place, child))
                child = pulumi.ResourceOptions(parent=self, depends_on=self.resources[-1:])
            self.resources += [
                gcp.artifactregistry.RepositoryIamMember(
                    f"{place.location}-{place.name}-reader{end}",
                    project=place.project,
                    location=place.location,
                    repository=place.name,
                    role=registries.READER,
                    member=pulumi.Output.concat("serviceAccount:", account),
                    opts=child,
                )
                for end, account in nodes.items()
                if not end or place == mirror
            ]
        self.register_outputs({})

    def _mirror(self, place: registries.Repository, opts: pulumi.ResourceOptions) -> pulumi.Resource:
        return gcp.artifactregistry.Repository(
            place.name,
            repository_id=place.name,
            location=place.location,
            format="DOCKER",
            mode="REMOTE_REPOSITORY",
            description="Images of JobSet and Kueue, for nodes without Cloud NAT",
            remote_repository_config={"common_repository": {"uri": f"https://{registries.KUBERNETES}"}},
            opts=opts,
        )


class ClusterQueue(pulumi.ComponentResource):
    """The pools as quota that teams share or have, and the priorities of jobs."""

    def __init__(self, objects: Iterable[Object], opts: pulumi.ResourceOptions):
        super().__init__("tpu:queue:ClusterQueue", CLUSTER_QUEUE, None, opts)
        self.objects = _in_order(objects, pulumi.ResourceOptions(parent=self))
        self.register_outputs({})


class Admission(pulumi.ComponentResource):
    """The admission policy of JobSets."""

    def __init__(self, objects: Iterable[Object], opts: pulumi.ResourceOptions):
        super().__init__("tpu:queue:Admission", admission.NAME, None, opts)
        self.objects = _in_order(objects, pulumi.ResourceOptions(parent=self))
        self.register_outputs({})


class TeamSpace(pulumi.ComponentResource):
    """A team's namespace, with its queue, its rights and its volumes."""

    def __init__(self, team: Team, objects: Iterable[Object], opts: pulumi.ResourceOptions):
        super().__init__("tpu:queue:TeamSpace", team.name, None, opts)
        first, *rest = objects
        # Volumes go last: each is held by its claim, and a claim by the pods of jobs that have ended.
        volumes = [
            Manifest(document, pulumi.ResourceOptions(parent=self))
            for document in rest
            if document["kind"] == _VOLUME
        ]
        space = Manifest(first, pulumi.ResourceOptions(parent=self, depends_on=volumes))
        # The namespace takes all that is in it along.
        inside = pulumi.ResourceOptions(parent=self, depends_on=[space], deleted_with=space)
        self.objects = [
            *volumes,
            space,
            *(Manifest(document, inside) for document in rest if document["kind"] != _VOLUME),
        ]
        self.register_outputs({})


class Members(pulumi.ComponentResource):
    """Lets the teams' people reach the cluster, and do nothing there that their namespace doesn't say."""

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions):
        super().__init__("tpu:queue:Members", "members", None, opts)
        project, role_id = settings.project, queue_role_id(settings.environment)
        role = gcp.projects.IAMCustomRole(
            "members",
            role_id=role_id,
            title="TPU queue",
            description="Finds GKE clusters and reaches their control planes",
            permissions=_CONNECT,
            opts=pulumi.ResourceOptions(parent=self),
        )
        after = pulumi.ResourceOptions(parent=self, depends_on=[role])
        every = dict.fromkeys(member for team in settings[QueueSettings].teams for member in team.members)
        for member in every:
            gcp.projects.IAMMember(
                member, project=project, role=f"projects/{project}/roles/{role_id}", member=member, opts=after
            )
        self.register_outputs({})


class Secrets(pulumi.ComponentResource):
    """Lets each team's pods read the team's secrets."""

    def __init__(self, settings: Settings, project_number: pulumi.Input[str], opts: pulumi.ResourceOptions):
        super().__init__("tpu:queue:Secrets", "secrets", None, opts)
        for team in teams(settings):
            end = member_of(settings, team.namespace)
            for secret in team.secrets:
                gcp.secretmanager.SecretIamMember(
                    f"{team.namespace}-{secret}",
                    project=settings.project,
                    secret_id=secret,
                    role=ACCESSOR,
                    member=pulumi.Output.concat(PRINCIPALS, project_number, end),
                    opts=pulumi.ResourceOptions(parent=self),
                )
        self.register_outputs({})


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> QueueOutputs:
    """Return the controllers, the queue and the teams."""
    desired, cluster = settings[QueueSettings], providers["kubernetes"]
    # All that it reads, first: what isn't up is reported before anything is made.
    gke = upstream.read(GkeOutputs, settings)
    storage = upstream.read(StorageOutputs, settings)
    volumes = namespace.Volumes(storage.bucket_name, _disks(settings))
    if own := secret_names(settings):
        from infra.core import present  # here, so that no program waits for Google's libraries

        present.require(settings, own, "queue:teams[].secrets")
    google = pulumi.ResourceOptions(provider=providers["gcp"])
    accounts: dict[str, pulumi.Input[str]] = {"": gke.node_account_email}
    if settings[GkeSettings].existing_cluster:
        from infra.layers.queue import nodes  # here, so that no program waits for Google's libraries

        others = nodes.accounts(settings, storage.project_number)
        accounts |= {f"-{name}": address for name, address in others.items()}
    readable = Images(settings, accounts, google).resources
    opts = pulumi.ResourceOptions(provider=cluster)
    pulled = [images.pulled(settings, image) for image in (desired.jobset_image, desired.kueue_image)]
    jobset = Controller("jobset", pulled[0], opts, needs=readable)
    # JobSet's webhooks are asked about every Deployment outside of its own namespace.
    fair = any(team.quotas for team in teams(settings))
    kueue_ = Controller("kueue", pulled[1], opts, [*readable, *jobset.objects], fair)
    controllers = [*jobset.objects, *kueue_.objects]
    ready = Ready(settings.project, gke.endpoint, pulled, controllers)
    pools = _pools(settings)
    after = pulumi.ResourceOptions(provider=cluster, depends_on=[ready, *controllers])
    queue = ClusterQueue(kueue.objects(pools, desired.queueing_strategy, teams(settings)), after)
    account = settings[GkeSettings].kubernetes_account
    rules = Admission(admission.objects(pools, teams(settings), cluster_name(settings), account), after)
    after = pulumi.ResourceOptions(provider=cluster, depends_on=[*queue.objects, *rules.objects])
    id_ = settings[GkeSettings].workload_account_id
    google_account = names.account_email(settings, id_) if id_ else None
    for team, item in zip(teams(settings), desired.teams, strict=True):
        objects = namespace.objects(team, item.members, account, google_account, volumes)
        space = TeamSpace(team, objects, after)
        # A team that is taken out of the settings loses its namespace, with all that runs there.
        labels: dict[str, pulumi.Input[str]] = dict(held_by(settings))
        Living(JOBS, settings.project, settings.environment, labels, space.objects, team.namespace)
    Members(settings, google)
    if own:
        Secrets(settings, storage.project_number, google)
    commands = [first_job(settings, team.name) for team in teams(settings)]
    return QueueOutputs(
        cluster_queue=pulumi.Output.from_input(CLUSTER_QUEUE),
        namespaces=pulumi.Output.from_input({team.name: team.namespace for team in teams(settings)}),
        chips=pulumi.Output.from_input(sum(pool["chips"] for pool in pools)),
        submit=pulumi.Output.from_input(commands),
    )


def _pools(settings: Settings) -> Sequence[Mapping[str, Any]]:
    """Return the existing pools; in a preview without a cluster, the pools of the settings."""
    exist = upstream.known(GkeOutputs, "pools")
    if exist is None:
        exist = planned_pools(settings)
    return [{**pool, **{key: int(pool[key]) for key in ("hosts", "chips")}} for pool in exist]


def _disks(settings: Settings) -> Sequence[namespace.Disk]:
    """Return the data disk of each zone in use, with pools or without: pools come and go."""
    known = {zone: disk for zone in nodes.zones(settings) if (disk := disk_name(settings, zone))}
    if not known:
        return ()
    ids = upstream.read(DataOutputs, settings).disk_ids
    return [namespace.Disk(zone, disk, ids[zone]) for zone, disk in known.items()]


def _in_order(objects: Iterable[Object], opts: pulumi.ResourceOptions) -> list[Manifest]:
    """Each behind the one before: they name one another."""
    made: list[Manifest] = []
    for document in objects:
        made.append(
            Manifest(
                document, pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=made[-1:]))
            )
        )
    return made
