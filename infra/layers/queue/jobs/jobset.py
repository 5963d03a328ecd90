"""A job as a JobSet: one slice or several, one pod on each host, all or nothing.

https://jobset.sigs.k8s.io/docs/concepts/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google_facts import gke_pools
from infra.layers.queue.admission import CLUSTER
from infra.layers.queue.kueue import POOL_LABEL, TOLERATION, TOPOLOGY_LABEL, TPU, Object, Team

API = "jobset.x-k8s.io/v1alpha2"
SLICE = "slice"
# https://cloud.google.com/kubernetes-engine/docs/how-to/cloud-storage-fuse-csi-driver-sidecar
_FUSE = {"gke-gcsfuse/volumes": "true"}
PORT = 8476
_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
_SLICES, _SLICE_SIZE = "kueue.x-k8s.io/podset-slice-required-topology", "kueue.x-k8s.io/podset-slice-size"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_MOST_RESTARTS = 4
# Exit statuses. 75 (workload/train/launch.py): all workers saved, since one has notice that it will be taken
# away. 143: ended by SIGTERM, which a pod gets when it is evicted or its job is suspended. 69: a worker was
# lost without notice; 134: JAX aborts, since a worker is silent; 137: killed, for want of memory or of an
# answer to SIGTERM.
DISRUPTED, _LOST_STATUSES = (75, 143), (69, 134, 137)
_LOST = 2  # index of the first rule that isn't a disruption
_POD_FAILURES: list[Object] = [
    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    *(
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": "worker", "operator": "In", "values": list(statuses)},
        }
        for statuses in (DISRUPTED, _LOST_STATUSES)
    ),
]
# What Kubernetes would take for its own in a command: `$(NAME)` of a variable, and `$$` for a `$`.
# https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#entrypoint
_REFERENCE = re.compile(r"\$(?=[$(])")
_KEEP_S = 7 * 24 * 3600  # an ended job, for who looks at it later


@dataclass(frozen=True)
class Claim:
    """A volume claim that pods mount."""

    name: str
    read_only: bool = False


@dataclass(frozen=True)
class Job:
    """A job as a team submits it.

    Attributes:
        name: of the JobSet; at most 40 characters, since `-slice-N-N` is appended for host names.
        command: command line of every host.
        topology, hosts, chips_per_host: of each slice.
        selector: node labels that a host has beside its topology.
        claims: volume claims of the namespace, by the folders where they are.
        priority: low, medium or high.
        queued_s: seconds that nodes of a queued pool are requested for; None on other pools.
        scales: its pools may have no nodes yet. Kueue places on nodes that are there, so JobSet does it.
        restarts: how often a failure that isn't the job's fault may recreate it; maintenance and preemption
            don't count.
        cluster: full name of the cluster that it is for; another one refuses it.
    """

    name: str
    team: Team
    image: str
    command: Sequence[str]
    topology: str
    hosts: int
    chips_per_host: int
    slices: int = 1
    account: str = "trainer"
    priority: str = "medium"
    environment: Mapping[str, str] = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    scales: bool = False
    queued_s: int | None = None
    restarts: int = _MOST_RESTARTS
    cluster: str = ""


def jobset(job: Job) -> Object:
    """Return the manifest."""
    template: Object = {"spec": _job(job)}
    if job.scales:
        template["metadata"] = {"annotations": {_EXCLUSIVE: POOL_LABEL}}
    annotations = {CLUSTER: job.cluster} if job.cluster else {}
    if job.queued_s:
        annotations[gke_pools.DURATION_ANNOTATION] = str(job.queued_s)
    return {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": {
            "name": job.name,
            "namespace": job.team.namespace,
            "labels": {
                "kueue.x-k8s.io/queue-name": job.team.queue,
                "kueue.x-k8s.io/priority-class": job.priority,
            },
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {
            "coordinator": {"replicatedJob": SLICE, "jobIndex": 0, "podIndex": 0},
            "ttlSecondsAfterFinished": _KEEP_S,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            # A disrupted host isn't the job's fault, and one that was lost seldom; any other failure is, and
            # ends it at once.
            "failurePolicy": {
                "maxRestarts": job.restarts,
                "rules": [
                    {
                        "name": "disrupted",
                        "action": "RestartJobSetAndIgnoreMaxRestarts",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                        "onJobFailureMessagePatterns": [f"matching FailJob rule at index [0-{_LOST - 1}]$"],
                    },
                    {"name": "lost", "action": "RestartJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
                    {"name": "failed", "action": "FailJobSet", "targetReplicatedJobs": [SLICE]},
                ],
            },
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [SLICE]},
            "replicatedJobs": [{"name": SLICE, "replicas": job.slices, "template": template}],
        },
    }


def _job(job: Job) -> Object:
    annotations = {}
    if not job.scales:
        several = {_SLICES: POOL_LABEL, _SLICE_SIZE: str(job.hosts)}
        annotations = several if job.slices > 1 else {_TOPOLOGY: POOL_LABEL}
    if job.claims:
        annotations |= _FUSE
    return {
        "parallelism": job.hosts,
        "completions": job.hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": _POD_FAILURES},
        "template": {"metadata": {"annotations": annotations}, "spec": _pod(job)},
    }


def _pod(job: Job) -> Object:
    chips = {TPU: str(job.chips_per_host)}
    return {
        "restartPolicy": "Never",
        "serviceAccountName": job.account,
        "automountServiceAccountToken": False,
        "nodeSelector": {TOPOLOGY_LABEL: job.topology, **job.selector},
        "tolerations": [TOLERATION],
        "terminationGracePeriodSeconds": 30,
        "containers": [
            {
                "name": "worker",
                "image": job.image,
                "command": [_REFERENCE.sub("$$", word) for word in job.command],
                "env": [*_places(job), *({"name": k, "value": v} for k, v in job.environment.items())],
                "ports": [{"containerPort": PORT}],
                "resources": {"requests": {**chips, "cpu": "1", "memory": "1Gi"}, "limits": chips},
                "volumeMounts": [
                    {
                        "name": claim.name,
                        "mountPath": place,
                        **({"readOnly": True} if claim.read_only else {}),
                    }
                    for place, claim in job.claims.items()
                ],
            }
        ],
        "volumes": [
            {
                "name": claim.name,
                "persistentVolumeClaim": {"claimName": claim.name, "readOnly": claim.read_only},
            }
            for claim in job.claims.values()
        ],
    }


def _places(job: Job) -> list[Object]:
    """Return the variables of a pod: its slice, its host, and the coordinator.

    JobSet counts all replicated jobs in its `global-…` annotations, so the slice's own index is taken
    (https://github.com/kubernetes-sigs/jobset/issues/787).
    """

    def of_pod(path: str) -> Object:
        return {"fieldRef": {"fieldPath": path}}

    annotation = "metadata.annotations['{}']"
    return [
        {"name": "JOB_COORDINATOR", "valueFrom": of_pod(annotation.format("jobset.sigs.k8s.io/coordinator"))},
        {"name": "JOB_SLICE", "valueFrom": of_pod(annotation.format("jobset.sigs.k8s.io/job-index"))},
        {
            "name": "JOB_WORKER",
            "valueFrom": of_pod(annotation.format("batch.kubernetes.io/job-completion-index")),
        },
        {"name": "JOB_SLICES", "value": str(job.slices)},
        {"name": "JOB_HOSTS", "value": str(job.hosts)},
    ]
