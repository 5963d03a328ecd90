"""History of jobs in a queue, and checks of the order in which they were admitted.

A history is what the API server's watches report, in the order of its writes: `resourceVersion` is etcd's
counter, so two writes within a second, which is the resolution of conditions, have an order.
https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_PREEMPTOR = re.compile(r"UID: ([0-9a-f-]+)")
_ENDED = ("Succeeded", "Failed")
WAITING, HOLDING, FINISHED = "waiting", "holding", "finished"


@dataclass(frozen=True)
class Job:
    """A workload of Kueue: `created` is its creationTimestamp, to the second, which Kueue goes by."""

    name: str
    priority: int
    created: str
    slices: int

    def ahead_of(self, other: Job) -> bool:
        """Return whether this job is admitted first. Jobs of one second have no order."""
        if self.priority != other.priority:
            return self.priority > other.priority
        return self.created < other.created


@dataclass(frozen=True)
class Transition:
    """A job begins to wait, holds quota, or has finished. `by`: the uid of the job that preempted it."""

    version: int
    at_s: float
    job: str
    state: str
    by: str = ""


@dataclass(frozen=True)
class PodChange:
    """A pod has another phase; `node` is empty before it has one."""

    version: int
    at_s: float
    pod: str
    slice: tuple[str, str]
    node: str
    phase: str

    @property
    def occupies(self) -> bool:
        """Return whether the pod occupies its node."""
        return bool(self.node) and self.phase not in (*_ENDED, "Deleted")


@dataclass
class History:
    """`jobs` and their changes by the workloads' uids, and those of all pods. `hosts`: of a slice."""

    hosts: int
    jobs: dict[str, Job] = field(default_factory=dict)
    changes: list[Transition] = field(default_factory=list)
    pods: list[PodChange] = field(default_factory=list)
    _state: dict[str, str] = field(default_factory=dict)
    _pod: dict[str, tuple[str, str]] = field(default_factory=dict)

    def workload(self, event: str, resource: Mapping[str, Any], at_s: float) -> None:
        """Take an event of a watch of Workloads."""
        meta = resource["metadata"]
        uid = meta["uid"]
        if event == "DELETED":
            return
        if uid not in self.jobs:
            slices = sum(group["count"] for group in resource["spec"]["podSets"]) // self.hosts
            priority, created = resource["spec"].get("priority", 0), meta["creationTimestamp"]
            name = f"{meta['namespace']}/{meta['ownerReferences'][0]['name']}"
            self.jobs[uid] = Job(name, priority, created, slices)
        conditions = {item["type"]: item for item in resource.get("status", {}).get("conditions", ())}
        state = WAITING
        if _is_true(conditions, "Finished"):
            state = FINISHED
        elif _is_true(conditions, "QuotaReserved"):
            state = HOLDING
        if state != self._state.get(uid):
            by = ""
            if self._state.get(uid) == HOLDING and state == WAITING and _is_true(conditions, "Preempted"):
                match = _PREEMPTOR.search(conditions["Preempted"]["message"])
                by = match[1] if match else ""
            self._state[uid] = state
            self.changes.append(Transition(int(meta["resourceVersion"]), at_s, uid, state, by))

    def pod(self, event: str, resource: Mapping[str, Any], at_s: float) -> None:
        """Take an event of a watch of Pods."""
        meta, labels = resource["metadata"], resource["metadata"].get("labels", {})
        name = labels.get("jobset.sigs.k8s.io/jobset-name")
        if name is None:
            return
        phase = "Deleted" if event == "DELETED" else resource.get("status", {}).get("phase", "Pending")
        node = resource["spec"].get("nodeName", "")
        if self._pod.get(meta["uid"]) == (node, phase):
            return
        self._pod[meta["uid"]] = (node, phase)
        part = (f"{meta['namespace']}/{name}", labels["jobset.sigs.k8s.io/job-index"])
        self.pods.append(PodChange(int(meta["resourceVersion"]), at_s, meta["uid"], part, node, phase))

    def count(self, state: str) -> int:
        """Return the number of jobs in a state."""
        return sum(item == state for item in list(self._state.values()))


def _is_true(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"


@dataclass(frozen=True)
class Overtaking:
    """A job that had waited for `waited_s` saw another take its turn, and had to wait `longer_s` more.

    `version`: of the other's admission.
    """

    version: int
    job: Job
    by: Job
    waited_s: float
    longer_s: float


def overtakings(history: History, slices: int) -> Iterator[Overtaking]:
    """Each job that was passed over at an admission, though it was ahead and would have fitted.

    It would have fitted where so many slices were free, or held by jobs of lower priority than its own, which
    it may preempt. Of several jobs passed over at one admission, all are named.
    """
    waiting: dict[str, float] = {}
    holding: set[str] = set()
    ordered = _in_order(history.changes)
    later = _next_admissions(ordered)
    for number, change in enumerate(ordered):
        job = history.jobs[change.job]
        waiting.pop(change.job, None)
        if change.state != HOLDING:
            holding.discard(change.job)
            if change.state == WAITING:
                waiting[change.job] = change.at_s
            continue
        for uid, since in waiting.items():
            other = history.jobs[uid]
            if not other.ahead_of(job):
                continue
            room = slices - sum(
                history.jobs[item].slices for item in holding if history.jobs[item].priority >= other.priority
            )
            if other.slices <= room:
                again = later(uid, number)
                yield Overtaking(change.version, other, job, change.at_s - since, again - change.at_s)
        holding.add(change.job)


def out_of_order(result: Iterable[Overtaking], slack_s: float) -> int:
    """Count the admissions that passed over a job which waited longer than the slack, before and after."""
    return len({item.version for item in result if min(item.waited_s, item.longer_s) > slack_s})


def _next_admissions(ordered: Sequence[Transition]) -> Callable[[str, int], float]:
    """Return the next time at which a job holds quota, from a change on; infinity without one."""
    mapping: dict[str, list[tuple[int, float]]] = {}
    for number, change in enumerate(ordered):
        if change.state == HOLDING:
            mapping.setdefault(change.job, []).append((number, change.at_s))

    def later(uid: str, after: int) -> float:
        return next((at_s for number, at_s in mapping.get(uid, ()) if number > after), float("inf"))

    return later


def preemptions(history: History) -> Iterator[tuple[Job, Job | None]]:
    """Each job that was preempted, and the one that needed its slices; None where no job is named."""
    for change in _in_order(history.changes):
        if change.by:
            yield history.jobs[change.job], history.jobs.get(change.by)


def most_held(history: History) -> int:
    """Return the most slices that jobs held quota for at one time."""
    held: set[str] = set()
    most = 0
    for change in _in_order(history.changes):
        held.discard(change.job)
        if change.state == HOLDING:
            held.add(change.job)
            most = max(most, sum(history.jobs[uid].slices for uid in held))
    return most


def collisions(history: History, pool_of: Mapping[str, str]) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """Each pool, and its slices of jobs, where pods of more than one were on it at a time.

    `pool_of`: a node's pool. Two pods on one node are a collision, too.
    """
    mapping: dict[str, dict[str, PodChange]] = {}
    for change in sorted(history.pods, key=lambda item: item.version):
        if not change.node:
            continue
        pods = mapping.setdefault(pool_of[change.node], {})
        pods.pop(change.pod, None)
        if change.occupies:
            pods[change.pod] = change
            slices = {pod.slice for pod in pods.values()}
            if len(slices) > 1 or len({pod.node for pod in pods.values()}) < len(pods):
                yield pool_of[change.node], slices


def waits_s(history: History) -> list[float]:
    """Of each admission: how long its job had waited."""
    since: dict[str, float] = {}
    result = []
    for change in _in_order(history.changes):
        if change.state == WAITING:
            since[change.job] = change.at_s
        elif change.state == HOLDING and change.job in since:
            result.append(change.at_s - since[change.job])
    return result


def starts_s(history: History) -> list[float]:
    """Of each job's last admission: how long it took until all of its pods ran."""
    running: dict[str, list[float]] = {}
    for pod in sorted(history.pods, key=lambda item: item.version):
        if pod.phase == "Running":
            running.setdefault(pod.slice[0], []).append(pod.at_s)
    admitted = {item.job: item.at_s for item in _in_order(history.changes) if item.state == HOLDING}
    result = []
    for uid, at_s in admitted.items():
        job = history.jobs[uid]
        mine = [item for item in running.get(job.name, ()) if item >= at_s]
        if len(mine) >= (pods := job.slices * history.hosts):
            result.append(sorted(mine)[pods - 1] - at_s)
    return result


def _in_order(changes: Sequence[Transition]) -> list[Transition]:
    return sorted(changes, key=lambda item: item.version)
