"""Desired, observed and decided values: those that a fleet's packages hand one another.

Times are seconds since 1970. A fleet is an item of `tpu:slices` with a count; its members are nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from infra.google.failures import Failure
from infra.slices.nodes import Node

TAKEN_AWAY = frozenset({"PREEMPTED", "TERMINATED"})
"""The states in which Google has taken a node's machines away for good; it must be deleted to come back."""

ON_THE_WAY = frozenset({"CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING", "UNHIDING"})
GOING = frozenset({"DELETING", "STOPPING", "HIDING"})

HEARTBEAT_S = 60.0
"""Longest pause between two heartbeats of a job, in seconds (docs/architecture.md)."""


@dataclass(frozen=True)
class ObservedNode:
    """A node as Google lists it.

    Attributes:
        name: its id.
        zone: where it is.
        state: Google's word, such as READY.
        instance: Google's number for it; another one each time that a node of this name is created.
        created_s: when that was.
        labels: its labels.
        health: what Google says of its machines, such as HEALTHY or TIMEOUT; empty where it says nothing.
    """

    name: str
    zone: str
    state: str
    instance: str = ""
    created_s: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    health: str = ""


@dataclass(frozen=True)
class Owner:
    """Owner of nodes.

    Attributes:
        labels: what every node of the environment's slices carries.
        stack: the id of the stack that they belong to (docs/architecture.md).
        held: named slices that the stack holds, by zone; None where Pulumi isn't there to say.
    """

    labels: Mapping[str, str]
    stack: str
    held: Mapping[str, str] | None = None

    def owns(self, observed: ObservedNode) -> bool:
        """Return whether a node belongs to this stack, by its labels."""
        return {**self.labels, "stack": self.stack}.items() <= observed.labels.items()

    def has(self, member: Node, observed: ObservedNode) -> bool:
        """Return whether a node with a member's name belongs to it; a named slice's does without Pulumi."""
        if member.member is None:
            return self.held is None or member.name in self.held
        return self.owns(observed)


@dataclass(frozen=True)
class ZoneView:
    """Answer of a list call: the nodes of a zone by name, or the failure."""

    nodes: Mapping[str, ObservedNode] | None
    failure: Failure | None = None


@dataclass(frozen=True)
class WorkerStatus:
    """Last status of a worker's boot or work, in the bucket; or the summary of all of a node's say.

    Attributes:
        at_s: when it was written; of several, the newest.
        boot: `booting`, `ready` or `failed`, and of a later run of the script in the same boot `rerunning`
            or `rerun-failed`; empty where nothing was said of a boot.
        stage: the last stage of the boot that began.
        work: `running`, `done` or `failed`; empty where nothing was said of work. `older` where what was
            said is of another command than the one that is asked for.
        samples: done so far.
        of_samples: to do in all; 0 where nobody knows.
        shards: committed.
        size_bytes: of them.
        loss: of the last step; None where there is none.
        goodput: share of the attempt's wall time spent on steps, likewise.
        command: which command's work it is, by its id; empty where nobody said.
        why: its boot or its work failed.
        final: its work failed, and isn't started again.
        disk_full: whether its boot disk was.
        worked_s: when work was reported last; 0 where it never was.
    """

    at_s: float
    boot: str = ""
    stage: str = ""
    work: str = ""
    samples: int = 0
    of_samples: int = 0
    shards: int = 0
    size_bytes: int = 0
    command: str = ""
    why: str = ""
    disk_full: bool = False
    worked_s: float = 0.0
    loss: float | None = None
    goodput: float | None = None
    final: bool = False

    def of(self, command: str) -> "WorkerStatus":
        """Return the same, as word of the job that is asked for: what is of another one says no more than
        that.
        """
        if not self.work or not self.command or self.command == command:
            return self
        worked_s = self.at_s if self.work == "running" else self.worked_s
        older = WorkerStatus(
            self.at_s, self.boot, self.stage, "older", command=self.command, worked_s=worked_s
        )
        return replace(older, disk_full=self.disk_full)


@dataclass(frozen=True)
class View:
    """Observation of zones and workers.

    Attributes:
        at_s: its time.
        zones: nodes of each zone, by zone.
        statuses: of each worker, by node; None if the bucket didn't answer.
        failure: why the bucket didn't answer.
    """

    at_s: float
    zones: Mapping[str, ZoneView]
    statuses: Mapping[str, Sequence[WorkerStatus]] | None
    failure: Failure | None = None

    @property
    def cloud_s(self) -> float:
        """The present by Google's clock, which dates all that it says, where this machine's is behind it."""
        reported_s = (status.at_s for statuses in (self.statuses or {}).values() for status in statuses)
        created = (observed.created_s for observed in self.all())
        return max((self.at_s, *reported_s, *created))

    def node(self, name: str, zone: str) -> ObservedNode | None:
        """Return a node, if its zone's list has it."""
        view = self.zones.get(zone)
        return (view.nodes or {}).get(name) if view else None

    def all(self) -> list[ObservedNode]:
        """Every node that was listed."""
        return [observed for zone in self.zones.values() for observed in (zone.nodes or {}).values()]

    def status(self, observed: ObservedNode, command: str) -> WorkerStatus | None:
        """Summarize the statuses of this node's workers, and of no earlier node of its name, of a command.

        Both times are Google's: of the node's creation, and of the objects.
        """
        statuses = (self.statuses or {}).get(observed.name, ())
        fresh = [status.of(command) for status in statuses if status.at_s >= observed.created_s]
        return together(fresh)


def together(workerstatus: Sequence[WorkerStatus]) -> WorkerStatus | None:
    """Several workers' words as one; None where there are none.

    A boot has failed where one worker's has, unless work was heard of after it; it is ready once all that
    spoke are. Work has failed where one worker's has, is older where one's is, and is done once all of those
    that spoke are. Samples of an extractor's workers add up; a trainer's step is the same on each of them.
    """
    if not workerstatus:
        return None
    boots, works = (
        [status for status in workerstatus if status.boot],
        [status for status in workerstatus if status.work],
    )
    worked_s = max((status.at_s for status in works), default=0.0)
    boots = [status for status in boots if status.boot != "failed" or status.at_s > worked_s]
    ranked = ("failed", "rerun-failed", "booting", "rerunning", "ready")
    boot = min(
        boots, key=lambda status: ranked.index(status.boot) if status.boot in ranked else 2, default=None
    )
    states = {status.work for status in works}
    count = sum if any(status.shards for status in works) else max
    return WorkerStatus(
        max(status.at_s for status in workerstatus),
        boot.boot if boot else "",
        boot.stage if boot else "",
        next((state for state in ("failed", "older", "running", "done") if state in states), ""),
        count([status.samples for status in works] or [0]),
        count([status.of_samples for status in works] or [0]),
        sum(status.shards for status in works),
        sum(status.size_bytes for status in works),
        why=next((status.why for status in (*works, *boots) if status.why), ""),
        disk_full=any(status.disk_full for status in works),
        worked_s=max((w.at_s if w.work == "running" else w.worked_s for w in works), default=0.0),
        loss=next((work.loss for work in works if work.loss is not None), None),
        final=any(work.final for work in works),
        goodput=next((work.goodput for work in works if work.goodput is not None), None),
    )


class Action(StrEnum):
    """Action for a member."""

    LEAVE = "leave"
    WAIT = "wait"  # for Google, or for an answer
    HOLD = "hold"  # there is something to do, but not now, or not before a user has acted
    CREATE = "create"
    REPLACE = "replace"  # delete; what is gone is created


class Cause(StrEnum):
    """Cause of a recovery; each has a budget of its own."""

    NEW = "new"
    PREEMPTION = "preemption"
    FAILURE = "failure"


class Condition(StrEnum):
    """Condition of a member, in a word."""

    WORKING = "working"
    DONE = "done"
    STARTING = "starting"
    RECOVERING = "recovering"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Claim(StrEnum):
    """Claim to be proven before a living node is deleted (fleet/proof.py)."""

    NONE = ""  # Google itself says that the machines are gone
    BOOT_FAILED = "boot failed"
    WORK_FAILED = "work failed"
    SILENT = "silent"


@dataclass(frozen=True)
class Decision:
    """Action for one member, with its reason.

    Attributes:
        member: in its present or intended zone.
        action: to take.
        condition: of the member.
        why: reason, for messages.
        cause: of a recovery.
        instance: id of the node.
        claim: to be proven before the node is deleted.
        status: report of its workers.
    """

    member: Node
    action: Action
    condition: Condition
    why: str
    cause: Cause | None = None
    instance: str = ""
    claim: Claim = Claim.NONE
    status: WorkerStatus | None = None

    @property
    def node(self) -> str:
        """The node's name."""
        return self.member.name

    @property
    def zone(self) -> str:
        """Its zone."""
        return self.member.zone
