"""The jobs of a team as the cluster has them: submitted, listed, followed, cancelled."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from infra.core.layer import up_command
from infra.errors import InfraError
from infra.google.client import RequestError
from infra.google.failures import Kind
from infra.google.kubernetes import DRY_RUN, Cluster
from infra.layers.queue.jobs import reasons
from infra.layers.queue.jobs.jobset import API, DISRUPTED, SLICE, Job, jobset
from infra.layers.queue.kueue import API as KUEUE
from infra.layers.queue.kueue import Team

QUEUED, STARTING, RUNNING, COMPLETED, FAILED = "queued", "starting", "running", "completed", "failed"
ENDED = (COMPLETED, FAILED)
_VISIBLE = "/apis/visibility.kueue.x-k8s.io/v1beta2"
_LABEL, _PART = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name"
_REQUEST = "tpu-request"  # annotation: id of the request that made the job
# Reason of the autoscaler's events:
# https://cloud.google.com/kubernetes-engine/docs/troubleshooting/cluster-autoscaler-scale-up
_REFUSED = "FailedScaleUp"
_STAMP = re.compile(r"(\S+Z) (.*)")


@dataclass(frozen=True)
class Status:
    """Status of a job.

    Attributes:
        state: one of QUEUED, STARTING, RUNNING, COMPLETED, FAILED.
        why: reason why the job is queued, its pods wait, or it ended; may be empty.
        position: place in the queue, from 1; None unless queued.
        restarts: number of restarts, and `counted` those that the job's limit counts.
        admitted_s: of a job that has ended, seconds from its last admission to its end; None if unknown.
    """

    name: str
    state: str
    why: str
    priority: str
    hosts: int
    running: int
    created: str
    position: int | None = None
    restarts: int = 0
    counted: int = 0
    admitted_s: float | None = None


class Jobs:
    """Of one team; every method raises RequestError where the cluster can't answer."""

    def __init__(self, cluster: Cluster, team: Team, environment: str = "ENV"):
        """`environment`: for the commands that its messages name."""
        self._cluster, self._team, self._environment = cluster, team, environment
        self._jobsets = f"/apis/{API}/namespaces/{team.namespace}/jobsets"
        self._queue = f"namespaces/{team.namespace}/localqueues/{team.queue}"

    def submit(self, job: Job) -> None:
        """Put a job into the queue. Raises InfraError where there is one of that name, or no queue."""
        if self._cluster.get(f"/apis/{KUEUE}/{self._queue}") is None:
            raise InfraError(
                f"the namespace {self._team.namespace} has no queue {self._team.queue}\n"
                "    fix: the platform engineer brings the layer up: "
                f"{up_command('queue', self._environment)}"
            )
        manifest, request = jobset(job), str(uuid.uuid4())
        manifest["metadata"].setdefault("annotations", {})[_REQUEST] = request
        try:
            self._cluster.create(self._jobsets, manifest, DRY_RUN)  # which may be repeated
            self._cluster.create(self._jobsets, manifest)
        except RequestError as error:
            exists = error.failure.kind is Kind.EXISTS
            if exists or error.repeated:  # perhaps by this request, whose answer was lost
                known = self._cluster.get(f"{self._jobsets}/{job.name}") or {"metadata": {}}
                if known["metadata"].get("annotations", {}).get(_REQUEST) == request:
                    return
            if not exists:
                raise
            raise InfraError(
                f"{self._team.name} has a job {job.name} already\n"
                "    fix: another name (--name), or "
                f"tpu job cancel {self._environment} {self._team.name} {job.name}"
            ) from None

    def cancel(self, name: str) -> bool:
        """Delete a job with its pods; False where there is none. What it saved stays in the bucket."""
        return self._cluster.delete(f"{self._jobsets}/{name}")

    def status(self, name: str) -> Status | None:
        """Return a job's status; None if there is no such job."""
        return next((job for job in self.all() if job.name == name), None)

    def all(self) -> Sequence[Status]:
        """Return all jobs, the oldest first."""
        space = self._team.namespace
        workloads = {
            owner["uid"]: workload
            for workload in self._cluster.items(f"/apis/{KUEUE}/namespaces/{space}/workloads")
            for owner in workload["metadata"].get("ownerReferences", ())
        }
        pods: dict[str, list[Mapping[str, Any]]] = {}
        for pod in self._pods(_LABEL):
            pods.setdefault(pod["metadata"]["labels"][_LABEL], []).append(pod)
        waiting = self._positions()
        refused = self._refusals() if any(_unscheduled(pod) for same in pods.values() for pod in same) else {}
        jobs = [
            _status(
                job,
                workloads.get(job["metadata"]["uid"], {}),
                pods.get(job["metadata"]["name"], []),
                waiting,
                refused,
            )
            for job in self._cluster.items(self._jobsets)
        ]
        return sorted(map(self._with_logs, jobs), key=lambda job: (job.created, job.name))

    def _with_logs(self, job: Status) -> Status:
        """Add the command that shows why a job failed."""
        if job.state != FAILED:
            return job
        command = f"tpu job logs {self._environment} {self._team.name} {job.name}"
        return replace(job, why=f"{job.why}: {command}" if job.why else command)

    def _positions(self) -> Mapping[str, int]:
        """Place in the whole queue by workload, from 1."""
        answer = self._cluster.get(f"{_VISIBLE}/{self._queue}/pendingworkloads") or {}
        return {
            item["metadata"]["name"]: item.get("positionInClusterQueue", 0) + 1
            for item in answer.get("items") or ()
        }

    def _refusals(self) -> Mapping[str, str]:
        """Return the autoscaler's messages of quotas and stock-outs, by pod."""
        events = self._cluster.items(
            f"/api/v1/namespaces/{self._team.namespace}/events", {"fieldSelector": f"reason={_REFUSED}"}
        )
        newest_last = sorted(events, key=lambda event: str(event.get("lastTimestamp") or ""))
        return {event["involvedObject"]["name"]: str(event["message"]) for event in newest_last}

    def _pods(self, of: str) -> Iterator[Mapping[str, Any]]:
        """Yield the workers' pods of jobs that a selector names."""
        query = {"labelSelector": f"{of},{_PART}={SLICE}"}
        yield from self._cluster.items(f"/api/v1/namespaces/{self._team.namespace}/pods", query)

    def worker(self, name: str, number: int) -> str | None:
        """Return the newest pod of a worker, counted over all slices; None while there is none."""
        pods = [pod["metadata"] for pod in self._pods(f"{_LABEL}={name}") if _worker(pod) == number]
        newest = max(pods, key=lambda meta: str(meta["creationTimestamp"]), default=None)
        return None if newest is None else str(newest["name"])

    def failed(self, name: str) -> tuple[int, str, int] | None:
        """Worker, pod and exit status of whichever failed first; None where no pod is left that did.

        The others are ended for its sake, by SIGTERM, and most of their pods are deleted.
        """
        return _first_failure(self._pods(f"{_LABEL}={name}"))

    def log(self, pod: str, since: str = "", lines: int | None = None) -> Iterator[tuple[str, str]]:
        """Timestamp and text of what a pod's worker printed after `since`; nothing while it hasn't begun."""
        query = {"container": "worker", "timestamps": "true"}
        if since:
            query["sinceTime"] = f"{since.partition('.')[0].rstrip('Z')}Z"
        if lines is not None:
            query["tailLines"] = str(lines)
        try:
            text = self._cluster.text(f"/api/v1/namespaces/{self._team.namespace}/pods/{pod}/log", query)
        except RequestError as error:
            if error.failure.kind in (Kind.MISSING, Kind.INVALID):  # gone, or still being created
                return
            raise
        for line in text.splitlines():
            if (match := _STAMP.fullmatch(line)) and match[1] > since:
                yield match[1], match[2]


def _first_failure(pods: Iterable[Mapping[str, Any]]) -> tuple[int, str, int] | None:
    failures = []
    for pod in pods:
        for container in pod.get("status", {}).get("containerStatuses", ()):
            ended = container.get("state", {}).get("terminated", {})
            if container["name"] == "worker" and (code := ended.get("exitCode", 0)):
                when = ended.get("finishedAt") or ""
                failures.append((code in DISRUPTED, when, _worker(pod), pod["metadata"]["name"], code))
    return min(failures)[2:] if failures else None


def _worker(pod: Mapping[str, Any]) -> int:
    """Return a pod's worker number, counted over all slices in order."""
    notes = pod["metadata"].get("annotations", {})
    job = int(notes.get("jobset.sigs.k8s.io/job-index", 0))
    hosts = next((e["value"] for e in pod["spec"]["containers"][0]["env"] if e["name"] == "JOB_HOSTS"), "1")
    return job * int(hosts) + int(notes.get("batch.kubernetes.io/job-completion-index", 0))


def _unscheduled(pod: Mapping[str, Any]) -> str:
    """Return why the scheduler has no node for a pod; empty if it has, or hasn't looked."""
    status = pod.get("status", {})
    for condition in status.get("conditions", ()) if status.get("phase") == "Pending" else ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return condition.get("message", "").partition(". ")[0] or "Unschedulable"
    return ""


def _held(pod: Mapping[str, Any], refused: Mapping[str, str]) -> str:
    """Return why a pod doesn't run, as scheduler, autoscaler or node report it; empty: unknown."""
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    if status.get("phase") != "Pending":
        return ""
    if message := _unscheduled(pod):
        return f"{name} isn't scheduled: {refused.get(name, message)}"
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("message"):
            return f"{name}: {waiting['reason']}: {waiting['message']}"
    return str(status.get("message", ""))


def _status(
    job: Mapping[str, Any],
    workload: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    waiting: Mapping[str, int],
    refused: Mapping[str, str],
) -> Status:
    meta, status = job["metadata"], job.get("status", {})
    conditions = {c["type"]: c for c in workload.get("status", {}).get("conditions", ())}
    ended = {c["type"]: c for c in status.get("conditions", ()) if c["status"] == "True"}
    # Workers may end at times of their own.
    running = sum(pod.get("status", {}).get("phase") in ("Running", "Succeeded") for pod in pods)
    hosts = sum(
        part["replicas"] * part["template"]["spec"].get("parallelism", 1)
        for part in job["spec"]["replicatedJobs"]
        if part["name"] == SLICE
    )
    why = ""
    if terminal := status.get("terminalState", ""):
        state = COMPLETED if terminal == "Completed" else FAILED
        if state == FAILED:
            message = ended.get("Failed", {}).get("message", "")
            why = reasons.failed(message)
            if (reasons.by_program(message) or not why) and (first := _first_failure(pods)):
                why = f"worker {first[0]} failed first, with status {first[2]}"
    elif conditions.get("Admitted", {}).get("status") != "True":
        state = QUEUED
        why = reasons.queued(conditions.get("QuotaReserved", {}).get("message", ""))
    else:
        state = RUNNING if running == hosts else STARTING
        why = "" if state == RUNNING else next(filter(None, (_held(pod, refused) for pod in pods)), "")
    return Status(
        name=meta["name"],
        state=state,
        why=why,
        priority=meta.get("labels", {}).get("kueue.x-k8s.io/priority-class", ""),
        hosts=hosts,
        running=running,
        created=meta["creationTimestamp"],
        position=waiting.get(workload.get("metadata", {}).get("name", "")) if state == QUEUED else None,
        restarts=status.get("restarts", 0),
        counted=status.get("restartsCountTowardsMax", 0),
        admitted_s=_seconds(conditions.get("Admitted"), ended.get("Completed") or ended.get("Failed")),
    )


def _seconds(begun: Mapping[str, Any] | None, ended: Mapping[str, Any] | None) -> float | None:
    """From one condition to another; None where one of them isn't there."""
    stamps = [condition.get("lastTransitionTime") for condition in (begun, ended) if condition]
    if len(stamps) < 2 or None in stamps:
        return None
    first, last = (datetime.fromisoformat(str(stamp)) for stamp in stamps)
    return max(0.0, (last - first).total_seconds())
