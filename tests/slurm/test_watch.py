"""Reports of the queue: what stands still and what is down, and what isn't counted."""

from __future__ import annotations

from typing import Any

import pytest

from slurm.cluster import Cluster as Reading
from slurm.decide import FAILED, HELD
from slurm.jobs import Job
from slurm.watch import ALIVE, EVENT, Watch
from tests.slurm.lab import NODESET, Nodes, settings
from workload.host import events

NOT_RESPONDING = "Not responding"
SMALL = {**NODESET, "name": "small", "acceleratorType": "v6e-8", "nodeCountDynamicMax": 2}


def job(number: int, state: str, why: str = "None", hosts: int = 4, partition: str = "tpu") -> Job:
    return Job(str(number), "ada", partition, state, hosts, 1, "0:00", "N/A", why, "", "a.sh")


class Cluster:
    """A partition of two slices of four hosts, looked at each minute."""

    def __init__(self, given: dict[str, Any] | None = None):
        known = settings(given)
        self.nodes, self.now_s, self.lines = Nodes(known), 0.0, list[str]()
        self.watch = Watch(known, lambda: self.now_s, self.lines.append)

    def minutes(self, count: int, *queue: Job) -> list[dict[str, Any]]:
        """Return what is reported in so many minutes in which these jobs are in the queue."""
        self.nodes.queue = [*queue]
        self.lines.clear()
        for _ in range(count * 6):
            self.now_s += 10.0
            self.watch.look(self.nodes.read())
        reported = [events.payload(line) or {} for line in self.lines]
        assert {report["event"] for report in reported} <= {EVENT, ALIVE}
        return [report for report in reported if report["event"] == EVENT]


def test_a_job_whose_slice_never_comes_stands_still_through_its_requeues() -> None:
    cluster = Cluster()
    assert cluster.minutes(5) == []
    first = cluster.minutes(10, job(1, "CONFIGURING"))
    assert [report["waiting"] for report in first] == [1] * 10, "once a minute"
    cluster.minutes(2, job(1, "PENDING", "BeginTime"))
    last = cluster.minutes(10, job(1, "PENDING", "Resources"))[-1]
    assert (last["partition"], last["waiting"], last["down"]) == ("tpu", 1, 0)
    assert 20 * 60 < last["standing_s"] <= 22 * 60


@pytest.mark.parametrize(
    "why", ["Dependency", "JobHeldUser", "BeginTime", "AssocGrpNodeLimit", "QOSMaxJobsPerUserLimit"]
)
def test_a_job_that_waits_as_somebody_asked_is_not_counted(why: str) -> None:
    assert Cluster().minutes(90, job(1, "PENDING", why)) == []


def test_a_job_waits_for_others_while_they_have_the_hosts() -> None:
    cluster = Cluster()
    cluster.nodes.set("tpu-0", "ALLOCATED")
    cluster.nodes.set("tpu-1", "ALLOCATED")
    queue = [job(1, "RUNNING"), job(2, "RUNNING"), job(3, "PENDING", "Resources")]
    assert cluster.minutes(90, *queue) == []
    cluster.nodes.set("tpu-1", "IDLE")
    assert cluster.minutes(2, *queue)[-1]["standing_s"] < 120
    assert cluster.minutes(2, job(1, "RUNNING"), job(4, "PENDING", "Resources", hosts=8)) == [], (
        "one is too few"
    )


def test_a_queue_that_cant_be_seen_is_not_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.minutes(5, job(1, "CONFIGURING"))
    monkeypatch.setattr(cluster.nodes, "read", lambda: Reading(dict(cluster.nodes.nodes), None))
    last = cluster.minutes(10)[-1]
    assert (last["waiting"], last["standing_s"] > 800) == (1, True)


def test_each_minute_is_reported_and_whether_slurmctld_answered_in_it() -> None:
    cluster = Cluster()
    cluster.minutes(2)
    for _ in range(12):
        cluster.now_s += 10.0
        cluster.watch.look(None)
    reported = [events.payload(line) or {} for line in cluster.lines]
    assert [(report["event"], report["slurmctld"]) for report in reported] == [
        (ALIVE, True), (ALIVE, True), (ALIVE, False), (ALIVE, False),
    ]  # fmt: skip


def test_a_job_that_begins_moves_the_queue() -> None:
    cluster = Cluster()
    waiting = job(1, "PENDING", "Priority")
    cluster.minutes(50, waiting)
    assert cluster.minutes(2, waiting, job(2, "RUNNING"))[0]["standing_s"] == 0
    assert cluster.minutes(3, waiting, job(2, "RUNNING"))[-1]["standing_s"] <= 300


@pytest.mark.parametrize(("state", "reason", "down"), [
    (("DOWN",), NOT_RESPONDING, 4),
    (("IDLE", "POWERED_DOWN", "DRAIN"), f"{HELD}stock-out: v6e in us-east5-b", 4),
    (("IDLE", "POWERED_DOWN", "DRAIN"), f"{FAILED}the hosts of tpu-0 booted, and didn't join", 4),
    (("IDLE", "DRAIN"), "maintenance", 0),
    (("IDLE", "POWERING_DOWN"), f"{HELD}Google says PREEMPTED", 0),
])  # fmt: skip
def test_hosts_that_no_job_gets_are_reported_with_their_reasons(
    state: tuple[str, ...], reason: str, down: int
) -> None:
    cluster = Cluster()
    cluster.nodes.set("tpu-0", *state, reason=reason)
    reported = cluster.minutes(3)
    assert [(report["down"], report["reasons"]) for report in reported] == [(down, [reason])] * (
        3 if down else 0
    )


def test_partitions_are_reported_each_for_itself() -> None:
    cluster = Cluster({"slurm:nodesets": [NODESET, SMALL]})
    reported = cluster.minutes(1, job(1, "CONFIGURING", hosts=1, partition="small"))
    assert [report["partition"] for report in reported] == ["small"]
    both = cluster.minutes(1, job(2, "PENDING", "Resources", hosts=1, partition="tpu,small"))
    assert [report["partition"] for report in both] == ["tpu", "small"]
