"""Values that the fleet's modules exchange: desired members, observed nodes, decisions.

Times are seconds since 1970. A fleet is an item of `tpu:slices` with a count; a member is one of its slices,
which exists as a node of the TPU API.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fleet.ids import RecordedNode
from infra.google.failures import Failure
from infra.slices.nodes import Node

TAKEN_AWAY = frozenset({"PREEMPTED", "TERMINATED"})
"""States of a node whose machines Google has taken away permanently; it must be deleted to be recreated."""

ON_THE_WAY = frozenset({"CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING", "UNHIDING"})
GOING = frozenset({"DELETING", "STOPPING", "HIDING"})

BOOT_ENDS = frozenset({"ready", "failed", "rerun-failed"})
"""States in which a host's startup script has ended."""

INSTALL = "sudo systemctl restart google-startup-scripts"
"""Line for a host's shell: run the startup script again, which installs what its metadata name by now."""

HEARTBEAT_S = 60.0
"""Longest pause between two heartbeats of a job, in seconds (docs/internals/architecture.md)."""


def changeover(environment: str, slices: Iterable[str]) -> str:
    """Return the commands that bring living hosts to the command of their metadata."""
    where = " ".join([environment, *(f"--slice {name}" for name in slices)])
    return f"tpu fleet exec {where} -- {INSTALL}; then tpu restart {where}"


@dataclass(frozen=True)
class ObservedNode:
    """A node as Google lists it.

    Attributes:
        name: its id.
        zone: where it is.
        state: such as READY.
        instance: its unique id; a new node of this name has another one.
        created_s: time of its creation.
        labels: its labels.
        health: such as HEALTHY or TIMEOUT; empty: unknown.
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
        labels: of every node of the environment's slices.
        stack: id of their stack (docs/internals/architecture.md).
        held: zones of the named slices in the stack, by name; None: Pulumi is unavailable.
        recorded: nodes of members whose fleet has a record with ids, by the member's key.
        others: ids of nodes that somebody else made with this stack's labels.
    """

    labels: Mapping[str, str]
    stack: str
    held: Mapping[str, str] | None = None
    recorded: Mapping[str, RecordedNode] = field(default_factory=dict)
    others: frozenset[str] = frozenset()

    def owns(self, observed: ObservedNode) -> bool:
        """Return whether a node belongs to this stack, by its labels, and isn't known as somebody else's."""
        labels = {**self.labels, "stack": self.stack}
        return labels.items() <= observed.labels.items() and observed.instance not in self.others

    def labels_of(self, member: Node) -> dict[str, str]:
        """Return the labels by which a node is a member's."""
        entry = self.recorded.get(member.key)
        record = {"record": entry.record} if entry and entry.record else {}
        return {
            **self.labels, "stack": self.stack, "fleet": member.slice, "member": str(member.member), **record
        }  # fmt: skip

    def has(self, member: Node, observed: ObservedNode) -> bool:
        """Return whether a node with a member's name is the member; a named slice without Pulumi: True."""
        if member.member is None:
            return self.held is None or member.name in self.held
        if (entry := self.recorded.get(member.key)) is None:
            return self.owns(observed)
        labelled = self.labels_of(member).items() <= observed.labels.items()
        return labelled and self.owns(observed) and entry.has(observed.instance)


@dataclass(frozen=True)
class ZoneView:
    """Answer of a list call: the nodes of a zone by name, or the failure."""

    nodes: Mapping[str, ObservedNode] | None
    failure: Failure | None = None


@dataclass(frozen=True)
class WorkerStatus:
    """Last status of a worker's boot or work, as stored in the bucket; or a summary of a node's workers.

    Attributes:
        at_s: time of the object; of several, of the newest.
        boot: `booting`, `ready` or `failed`; after another run of the script in the same boot `rerunning` or
            `rerun-failed`; empty: unknown.
        stage: last stage of the boot that began.
        work: `running`, `done` or `failed`; `older`: of another command than the member's; empty: unknown.
        samples: completed.
        of_samples: in all; 0: unknown.
        shards: committed.
        size_bytes: of the shards.
        loss: of the last step; None: unknown.
        goodput: share of the attempt's wall time spent on steps; None: unknown.
        command: id of the command; empty: unknown.
        why: reason of a failed boot or failed work.
        final: the failed work isn't started again.
        disk_full: the boot disk was full.
        worked_s: time of the last report of work; 0: never.
        run: URL of what the work makes; empty: unknown.
        began_s: start of the job by the host's clock, of several the earliest; 0: unknown.
        last_began_s: of several the latest; of one the same.
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
    run: str = ""
    began_s: float = 0.0
    last_began_s: float = 0.0

    def of(self, command: str) -> "WorkerStatus":
        """Return this status for a member's command; that of another command is reduced to `older`."""
        if not self.work or not self.command or self.command == command:
            return self
        worked_s = self.at_s if self.work == "running" else self.worked_s
        older = WorkerStatus(
            self.at_s,
            self.boot,
            self.stage,
            "older",
            command=self.command,
            worked_s=worked_s,
            began_s=self.began_s,
            last_began_s=self.last_began_s,
        )
        return replace(older, disk_full=self.disk_full)


@dataclass(frozen=True)
class View:
    """Observation of zones and workers.

    Attributes:
        at_s: time of the observation.
        zones: nodes of each zone, by zone.
        statuses: of workers, by node; None: the bucket didn't answer.
        failure: of the bucket.
        unread: why an object of the bucket isn't a status, by its name.
    """

    at_s: float
    zones: Mapping[str, ZoneView]
    statuses: Mapping[str, Sequence[WorkerStatus]] | None
    failure: Failure | None = None
    unread: Mapping[str, str] = field(default_factory=dict)

    @property
    def cloud_s(self) -> float:
        """The present by the later of this machine's clock and Google's, which dates nodes and objects."""
        reported_s = (status.at_s for statuses in (self.statuses or {}).values() for status in statuses)
        created = (observed.created_s for observed in self.all())
        return max((self.at_s, *reported_s, *created))

    def node(self, name: str, zone: str) -> ObservedNode | None:
        """Return a node, if its zone's list has it."""
        view = self.zones.get(zone)
        return (view.nodes or {}).get(name) if view else None

    def all(self) -> list[ObservedNode]:
        """Return every listed node."""
        return [observed for zone in self.zones.values() for observed in (zone.nodes or {}).values()]

    def status(self, observed: ObservedNode, command: str) -> WorkerStatus | None:
        """Summarize the statuses of this node's workers, without those of an earlier node of its name.

        Both times are Google's: of the node's creation, and of the objects.
        """
        return self.reported(observed.name, command, observed.created_s)

    def reported(self, name: str, command: str, since_s: float = 0.0) -> WorkerStatus | None:
        """Summarize the statuses of the nodes of a name since a time; None: there are none."""
        statuses = (self.statuses or {}).get(name, ())
        return summarized([status.of(command) for status in statuses if status.at_s >= since_s])

    def booting(self, observed: ObservedNode, hosts: int, silent_s: float) -> bool:
        """Return whether a host of this node boots, or runs its startup script again.

        Args:
            observed: the node.
            hosts: their number; each has a status of its own.
            silent_s: age of the last sign of a boot after which it isn't waited for.
        """
        since_s, statuses = self.cloud_s - silent_s, (self.statuses or {}).get(observed.name, ())
        boots = [status for status in statuses if status.boot and status.at_s >= observed.created_s]
        if len(boots) < hosts and observed.created_s > since_s:
            return True
        return any(status.boot not in BOOT_ENDS and status.at_s > since_s for status in boots)


def summarized(workerstatus: Sequence[WorkerStatus]) -> WorkerStatus | None:
    """Summarize the statuses of several workers; None: there are none.

    A boot failed if a worker's did, unless work was reported after it; it is ready once all reported that.
    Work failed if a worker's did, is older if a worker's is, and is done once all that reported are done.
    Samples of an extractor's workers add up; a trainer's step is the same on each.
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
        run=next((work.run for work in works if work.run), ""),
        began_s=min((work.began_s for work in works), default=0.0),
        last_began_s=max((work.last_began_s for work in works), default=0.0),
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
    ABSENT = "absent"  # it has no node, and no loss of one is known


class Claim(StrEnum):
    """Reason to delete a living node, to be proven first (fleet/proof.py)."""

    NONE = ""  # its machines are gone by its state
    BOOT_FAILED = "boot failed"
    WORK_FAILED = "work failed"
    SILENT = "silent"
    DONE = "work done"
    FINAL = "work failed for good"


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
