"""Jobs whose slices were coming when slurmctld was started: put back into the queue, and started again.

Slurm 22.05 loses the addresses of their hosts, so that `srun` in such a job can't reach the others.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence

from slurm import jobs
from slurm.cluster import Cluster
from slurm.errors import SlurmError
from slurm.machine import call

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_STARTED = re.compile(r"(?m)^BOOT_TIME *= *(\S+)$")
_LOG = logging.getLogger(__name__)


class Recovered:
    """Requeue of jobs that an earlier slurmctld has given hosts that aren't up yet."""

    def __init__(self, run: Callable[[Sequence[str]], str] = call):
        self._run = run
        self._refused: set[str] = set()  # jobs of srun and salloc, which end with their program

    def requeue(self, known: Cluster) -> None:
        """Requeue such jobs. Whatever fails is logged."""
        configuring = [job for job in known.jobs or () if job.state == jobs.CONFIGURING]
        if not configuring:
            return
        try:
            started = _STARTED.search(self._run(["scontrol", "show", "config"]))
            wholes: dict[str, list[str]] = {}
            for job in configuring:
                if started and _TIME.fullmatch(job.start) and job.start < started[1]:
                    wholes.setdefault(job.id.partition("+")[0], []).append(job.id)
            for whole, parts in wholes.items():
                if whole not in self._refused:
                    self._requeue(whole, parts)
        except SlurmError as error:
            _LOG.warning("%s", error)

    def _requeue(self, job: str, parts: Sequence[str]) -> None:
        """Requeue a job; `parts`: of a heterogeneous job its components, else the job."""
        try:
            self._run(["scontrol", "requeue", job])
        except SlurmError as error:
            self._refused.add(job)
            why = "its hosts were coming when slurmctld started, and it isn't requeued"
            _LOG.warning("job %s: %s: %s", job, why, error)
            return
        for part in parts:
            self._run(["scontrol", "update", f"JobId={part}", "StartTime=now"])
        _LOG.info("job %s: queued again: its hosts were coming when slurmctld started", job)
