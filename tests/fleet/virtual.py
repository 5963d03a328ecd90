"""A simulated cloud on a clock of its own: days of a controller in seconds.

Zones without chips and zones that answer with errors are given by time; tests take nodes away. It knows the
truth about each node, and records deletions of healthy ones.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.controller_state import ControllerState
from fleet.model import ObservedNode, Owner, View, WorkerStatus, ZoneView
from fleet.zones import Answer, NodeRequest, Verb
from infra.google.failures import Failure, Kind
from infra.slices.nodes import Node

HOUR_S = 3600.0


DELETE_S, CREATE_S, REFUSE_S = 60.0, 180.0, 45.0  # of operations; the last one: until a zone has no chips
Spans = Mapping[str, tuple[float, float]]
"""By zone, begin and end in seconds."""


@dataclass
class _Node:
    member: Node
    zone: str
    name: str
    state: str = "READY"
    instance: int = 0
    created_s: float = 0.0
    changes_s: float = math.inf  # when its operation ends
    refused: bool = False  # its creation ends without chips


@dataclass
class Tally:
    """Counts of events.

    Attributes:
        recoveries_s: of each lost member, from its loss until it was READY again.
        lost: preemptions.
        deletes, creates, refused: requests by kind; refused creates are wasted.
        healthy_deleted: nodes that were deleted though nothing was wrong with them.
    """

    recoveries_s: list[float] = field(default_factory=list)
    lost: int = 0
    deletes: int = 0
    creates: int = 0
    refused: int = 0
    healthy_deleted: list[str] = field(default_factory=list)


class VirtualCloud:
    """Zones, nodes and their operations: a `Cloud` and an `Actor` for a controller."""

    STACK = "virtual"
    OWNER = Owner({"layer": "tpu"}, STACK)

    def __init__(self, members: Sequence[Node], dry: Spans | None = None, ill: Spans | None = None):
        """Create a node for each member; half of the answers of zones that are `ill` are errors."""
        self.now_s = 0.0
        self.tally = Tally()
        self._members = {member.key: member for member in members}
        self.nodes = {
            member.key: _Node(member, member.zone, member.name, instance=n)
            for n, member in enumerate(members)
        }
        self._instances = len(members)
        self._down: dict[str, float] = {}  # since when a member is lost
        self._dry, self._ill = dry or {}, ill or {}
        self._rng = random.Random(2)
        self._answers: list[Answer] = []
        self._failed: dict[str, Failure] = {}

    def _within(self, spans: Spans, zone: str) -> bool:
        begin, end = spans.get(zone, (math.inf, 0.0))
        return begin <= self.now_s < end

    def ill(self, zone: str) -> bool:
        """Return whether a zone answers this request with an error."""
        return self._within(self._ill, zone) and self._rng.random() < 0.5

    def lose(self, key: str) -> None:
        """Take a member's machines away."""
        node = self.nodes.get(key)
        if node is not None and node.state == "READY":
            node.state = "PREEMPTED"
            self._down.setdefault(key, self.now_s)
            self.tally.lost += 1

    def advance(self, to_s: float) -> None:
        """Let time pass: operations end."""
        self._end_operations(to_s)
        self.now_s = to_s

    def _end_operations(self, to_s: float) -> None:
        for key, node in list(self.nodes.items()):
            if node.changes_s > to_s:
                continue
            if node.state == "DELETING" or node.refused:
                del self.nodes[key]
                continue
            self.arrive(key, node.changes_s)

    # What a controller observes

    def observe(self, zones: Sequence[str]) -> View:
        """See `controller.Cloud`."""
        views = {}
        for zone in zones:
            if self.ill(zone):
                views[zone] = ZoneView(None, Failure(Kind.TRANSIENT, "The service is currently unavailable."))
                continue
            views[zone] = ZoneView(
                {node.name: self.observed(node) for node in self.nodes.values() if node.zone == zone}
            )
        statuses = {
            node.name: [WorkerStatus(self.now_s, "ready", "launch", "running")]
            for node in self.nodes.values()
            if node.state == "READY"
        }
        return View(self.now_s, views, statuses)

    def observed(self, node: _Node) -> ObservedNode:
        """A node as a list has it."""
        labels = {
            **self.OWNER.labels, "stack": self.STACK, "fleet": node.member.slice,
            "member": str(node.member.member),
        }  # fmt: skip
        return ObservedNode(node.name, node.zone, node.state, str(node.instance), node.created_s, labels)

    # What it does

    def begin(self, request: NodeRequest) -> None:
        """See `zones.Actor`."""
        key = request.node.key
        if request.verb is Verb.CHECK:
            self._answers.append(Answer(request, self._failed.get(request.operation), done=True))
        elif self.ill(request.node.zone):
            failure = Failure(Kind.TRANSIENT, "The service is currently unavailable.")
            self._answers.append(Answer(request, failure))
        elif request.verb is Verb.DELETE:
            self._delete(key, request)
        else:
            self._answers.append(self.create(key, request))

    def ended(self) -> list[Answer]:
        """See `zones.Actor`."""
        result, self._answers = self._answers, []
        return result

    def _delete(self, key: str, request: NodeRequest) -> None:
        self.tally.deletes += 1
        node = self.nodes.get(key)
        if node and node.state == "READY":
            self.tally.healthy_deleted.append(node.name)
            self._down[key] = self.now_s
        if node and node.state != "DELETING":
            node.state, node.changes_s = "DELETING", self.now_s + DELETE_S
        self._answers.append(Answer(request))

    def create(self, key: str, request: NodeRequest) -> Answer:
        """nodes.create; a zone without chips says so when the operation ends."""
        self.tally.creates += 1
        if key in self.nodes:
            return Answer(request)
        zone = request.node.zone
        self._instances += 1
        node = _Node(self._members[key], zone, request.node.name, "CREATING", self._instances, self.now_s)
        operation = f"operation-{self._instances}"
        node.changes_s = self.now_s + CREATE_S * self._rng.uniform(0.5, 2.0)
        if self._within(self._dry, zone):
            self.tally.refused += 1
            node.refused, node.changes_s = True, self.now_s + REFUSE_S
            output = f'There is no more capacity in the zone "{zone}"'
            self._failed[operation] = Failure(Kind.STOCK_OUT, output)
        self.nodes[key] = node
        return Answer(request, operation=operation)

    def arrive(self, key: str, at_s: float) -> None:
        """A node is READY."""
        node = self.nodes[key]
        if key in self._down:
            self.tally.recoveries_s.append(at_s - self._down.pop(key))
        node.state, node.changes_s = "READY", math.inf


class Notebook:
    """A memory that is kept nowhere."""

    def __init__(self) -> None:
        self._memory = ControllerState()

    def read(self) -> ControllerState:
        """See `controller.Store`."""
        return self._memory

    def peek(self) -> ControllerState:
        """See `controller.Store`."""
        return self.read()

    def write(self, state: ControllerState, renew: bool = True) -> None:
        """See `controller.Store`."""
        self._memory = state

    def renew(self, state: ControllerState) -> None:
        """See `controller.Store`."""
