"""A cloud that exists in numbers alone, on a clock of its own: what a controller does in a week, in a minute.

Its zones lose nodes, one by one and in waves, run out of chips for hours and don't answer for minutes,
at moments drawn from a seed before anything runs, so that two controllers meet the same week. It knows
the truth about each node, and says whether one that was healthy was ever deleted.
"""

import heapq
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


@dataclass(frozen=True)
class Climate:
    """Means of exponential times between events, in hours unless named otherwise.

    Attributes:
        preemption_h: between two preemptions of one node.
        wave_h: between two waves in one zone, each of which takes `wave_share` of its nodes.
        dry_h: between two stock-outs of a zone, each of `dry_for_h`.
        ill_h: between two times in which `ill_share` of a zone's answers are errors, each of `ill_for_min`.
        delete_s: to delete a node.
        create_s: to create one.
        refuse_s: until a zone without chips says so.
    """

    preemption_h: float = 24.0
    wave_h: float = 48.0
    wave_share: float = 0.3
    dry_h: float = 36.0
    dry_for_h: float = 2.0
    ill_h: float = 24.0
    ill_for_min: float = 10.0
    ill_share: float = 0.5
    delete_s: float = 60.0
    create_s: float = 180.0
    refuse_s: float = 45.0


class Weather:
    """Events of a climate for some nodes, drawn from a seed.

    Attributes:
        climate: as it was given.
        dry: by zone, from when to when it has no chips, seconds.
        ill: by zone, from when to when some of its answers are errors.
        losses: when which node is taken away, if it is there, wherever that is; a heap.
    """

    def __init__(
        self, zone_of: Mapping[str, str], climate: Climate, span_s: float, seed: int, more: Sequence[str] = ()
    ):
        """For nodes by zone, and for `more` zones that are empty at first."""
        self.climate, self._span_s = climate, span_s
        rng = random.Random(seed)
        zones = sorted({*zone_of.values(), *more})
        self.dry = {zone: self._spans(rng, climate.dry_h, climate.dry_for_h) for zone in zones}
        self.ill = {zone: self._spans(rng, climate.ill_h, climate.ill_for_min / 60) for zone in zones}
        self.losses = self._draw_losses(rng, zone_of, zones)

    def _spans(self, rng: random.Random, apart_h: float, for_h: float) -> list[tuple[float, float]]:
        result, at_s = [], 0.0
        while apart_h and (at_s := at_s + rng.expovariate(1 / apart_h) * HOUR_S) < self._span_s:
            end_s = at_s + rng.expovariate(1 / for_h) * HOUR_S
            result.append((at_s, end_s))
            at_s = end_s
        return result

    def _draw_losses(
        self, rng: random.Random, zone_of: Mapping[str, str], zones: Sequence[str]
    ) -> list[tuple[float, str]]:
        result = []
        for name in zone_of:
            result += [(begin, name) for begin, _ in self._spans(rng, self.climate.preemption_h, 1e-9)]
        for zone in zones:
            names = [name for name, place in zone_of.items() if place == zone]
            for begin, _ in self._spans(rng, self.climate.wave_h, 1e-9):
                sample = rng.sample(names, round(self.climate.wave_share * len(names)))
                result += [(begin + rng.uniform(0, 600), name) for name in sample]
        heapq.heapify(result)
        return result


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
        lists, deletes, creates, checks, refused: requests by kind; refused creates are wasted.
        healthy_deleted: nodes that were deleted though nothing was wrong with them.
    """

    recoveries_s: list[float] = field(default_factory=list)
    lost: int = 0
    lists: int = 0
    deletes: int = 0
    creates: int = 0
    checks: int = 0
    refused: int = 0
    healthy_deleted: list[str] = field(default_factory=list)


class VirtualCloud:
    """Zones, nodes and their operations: a `Cloud` and an `Actor` for a controller."""

    STACK = "virtual"
    OWNER = Owner({"layer": "tpu"}, STACK)

    def __init__(self, members: Sequence[Node], climate: Climate, span_s: float, seed: int):
        self.now_s = 0.0
        self.tally = Tally()
        self._climate = climate
        self._members = {member.key: member for member in members}
        self.nodes = {
            member.key: _Node(member, member.zone, member.name, instance=n)
            for n, member in enumerate(members)
        }
        self._instances = len(members)
        self._down: dict[str, float] = {}  # since when a member is lost
        more = [zone for member in members for zone in member.others]
        weather = Weather({member.key: member.zone for member in members}, climate, span_s, seed, more)
        self._dry, self._ill, self._losses = weather.dry, weather.ill, weather.losses
        self._rng = random.Random(seed + 1)
        self._answers: list[Answer] = []
        self._failed: dict[str, Failure] = {}

    def dry(self, zone: str) -> bool:
        """Return whether a zone has no chips now."""
        return any(begin <= self.now_s < end for begin, end in self._dry[zone])

    def ill(self, zone: str) -> bool:
        """Return whether a zone answers this request with an error."""
        trouble = any(begin <= self.now_s < end for begin, end in self._ill[zone])
        return trouble and self._rng.random() < self._climate.ill_share

    def lose(self, key: str, at_s: float | None = None) -> None:
        """Takes a member's machines away."""
        node = self.nodes.get(key)
        if node is not None and node.state == "READY":
            node.state = "PREEMPTED"
            self._down.setdefault(key, self.now_s if at_s is None else at_s)
            self.tally.lost += 1

    def advance(self, to_s: float) -> None:
        """Lets time pass: what is to be lost until then is lost, and operations end."""
        while self._losses and self._losses[0][0] <= to_s:
            at_s, key = heapq.heappop(self._losses)
            self._end_operations(at_s)
            self.lose(key, at_s)
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
        self.tally.lists += len(zones) + 1
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
        """See `controller.Actor`."""
        key = request.node.key
        if request.verb is Verb.CHECK:
            self.tally.checks += 1
            self._answers.append(Answer(request, self._failed.get(request.operation), done=True))
        elif self.ill(request.node.zone):
            failure = Failure(Kind.TRANSIENT, "The service is currently unavailable.")
            self._answers.append(Answer(request, failure))
        elif request.verb is Verb.DELETE:
            self._delete(key, request)
        else:
            self._answers.append(self.create(key, request))

    def ended(self) -> list[Answer]:
        """See `controller.Actor`."""
        result, self._answers = self._answers, []
        return result

    def _delete(self, key: str, request: NodeRequest) -> None:
        self.tally.deletes += 1
        node = self.nodes.get(key)
        if node and node.state == "READY":
            self.tally.healthy_deleted.append(node.name)
            self._down[key] = self.now_s
        if node and node.state != "DELETING":
            node.state, node.changes_s = "DELETING", self.now_s + self._climate.delete_s
        self._answers.append(Answer(request))

    def create(self, key: str, request: NodeRequest) -> Answer:
        """nodes.create; a zone without chips says so when the operation ends."""
        self.tally.creates += 1
        if key in self.nodes:
            return Answer(request)
        zone, climate = request.node.zone, self._climate
        self._instances += 1
        node = _Node(self._members[key], zone, request.node.name, "CREATING", self._instances, self.now_s)
        operation = f"operation-{self._instances}"
        node.changes_s = self.now_s + climate.create_s * self._rng.uniform(0.5, 2.0)
        if self.dry(zone):
            self.tally.refused += 1
            node.refused, node.changes_s = True, self.now_s + climate.refuse_s
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
