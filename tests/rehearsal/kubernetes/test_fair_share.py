"""Teams with quotas on a real Kueue: idle chips are lent, come back, and are divided by weight."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from benchmarks.admissions import HOLDING
from benchmarks.queue import Drawn, Queue
from infra.layers.queue import manifests
from infra.layers.queue.jobs.jobset import Job
from infra.layers.queue.kueue import Quota, Team
from infra.layers.queue.versions import IMAGES
from tests.rehearsal.kubernetes.lab import HOSTS, JOBSET, MACHINE, WORKLOAD, Lab, inside

pytestmark = pytest.mark.prove
INSIDE: ThreadPoolExecutor = inside()
POOLS, FOREVER_S, QUIET_S = 5, 3600, 20
# Three of five slices are in no quota.
MANY = Team("many", "many", "quota", "tpu-many", (Quota("pool", 16),))
FEW = Team("few", "few", "quota", "tpu-few", (Quota("pool", 16),), weight=2)
GUESTS = Team("guests", "guests", "quota", "tpu-guests", weight=3)
PRIORITIES = ("low", "medium", "high")


@pytest.fixture(scope="module", name="cluster")
def _cluster(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """With Kueue as the layer configures it where a team has a quota."""

    def begin() -> Lab:
        lab = Lab(tmp_path_factory.mktemp("cluster"), ("provisioningrequests", "jobset"))
        kueue = itertools.chain(*manifests.stages("kueue", IMAGES["kueue"], fair_sharing=True))
        lab.api.apply_all(list(kueue), "tests")
        return lab

    lab = INSIDE.submit(begin).result()
    yield lab
    INSIDE.submit(lab.close).result()


@pytest.fixture(scope="module", name="queue")
def _queue(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    def begin() -> Queue:
        cluster.ready()
        return Queue(cluster, POOLS, tmp_path_factory.mktemp("kwok"), (MANY, FEW, GUESTS))

    queue = INSIDE.submit(begin).result()
    yield queue
    queue.close()


def job(name: str, team: Team, priority: str, slices: int = 1) -> Drawn:
    made = Job(name, team, MACHINE, ["train"], topology="4x4", hosts=HOSTS, chips_per_host=4,
               priority=priority, slices=slices)  # fmt: skip
    return Drawn(made, FOREVER_S)


def remove(cluster: Lab, team: Team, name: str) -> None:
    cluster.api.delete(cluster.api.place(*JOBSET, team.namespace, name))


def held(lab: Lab) -> Counter[str]:
    """Return how many jobs of each team have quota."""
    return Counter(
        workload["metadata"]["namespace"]
        for workload in lab.api.list(*WORKLOAD)
        if "admission" in workload.get("status", {})
    )


def preemptors(queue: Queue) -> list[str]:
    """Return by whom jobs were preempted, in order."""
    return [change.by for change in queue.history.changes if change.by]


def conditions(lab: Lab) -> list[dict[str, bool]]:
    """Return the conditions of each job's workload."""
    return [
        {item["type"]: item["status"] == "True" for item in workload.get("status", {}).get("conditions", ())}
        for workload in lab.api.list(*WORKLOAD)
    ]


def judged(lab: Lab, count: int) -> bool:
    """Return True if so many jobs have been admitted, or refused for now."""
    return sum("QuotaReserved" in item for item in conditions(lab)) == count


def settle(cluster: Lab, queue: Queue) -> None:
    """Wait until no job has preempted another for a while, and none that is preempted holds its quota."""

    def quiet() -> bool:
        before = preemptors(queue)
        time.sleep(QUIET_S)
        ending = any(item.get("Evicted") and item.get("QuotaReserved") for item in conditions(cluster))
        return preemptors(queue) == before and not ending

    cluster.until(quiet, "an end of preemptions")


def test_jobs_of_several_sizes_and_priorities_dont_preempt_one_another_in_turn(
    cluster: Lab, queue: Queue
) -> None:
    """With LessThanInitialShare `lent` preempts `wide`, `own` reclaims its quota, `wide` preempts `own`."""
    works = [job("wide", MANY, "high", 4), job("own", MANY, "medium", 2), job("lent", GUESTS, "low", 4)]
    for count, work in enumerate(works, 1):
        queue.submit([work])
        cluster.until(partial(judged, cluster, count), f"{count} jobs that were admitted or refused for now")
    settle(cluster, queue)
    print(f"three jobs: {len(preemptors(queue))} preemptions")
    for work in works:
        remove(cluster, work.job.team, work.job.name)
    cluster.until(lambda: not held(cluster), "their end")


def test_idle_chips_are_lent_come_back_at_once_and_are_divided_by_weight(cluster: Lab, queue: Queue) -> None:
    def until(many: int, few: int, what: str) -> None:
        begun = time.monotonic()
        wanted = Counter({MANY.namespace: many, FEW.namespace: few})
        cluster.until(lambda: held(cluster) == +wanted, what)
        print(f"{what}: {many} and {few} slices after {time.monotonic() - begun:.1f} s")

    queue.submit([job(f"job-{number:03}", MANY, PRIORITIES[number % 3]) for number in range(100)])
    until(POOLS, 0, "a team of a hundred jobs has all that is idle")
    settle(cluster, queue)  # its own jobs, by their priorities
    queue.submit([job("one", FEW, "low")])
    until(POOLS - 1, 1, "the other's only job, of the lowest priority, has its quota")
    (preemptor,) = [uid for uid, item in queue.history.jobs.items() if item.name == "few/one"]
    cluster.until(lambda: preemptors(queue).count(preemptor) == 1, "the preemption of one job")
    remove(cluster, FEW, "one")
    until(POOLS, 0, "what it has no job for is lent again")
    queue.submit([job(f"more-{number:02}", FEW, PRIORITIES[number % 3]) for number in range(20)])
    until(2, 3, "a slice each, and of the three others one and two by weight")
    settle(cluster, queue)
    assert held(cluster) == Counter(many=2, few=3)
    admitted = sum(change.state == HOLDING for change in queue.history.changes)
    print(f"{admitted} admissions, {len(preemptors(queue))} preemptions")
