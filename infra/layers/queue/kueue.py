"""Kueue's objects, from the node pools that exist: a queue can't promise more chips than there are.

https://kueue.sigs.k8s.io/docs/concepts/
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google_facts import gke_pools

Object = dict[str, Any]
API = "kueue.x-k8s.io/v1beta2"
TPU = "google.com/tpu"
TOPOLOGY, CLUSTER_QUEUE, CPU_FLAVOR = "node-pools", "tpu", "cpu"
POOL_LABEL = "cloud.google.com/gke-nodepool"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
PRIORITIES: Mapping[str, int] = {"low": 100, "medium": 500, "high": 1000}
TOLERATION = {"key": TPU, "operator": "Equal", "value": "present", "effect": "NoSchedule"}
# What a node gives to pods, below what its machine has: GKE keeps some for itself.
# https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes
_PER_NODE: Mapping[str, tuple[int, int]] = {  # vCPUs, memory in GiB
    "ct6e-standard-1t": (43, 160),
    "ct6e-standard-4t": (179, 680),
    "ct6e-standard-8t": (179, 1380),
}
# Whether a job that doesn't fit lets later ones pass. The first is Kueue's default.
STRATEGIES = ("BestEffortFIFO", "StrictFIFO")
_QUEUED, _CHECK = "queued", "provisioning"
# Not rationed: what copies curves waits for a CPU node by itself, and holds no job; with too little quota it
# would be given to a flavor of TPU nodes.
_CPU_POOL = (100_000, 400_000)  # vCPUs, GiB


@dataclass(frozen=True)
class Quota:
    """Chips of a team's own on pools of a group, and how many more it may borrow; None for all."""

    pool: str
    chips: int
    borrow: int | None = None


@dataclass(frozen=True)
class Team:
    """A team: its namespace, and the queue in it that its jobs name.

    Attributes:
        name: as in the settings.
        namespace: of its jobs.
        queue: its LocalQueue, whose ClusterQueue never changes: queues of quotas have another name.
        cluster_queue: CLUSTER_QUEUE, which all share, or one of its own.
        quotas: of its own queue; it borrows other pools' chips.
        weight: its part of what teams borrow, beside other teams'.
        priorities: that its jobs may have.
        secrets: that its pods alone may read.
    """

    name: str
    namespace: str
    queue: str = "default"
    cluster_queue: str = CLUSTER_QUEUE
    quotas: tuple[Quota, ...] = ()
    weight: int = 1
    priorities: tuple[str, ...] = tuple(PRIORITIES)
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flavor:
    """Pools that are alike: a job takes one or several of them."""

    topology: str
    machine: str
    provisioning: str
    zone: str
    label: str
    scales: bool

    @property
    def name(self) -> str:
        """E.g. v6e-4x4-4t-spot-us-east5-b."""
        return f"v6e-{self.topology}-{self.machine.rpartition('-')[2]}-{self.label}-{self.zone}"

    @property
    def labels(self) -> dict[str, str]:
        """By which its nodes are found."""
        values = {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
            TOPOLOGY_LABEL: self.topology,
            "node.kubernetes.io/instance-type": self.machine,
            "topology.kubernetes.io/zone": self.zone,
            "tpu-provisioning": self.label,
        }
        if self.provisioning in ("spot", "flex-start"):
            values[f"cloud.google.com/gke-{self.provisioning}"] = "true"
        if self.provisioning == _QUEUED:
            values[gke_pools.QUEUED_LABEL] = gke_pools.QUEUED_VALUE
        return values

    @property
    def tolerations(self) -> list[Object]:
        """Of its nodes' taints."""
        if self.provisioning != _QUEUED:
            return [TOLERATION]
        return [TOLERATION, {**TOLERATION, "key": gke_pools.QUEUED_LABEL, "value": gke_pools.QUEUED_VALUE}]


def flavor(pool: Mapping[str, Any]) -> Flavor:
    """Return the flavor of a pool of the gke layer's output `pools`."""
    keys = ("topology", "machineType", "provisioning", "zone", "provisioningLabel", "scales")
    return Flavor(*(pool[key] for key in keys))


def flavors(pools: Sequence[Mapping[str, Any]]) -> dict[Flavor, list[Mapping[str, Any]]]:
    """Return the pools by flavor."""
    by_flavor: dict[Flavor, list[Mapping[str, Any]]] = defaultdict(list)
    for pool in pools:
        by_flavor[flavor(pool)].append(pool)
    return dict(by_flavor)


def objects(
    pools: Sequence[Mapping[str, Any]], strategy: str = STRATEGIES[0], teams: Sequence[Team] = ()
) -> Iterator[Object]:
    """All of them but the teams' LocalQueues, each behind what it names. `strategy`: one of STRATEGIES.

    Teams with a ClusterQueue of their own are a cohort with the one that has the other chips, whose jobs are
    none: they borrow from it and from one another.
    """
    yield _object("Topology", TOPOLOGY, {
        "levels": [{"nodeLabel": POOL_LABEL}, {"nodeLabel": "kubernetes.io/hostname"}],
    })  # fmt: skip
    known = flavors(pools)
    yield _object("ResourceFlavor", CPU_FLAVOR, {"nodeLabels": {POOL_LABEL: "cpu"}})
    for flavor in known:
        spec: Object = {"nodeLabels": flavor.labels, "tolerations": flavor.tolerations}
        if not flavor.scales:  # topology-aware scheduling places on nodes that are there
            spec["topologyName"] = TOPOLOGY
        yield _object("ResourceFlavor", flavor.name, spec)
    for name, value in PRIORITIES.items():
        yield {
            "apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value,
            "description": f"{name} priority",
        }  # fmt: skip
    for topology in dict.fromkeys(flavor.topology for flavor in known if flavor.provisioning == _QUEUED):
        yield from _provisioning_check(topology)
    own = [team for team in teams if team.cluster_queue != CLUSTER_QUEUE]
    rest = {
        flavor: _Share(_chips(same) - sum(_quota_of(team, same) for team in own))
        for flavor, same in known.items()
    }
    spec = _cluster_queue(known, rest, strategy)
    yield _object("ClusterQueue", CLUSTER_QUEUE, spec | ({"cohortName": CLUSTER_QUEUE} if own else {}))
    for team in own:
        shares = {
            flavor: _Share(_quota_of(team, same), _borrow_limit(team, same)) for flavor, same in known.items()
        }
        spec = _cluster_queue(known, shares, strategy) | {
            "cohortName": CLUSTER_QUEUE,
            "fairSharing": {"weight": str(team.weight)},
            # What others borrow comes back when the team's own jobs need it, whatever their priority.
            "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
        }
        yield _object("ClusterQueue", team.cluster_queue, spec)


def local_queue(team: Team) -> Object:
    """Return the queue that a team's jobs name."""
    return _object("LocalQueue", team.queue, {"clusterQueue": team.cluster_queue}, team.namespace)


@dataclass(frozen=True)
class _Share:
    """Chips of a flavor that a queue has, and may borrow; None for all."""

    chips: int
    borrow: int | None = None


def _chips(same: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(pool["chips"]) for pool in same)


def _of(team: Team, same: Sequence[Mapping[str, Any]]) -> list[Quota]:
    """Return a team's quotas on pools of a flavor; a pool of the settings is some, with numbers behind it."""
    groups = {pool["name"].rpartition("-")[0] for pool in same}
    return [quota for quota in team.quotas if quota.pool in groups]


def _quota_of(team: Team, same: Sequence[Mapping[str, Any]]) -> int:
    return sum(quota.chips for quota in _of(team, same))


def _borrow_limit(team: Team, same: Sequence[Mapping[str, Any]]) -> int | None:
    limits = [quota.borrow for quota in _of(team, same)]
    return None if None in limits or not limits else sum(limit or 0 for limit in limits)


def _provisioning_check(topology: str) -> Iterator[Object]:
    """Jobs on queued pools of a topology wait until Google says that their nodes are coming.

    https://kueue.sigs.k8s.io/docs/admission-check-controllers/provisioning/
    """
    name = f"{_CHECK}-{topology}"
    yield _object("ProvisioningRequestConfig", name, {
        "provisioningClassName": gke_pools.CLASS, "managedResources": [TPU],
        "parameters": {gke_pools.TOPOLOGY: topology},
    })  # fmt: skip
    parameters = {"apiGroup": API.partition("/")[0], "kind": "ProvisioningRequestConfig", "name": name}
    controller = "kueue.x-k8s.io/provisioning-request"
    yield _object("AdmissionCheck", name, {"controllerName": controller, "parameters": parameters})


def _cluster_queue(
    known: Mapping[Flavor, Sequence[Mapping[str, Any]]], shares: Mapping[Flavor, _Share], strategy: str
) -> Object:
    quotas = [_quota(CPU_FLAVOR, 0, *_CPU_POOL)]
    for flavor, same in known.items():
        share = shares[flavor]
        nodes = share.chips * sum(pool["hosts"] for pool in same) // _chips(same)
        cpus, memory_gib = _PER_NODE[flavor.machine]
        quotas.append(_quota(flavor.name, share.chips, nodes * cpus, nodes * memory_gib, share.borrow))
    # One group: pods that ask for resources of two groups would need the node labels of two flavors at once.
    group = {"coveredResources": [TPU, "cpu", "memory"], "flavors": quotas}
    queued: dict[str, list[str]] = {}
    for flavor in known:
        if flavor.provisioning == _QUEUED:
            queued.setdefault(flavor.topology, []).append(flavor.name)
    checks = [{"name": f"{_CHECK}-{topology}", "onFlavors": names} for topology, names in queued.items()]
    return {
        "namespaceSelector": {},
        "queueingStrategy": strategy,
        "resourceGroups": [group],
        "preemption": {"withinClusterQueue": "LowerPriority"},
        **({"admissionChecksStrategy": {"admissionChecks": checks}} if checks else {}),
    }


def _quota(flavor: str, chips: int, cpus: int, memory_gib: int, borrow: int | None = None) -> Object:
    memory = _amount(memory_gib, 1024, ("Gi", "Ti", "Pi")) if memory_gib else "0"
    amounts = {TPU: _amount(chips), "cpu": _amount(cpus), "memory": memory}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
    if borrow is not None:
        resources[0]["borrowingLimit"] = _amount(borrow)
    return {"name": flavor, "resources": resources}


def _amount(count: int, base: int = 1000, suffixes: Sequence[str] = ("", "k", "M", "G")) -> str:
    """Return a quantity in its shortest form, as Kueue stores it: 9000 would differ from 9k in previews."""
    index = 0
    while count and count % base == 0 and index + 1 < len(suffixes):
        count, index = count // base, index + 1
    return f"{count}{suffixes[index]}"


def _object(kind: str, name: str, spec: Object, namespace: str = "") -> Object:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": API, "kind": kind, "metadata": meta, "spec": spec}
