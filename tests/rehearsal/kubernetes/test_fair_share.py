"""Two teams on a real Kueue with fair sharing: what is idle is lent, comes back, and is divided by weight."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
POOLS, FOREVER_S = 5, 3600
# A slice each; three are in no quota, and the second team's part of what is lent is twice the first's.
MANY = Team("many", "many", "quota", "tpu-many", (Quota("pool", 16),))
FEW = Team("few", "few", "quota", "tpu-few", (Quota("pool", 16),), weight=2)
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


def job(name: str, team: Team, priority: str) -> Drawn:
    shape = {"topology": "4x4", "hosts": HOSTS, "chips_per_host": 4}
    return Drawn(Job(name, team, MACHINE, ["train"], **shape, priority=priority), FOREVER_S)


def held(lab: Lab) -> Counter[str]:
    """Return how many slices each team has."""
    return Counter(
        workload["metadata"]["namespace"]
        for workload in lab.api.list(*WORKLOAD)
        if "admission" in workload.get("status", {})
    )


def test_idle_chips_are_lent_come_back_at_once_and_are_divided_by_weight(
    cluster: Lab, tmp_path: Path
) -> None:
    cluster.ready()
    queue = Queue(cluster, POOLS, tmp_path / "kwok", (MANY, FEW))

    def until(many: int, few: int, what: str) -> None:
        begun = time.monotonic()
        wanted = Counter({MANY.namespace: many, FEW.namespace: few})
        cluster.until(lambda: held(cluster) == +wanted, what)
        print(f"{what}: {many} and {few} slices after {time.monotonic() - begun:.1f} s")

    def preemptors() -> list[str]:
        return [change.by for change in queue.history.changes if change.by]

    def settled() -> bool:
        before = preemptors()
        time.sleep(15)
        return preemptors() == before

    try:
        queue.submit([job(f"job-{number:03}", MANY, PRIORITIES[number % 3]) for number in range(100)])
        until(POOLS, 0, "a team of a hundred jobs has all that is idle")
        queue.submit([job("one", FEW, "low")])
        until(POOLS - 1, 1, "the other's only job, of the lowest priority, has its quota")
        (one,) = [uid for uid, item in queue.history.jobs.items() if item.name.startswith("few/")]
        assert preemptors().count(one) == 1, "one job gave way"
        cluster.api.delete(cluster.api.place(*JOBSET, FEW.namespace, "one"))
        until(POOLS, 0, "what it has no job for is lent again")
        queue.submit([job(f"more-{number:02}", FEW, PRIORITIES[number % 3]) for number in range(20)])
        until(2, 3, "a slice each, and of the three others one and two by weight")
        cluster.until(settled, "an end of preemptions")
        assert held(cluster) == Counter(many=2, few=3)
        admitted = sum(change.state == HOLDING for change in queue.history.changes)
        print(f"{admitted} admissions, {len(preemptors())} preemptions")
    finally:
        queue.close()
