"""Rules between the queue's settings, and with the cluster that it is on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from infra.catalog import region_of
from infra.core.layer import up_command
from infra.errors import Problem
from infra.layers.data.settings import DataSettings
from infra.layers.gke.pools import may_reach_any_host, pools
from infra.layers.gke.settings import GkeSettings, of_the_cluster
from infra.layers.queue.images import is_mirrored
from infra.layers.queue.kueue import flavor
from infra.layers.queue.settings import QueueSettings
from infra.layers.queue.team import planned_pools, teams
from infra.layers.queue.versions import IMAGES
from infra.layers.storage.settings import BOARD_ROLE, StorageSettings
from infra.settings.images import unreachable
from infra.settings.schema import Relation, Settings
from infra.slices import nodes
from settings_schema.parser import nearest

_TEAMS = ("queue:teams[].name", "queue:teams[].namespace")
_POOLS = ("gke:tpuPools[].count", "gke:tpuPools[].acceleratorType", "gke:tpuPools[].topology")


def _names(settings: Settings, given: set[str]) -> Iterator[Problem]:
    teams_ = teams(settings)
    for name, times in Counter(team.name for team in teams_).items():
        if times > 1:
            yield Problem(
                "queue:teams", f'{times} teams called "{name}"', "each team has its own name", "rename one"
            )
    for space in dict.fromkeys(team.namespace for team in teams_):
        sharing = [team.name for team in teams_ if team.namespace == space]
        if len(set(sharing)) > 1:
            yield Problem(
                "queue:teams", f'"{space}" as the namespace of {" and ".join(sharing)}',
                "each team has a namespace of its own", "give one of them another",
            )  # fmt: skip


def _namespaces(settings: Settings, given: set[str]) -> Iterator[Problem]:
    known = settings[GkeSettings].namespaces
    for team in teams(settings):
        if of_the_cluster(team.namespace):
            if team.namespace not in known:  # else gke's own rule names it
                yield Problem(
                    "queue:teams", f'namespace "{team.namespace}" of {team.name}',
                    "this namespace belongs to Kubernetes or a controller", "write one of the team's own",
                )  # fmt: skip
        elif team.namespace not in known:
            yield Problem(
                "queue:teams", f'namespace "{team.namespace}" of {team.name}',
                f"pods may use the buckets in gke:namespaces alone: {', '.join(known) or 'none'}",
                f"add {team.namespace} to gke:namespaces",
            )  # fmt: skip


def _members(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings[GkeSettings].security_group:
        return
    for team in settings[QueueSettings].teams:
        for member in team.members:
            if member.startswith("group:"):
                yield Problem(
                    "queue:teams", f'"{member}" in {team.name}',
                    "a cluster knows Google groups only through the one that gke:securityGroup names, whose "
                    "members they are",
                    "add gke:securityGroup: gke-security-groups@YOUR-DOMAIN, or name users",
                )  # fmt: skip


def _chips(settings: Settings, given: set[str]) -> Iterator[Problem]:
    chips, planned = settings[QueueSettings].chips, planned_pools(settings)
    have = sum(pool["chips"] for pool in planned)
    if chips is not None and chips != have:
        yield Problem(
            "queue:chips", str(chips),
            f"the queue's quota is what all node pools have: {have} chips in {len(planned)}",
            f"write {have}, remove it, or change gke:tpuPools",
        )  # fmt: skip


def _quotas(settings: Settings, given: set[str]) -> Iterator[Problem]:
    groups = {pool.group: pool for pool in pools(settings)}
    have, quotas = Counter[str](), defaultdict[str, list[tuple[str, str, int]]](list)
    for pool in pools(settings):
        have[flavor(pool.outputs()).name] += pool.kind.chips
    desired = settings[QueueSettings].teams
    for i, team in enumerate(desired):
        path = f"queue:teams[{i}]"
        if team.weight != 1 and not any(other.quota for other in desired):
            rule, fix = "weights divide what teams borrow beside quotas", "add a quota, or remove it"
            yield Problem(f"{path}.weight", f"{team.weight} without a quota", rule, fix)
        for j, quota in enumerate(team.quota):
            where = f"{path}.quota[{j}]"
            if (known := groups.get(quota.pool)) is None:
                near = nearest(quota.pool, groups)
                rule = f"a pool of gke:tpuPools: {', '.join(groups) or 'none'}"
                yield Problem(
                    f"{where}.pool", f'"{quota.pool}"', rule, f"write {near}" if near else "add it there"
                )
                continue
            if quota.pool in [earlier.pool for earlier in team.quota[:j]]:
                rule, fix = "a team has one quota of a pool", "add the two up"
                yield Problem(f"{where}.pool", f'"{quota.pool}" again', rule, fix)
            chips = known.kind.chips
            for key, value in (("chips", quota.chips), ("borrow", quota.borrow or 0)):
                if value % chips:
                    rule = f"jobs take whole slices, and each of {quota.pool} has {chips} chips"
                    fix = f"write {value - value % chips} or {value - value % chips + chips}"
                    yield Problem(f"{where}.{key}", str(value), rule, fix)
            quotas[flavor(known.outputs()).name].append((f"{where}.chips", team.name, quota.chips))
    for kind, of_kind in quotas.items():
        yield from _too_large(have[kind], of_kind)


def _too_large(have: int, quotas: Sequence[tuple[str, str, int]]) -> Iterator[Problem]:
    """Yield problems of quotas of pools with `have` chips of one kind; each is path, team and chips."""
    rule, fix = f"the pools of that kind have {have} chips", "write less, or add pools"
    alone = [(path, chips) for path, _, chips in quotas if chips > have]
    for path, chips in alone:
        yield Problem(path, str(chips), rule, fix)
    if not alone and (total := sum(chips for _, _, chips in quotas)) > have:
        parts = ", ".join(f"{chips} chips of {team}" for _, team, chips in quotas)
        yield Problem("queue:teams", f"quotas of {parts}", f"{rule}, not {total}", fix)


def _data(settings: Settings, given: set[str]) -> Iterator[Problem]:
    data = settings.get(DataSettings)
    if data is None or data.snapshot is None:
        return
    has, known, gke = nodes.zones(settings), nodes.known_zones(settings), settings[GkeSettings]
    home = gke.region or settings[StorageSettings].location
    for number, pool in enumerate(gke.tpu_pools):
        zone = pool.zone
        if not pool.count or zone in has or zone not in known or region_of(zone) != home:
            continue  # gke's own rule names a zone that the cluster can't have
        yield Problem(
            f"gke:tpuPools[{number}].zone", f'"{zone}"',
            "jobs read the data from a disk in their zone, and there is none",
            f"add {zone} to tpu:zones",
        )  # fmt: skip


def _versions(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired = settings[QueueSettings]
    for name, image in (("kueue", desired.kueue_image), ("jobset", desired.jobset_image)):
        released = IMAGES[name].partition("@")[0]
        tag = released.rpartition(":")[2]
        if image.partition("@")[0].rpartition("/")[2] != f"{name}:{tag}":
            yield Problem(
                f"queue:{name}Image", f'"{image}"',
                f"the manifests are those of {name} {tag}, and an image has both at the end of its name",
                f"remove it, which is {released} with its digest, or write your mirror of that",
            )  # fmt: skip


def _reachable(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired = settings[QueueSettings]
    for key, image in (("kueueImage", desired.kueue_image), ("jobsetImage", desired.jobset_image)):
        if not is_mirrored(image):
            yield from unreachable(f"queue:{key}", image, may_reach_any_host(settings))
    if desired.image:
        yield from unreachable("queue:image", desired.image, may_reach_any_host(settings))


def _image(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if settings[QueueSettings].install == "image" and not settings[QueueSettings].image:
        rule, fix = "what pods run is in that image", "add queue:image, or remove queue:install"
        yield Problem("queue:image", "nothing, beside install: image", rule, fix)


def _tensorboard(settings: Settings, given: set[str]) -> Iterator[Problem]:
    board = settings[StorageSettings].tensorboard
    if board and BOARD_ROLE not in settings[GkeSettings].workload_roles:
        yield Problem(
            "storage:tensorboard", f'"{board}"',
            f"the account of the pods writes there, which needs {BOARD_ROLE} on the project",
            f"add {BOARD_ROLE} to gke:workloadRoles",
        )  # fmt: skip


def _variables(settings: Settings, given: set[str]) -> Iterator[Problem]:
    desired, known = settings[QueueSettings].variables, settings[StorageSettings].secrets
    yield from desired.problems("queue:env", "queue:secrets")
    yield from desired.undeclared("queue:secrets", known, up_command("gke", settings.environment))


def _secrets(settings: Settings, given: set[str]) -> Iterator[Problem]:
    account, everybody = settings[GkeSettings].workload_account_id, settings[StorageSettings].secrets
    for i, team in enumerate(settings[QueueSettings].teams):
        path = f"queue:teams[{i}].secrets"
        if team.secrets and account:
            rule = f"all teams' pods are one account at Google, {account} of gke:workloadAccountId"
            fix = "remove that, or name them in storage:secrets"
            yield Problem(path, ", ".join(team.secrets), rule, fix)
        for secret in team.secrets:
            if secret in everybody:
                rule = "storage:secrets lets every program read it"
                yield Problem(path, f'"{secret}"', rule, "remove it from one of the two")


RULES: tuple[Relation, ...] = (
    (("queue:env", "queue:secrets", "storage:secrets"), _variables),
    (("queue:teams[].secrets", "storage:secrets", "gke:workloadAccountId"), _secrets),
    (_TEAMS, _names),
    ((*_TEAMS, "gke:namespaces"), _namespaces),
    (("queue:teams[].members", "gke:securityGroup"), _members),
    (("queue:chips", *_POOLS), _chips),
    (("queue:teams[].quota", "queue:teams[].weight", *_POOLS), _quotas),
    (("gke:tpuPools[].zone", "tpu:zones", "data:snapshot"), _data),
    (("storage:tensorboard", "gke:workloadRoles"), _tensorboard),
    (("queue:kueueImage", "queue:jobsetImage"), _versions),
    (
        (
            "queue:kueueImage",
            "queue:jobsetImage",
            "queue:image",
            "network:cloudNat",
            "network:existingNetwork",
        ),
        _reachable,
    ),
    (("queue:install", "queue:image"), _image),
)
