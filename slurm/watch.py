"""Watch over the queue: partitions whose jobs wait though there are hosts, and hosts that no job gets.

An event `slurm-alive` a minute, and `slurm-queue` for each such partition; the layer's alerts are on these
(infra/layers/slurm/watched.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from infra.layers.slurm.conf import nodes
from infra.settings.schema import Settings
from slurm import jobs
from slurm.cluster import Cluster
from slurm.decide import FAILED, HELD
from slurm.jobs import Job
from slurm.nodes import SlurmNode
from workload.host import events

EVENT, ALIVE = "slurm-queue", "slurm-alive"
_EVERY_S = 60.0
_MOST_REASONS = 5
_LATER = "BeginTime"
_OWN_WISH = (
    _LATER, "Dependency", "JobHeld", "JobArrayTaskLimit", "Assoc", "QOS", "Licenses", "Reservation",
)  # fmt: skip
"""Beginnings of reasons by which a job waits as somebody has asked, or has set a limit.

https://slurm.schedmd.com/archive/slurm-22.05.8/squeue.html
"""
_LOG = logging.getLogger(__name__)


class Watch:
    """Watch over the partitions of the settings."""

    def __init__(
        self,
        settings: Settings,
        now: Callable[[], float] = time.monotonic,
        report: Callable[[str], None] = _LOG.info,
    ):
        self._now, self._report = now, report
        self._partitions = [
            _Partition(
                partition.name,
                frozenset(
                    slice_.host(worker)
                    for nodeset in nodes.nodesets_of(settings, partition)
                    for slice_ in nodeset.slices
                    for worker in range(nodeset.hosts)
                ),
            )
            for partition in nodes.partitions(settings)
        ]
        self._queue: Sequence[Job] = ()  # as it was seen last
        self._next_s = self._now()

    def look(self, known: Cluster | None) -> None:
        """Look once a minute at most; report what stands still or is down. None: slurmctld doesn't answer."""
        now_s = self._now()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        self._report(events.line(ALIVE, {"slurmctld": known is not None}))
        if known is None:
            return
        if known.jobs is not None:
            self._queue = known.jobs
        for partition in self._partitions:
            hosts = [known.nodes[name] for name in sorted(partition.hosts) if name in known.nodes]
            own = [job for job in self._queue if partition.name in job.partition.split(",")]
            waiting, standing_s = partition.standing(own, sum(not host.in_use for host in hosts), now_s)
            down = [host for host in hosts if _down(host)]
            if waiting or down:
                reasons = sorted({host.reason or host.base for host in down})[:_MOST_REASONS]
                details = {
                    "partition": partition.name, "waiting": waiting, "standing_s": round(standing_s),
                    "down": len(down), "reasons": reasons,
                }  # fmt: skip
                self._report(events.line(EVENT, details))


class _Partition:
    """A partition, with the jobs that wait in it."""

    def __init__(self, name: str, hosts: Collection[str]):
        self.name, self.hosts = name, hosts
        self._since: dict[str, float] = {}
        self._running: set[str] = set()
        self._moved_s = 0.0

    def standing(self, queue: Collection[Job], free: int, now_s: float) -> tuple[int, float]:
        """Return how many jobs wait, and seconds for which one does and none began."""
        waiting = {job.id for job in queue if _waits(job, free)}
        # As after a requeue, which a stock-out ends in: the wait goes on.
        later = {job.id for job in queue if job.state == jobs.PENDING and job.why == _LATER}
        kept = waiting | (later & self._since.keys())
        running = {job.id for job in queue if job.state == jobs.RUNNING}
        if self._since.keys() - kept or running - self._running:
            self._moved_s = now_s
        self._since, self._running = {id_: self._since.get(id_, now_s) for id_ in kept}, running
        if not waiting:
            return 0, 0.0
        return len(waiting), now_s - max(self._moved_s, min(self._since[id_] for id_ in waiting))


def _waits(job: Job, free: int) -> bool:
    """Return whether a job waits for hosts that no other job has."""
    if job.state == jobs.CONFIGURING:
        return True
    return job.state == jobs.PENDING and not job.why.startswith(_OWN_WISH) and job.hosts <= free


def _down(host: SlurmNode) -> bool:
    """Return whether no job gets a host, although no administrator has drained it."""
    return host.base == "DOWN" or (host.held and host.reason.startswith((HELD, FAILED)))
