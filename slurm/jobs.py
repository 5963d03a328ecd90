"""Jobs as squeue prints them, with their place in the queue and what their slices cost."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infra.catalog import CATALOG
from infra.layers.slurm.conf import nodes
from infra.layers.slurm.slices import NameListError, Nodeset, expand, nodesets, of_host
from infra.settings.schema import Settings
from slurm.errors import SlurmError
from slurm.machine import call

FORMAT = "%i|%u|%P|%T|%D|%Q|%M|%S|%r|%N|%j"
"""Of squeue; the last field, the job's name, may hold anything."""
PENDING, CONFIGURING, RUNNING = "PENDING", "CONFIGURING", "RUNNING"
JOB = re.compile(r"[0-9]{1,10}(_([0-9]{1,8}|\[[0-9,%-]{1,200}\]))?")
"""A job's id, of a task of an array, or of several tasks."""
_LISTED = re.compile(r"[0-9]{1,10}(\+[0-9]{1,4})?(_([0-9]{1,8}|\[[0-9,%.:-]{1,200}\]))?")
"""In squeue's output: also of a heterogeneous job's component, and tasks that are cut off with "...".

https://slurm.schedmd.com/heterogeneous_jobs.html, and SLURM_BITSTR_LEN (64) in squeue's manual.
"""


@dataclass(frozen=True)
class Job:
    """A job of the queue.

    Attributes:
        id: such as 12, or 13_1 of an array.
        user: whose it is.
        partition: of it.
        state: such as RUNNING.
        hosts: their number.
        priority: of the queue: the highest is next.
        time: for which it has run.
        start: when it starts, by Slurm's plan.
        why: it waits; `None`: for nothing.
        nodes: Slurm's list of its hosts; empty before it has any.
        name: of it.
        place: in the queue of its partition, the first is 1; 0: it doesn't wait.
    """

    id: str
    user: str
    partition: str
    state: str
    hosts: int
    priority: int
    time: str
    start: str
    why: str
    nodes: str
    name: str
    place: int = 0

    @property
    def base(self) -> str:
        """Return the id of the whole array or heterogeneous job, of which this is a part."""
        return re.split("[+_]", self.id)[0]


def queued(run: Callable[[Sequence[str]], str] = call) -> list[Job]:
    """Return the jobs of all users, on a machine of the cluster. Raises SlurmError."""
    return parse(run(["squeue", "--noheader", "--format", FORMAT]))


def parse(text: str) -> list[Job]:
    """Return the jobs in squeue's output by FORMAT, with their places. Raises SlurmError."""
    jobs = []
    for line in text.splitlines():
        if not line.strip():
            continue
        fields = line.split("|", 10)
        numbers = fields[4:6]
        if len(fields) != 11 or not _LISTED.fullmatch(fields[0]) or not all(n.isdecimal() for n in numbers):
            raise SlurmError(f"squeue: a line isn't a job: {line[:100]!a}")
        id_, user, partition, state, hosts, priority, time, start, why, listed, name = fields
        shown = "".join(letter if letter.isprintable() else "?" for letter in name)
        jobs.append(
            Job(id_, user, partition, state, int(hosts), int(priority), time, start, why, listed, shown)
        )
    return _placed(jobs)


def _placed(jobs: Sequence[Job]) -> list[Job]:
    places: dict[str, int] = {}
    ids: dict[str, int] = {}
    for job in sorted(jobs, key=lambda job: (-job.priority, int(job.base))):
        if job.state == PENDING:
            ids[job.id] = places[job.partition] = places.get(job.partition, 0) + 1
    return [Job(**{**vars(job), "place": ids.get(job.id, 0)}) for job in jobs]


def hourly(settings: Settings, job: Job) -> float | None:
    """Return the price of a job's slices in dollars per hour, in the dearest of the zones where they may be.

    None: the catalog doesn't know it.
    """
    known = nodesets(settings)
    try:
        used = {of_host(host)[0].nodeset for host in expand(job.nodes)}
    except NameListError:
        used = set()
    if not used:
        partition = next((item for item in nodes.partitions(settings) if item.name == job.partition), None)
        used = set(partition.nodesets) if partition else set()
    prices = [_of_slice(nodeset) for nodeset in known if nodeset.name in used]
    if not prices or any(price is None for price in prices):
        return None
    sizes = {nodeset.hosts for nodeset in known if nodeset.name in used}
    return max(price or 0.0 for price in prices) * math.ceil(job.hosts / max(sizes))


def _of_slice(nodeset: Nodeset) -> float | None:
    prices = []
    for zone in nodeset.places:
        price = CATALOG.price(zone)
        prices.append(price.spot if nodeset.settings.spot else price.on_demand)
    if nodeset.settings.reserved or any(price is None for price in prices):
        return None
    return max(price or 0.0 for price in prices) * nodeset.kind.chips
