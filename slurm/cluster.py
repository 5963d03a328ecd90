"""A reading of Slurm, which everything that follows from it in one look goes by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from infra.layers.slurm.slices import NameListError, expand
from slurm.jobs import RUNNING, Job
from slurm.nodes import SlurmNode


@dataclass(frozen=True)
class Cluster:
    """Nodes by name, and the jobs of all users, as slurmctld knows them; None: the queue wasn't seen."""

    nodes: Mapping[str, SlurmNode]
    jobs: Sequence[Job] | None = ()

    @cached_property
    def running(self) -> frozenset[str]:
        """Return the hosts of jobs that are known to have begun."""
        hosts: set[str] = set()
        for job in self.jobs or ():
            if job.state == RUNNING:
                try:
                    hosts.update(expand(job.nodes))
                except NameListError:  # of hosts that aren't ours
                    continue
        return frozenset(hosts)
