"""A cloud that exists in numbers alone, on a clock of its own: what a keeper does in a week, in a minute.

Its zones lose nodes, one by one and in waves, run out of chips for hours and don't answer for minutes,
at moments drawn from a seed before anything runs, so that two keepers meet the same week. It knows
the truth about each node, and says whether one that was healthy was ever deleted.
"""

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.failures import Failure, Kind
from fleet.memory import Memory
from fleet.provision import Outcome
from fleet.state import Place, Seen, View, Word, ZoneView
from infra.nodes import Node

HOUR_S = 3600.0
_GONE = ""  # deleted, and not made again


@dataclass(frozen=True)
class Climate:
    """What the weather is like; means of exponential times, in hours unless named otherwise.

    Attributes:
        preemption_h: between two preemptions of one node.
        wave_h: between two waves in one zone, each of which takes `wave_share` of its nodes.
        dry_h: between two stock-outs of a zone, each of `dry_for_h`.
        ill_h: between two times in which `ill_share` of a zone's answers are errors, each of `ill_for_min`.
        delete_s: to delete a node.
        create_s: to create one; the longest of an update's is what it takes.
        refuse_s: until a zone without chips says so.
        update_s: of an update besides.
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
    update_s: float = 30.0


class Weather:
    """What a climate does to some nodes, drawn from a seed.

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
        dice = random.Random(seed)
        zones = sorted({*zone_of.values(), *more})
        self.dry = {zone: self._spans(dice, climate.dry_h, climate.dry_for_h) for zone in zones}
        self.ill = {zone: self._spans(dice, climate.ill_h, climate.ill_for_min / 60) for zone in zones}
        self.losses = self._draw_losses(dice, zone_of, zones)

    def _spans(self, dice: random.Random, apart_h: float, for_h: float) -> list[tuple[float, float]]:
        found, at_s = [], 0.0
        while apart_h and (at_s := at_s + dice.expovariate(1 / apart_h) * HOUR_S) < self._span_s:
            end_s = at_s + dice.expovariate(1 / for_h) * HOUR_S
            found.append((at_s, end_s))
            at_s = end_s
        return found

    def _draw_losses(
        self, dice: random.Random, zone_of: Mapping[str, str], zones: Sequence[str]
    ) -> list[tuple[float, str]]:
        found = []
        for name in zone_of:
            found += [(begin, name) for begin, _ in self._spans(dice, self.climate.preemption_h, 1e-9)]
        for zone in zones:
            there = [name for name, place in zone_of.items() if place == zone]
            for begin, _ in self._spans(dice, self.climate.wave_h, 1e-9):
                some = dice.sample(there, round(self.climate.wave_share * len(there)))
                found += [(begin + dice.uniform(0, 600), name) for name in some]
        heapq.heapify(found)
        return found


@dataclass
class _Node:
    state: str = "READY"
    instance: int = 0
    created_s: float = 0.0
    lost_s: float = 0.0  # when it was taken away; of no meaning while it is READY


@dataclass
class Tally:
    """What happened.

    Attributes:
        recoveries_s: of each lost node, from its loss until it was READY again.
        lost: preemptions.
        lists, deletes, creates, refused: requests by kind; refused creates are wasted.
        healthy_deleted: nodes that were deleted though nothing was wrong with them.
    """

    recoveries_s: list[float] = field(default_factory=list)
    lost: int = 0
    lists: int = 0
    deletes: int = 0
    creates: int = 0
    refused: int = 0
    healthy_deleted: list[str] = field(default_factory=list)


class VirtualCloud:
    """Zones, nodes and one update at a time: a `Cloud` and a `Builder` for a keeper."""

    def __init__(self, members: Sequence[Node], climate: Climate, span_s: float, seed: int):
        self.now_s = 0.0
        self.tally = Tally()
        self._climate = climate
        self._zone = {member.name: member.zone for member in members}
        self.nodes = {member.name: _Node(instance=n) for n, member in enumerate(members)}
        self._instances = len(members)
        more = [zone for member in members for zone in member.others]
        weather = Weather(self._zone, climate, span_s, seed, more)
        self._dry, self._ill, self._losses = weather.dry, weather.ill, weather.losses
        self._dice = random.Random(seed + 1)
        self._running: tuple[float, Outcome] | None = None

    def dry(self, zone: str) -> bool:
        """Whether a zone has no chips now."""
        return any(begin <= self.now_s < end for begin, end in self._dry[zone])

    def ill(self, zone: str) -> bool:
        """Whether a zone answers this request with an error."""
        trouble = any(begin <= self.now_s < end for begin, end in self._ill[zone])
        return trouble and self._dice.random() < self._climate.ill_share

    def advance(self, to_s: float) -> None:
        """Lets time pass: what is to be lost until then is lost."""
        while self._losses and self._losses[0][0] <= to_s:
            at_s, name = heapq.heappop(self._losses)
            node = self.nodes.get(name)
            if node is not None and node.state == "READY":
                node.state, node.lost_s = "PREEMPTED", at_s
                self.tally.lost += 1
        self.now_s = to_s

    # A keeper's view

    def look(self, zones: Sequence[str]) -> View:
        """See `loop.Cloud`."""
        self.tally.lists += len(zones) + 1
        views = {}
        for zone in zones:
            if self.ill(zone):
                views[zone] = ZoneView(None, Failure(Kind.TRANSIENT, "The service is currently unavailable."))
                continue
            there = {
                name: Seen(name, zone, node.state, str(node.instance), node.created_s)
                for name, node in self.nodes.items()
                if self._zone[name] == zone and node.state != _GONE
            }
            views[zone] = ZoneView(there)
        words = {
            name: [Word(self.now_s, "ready", "launch", "running")]
            for name, node in self.nodes.items()
            if node.state == "READY"
        }
        return View(self.now_s, views, words)

    def sweep(self, leftover: Seen) -> Failure | None:
        """See `loop.Cloud`."""
        raise AssertionError(f"{leftover} was swept, but every node here is asked for")

    def held(self) -> None:
        """Nobody asks for a stack here."""

    def start(self, places: Mapping[str, Place]) -> None:
        """See `loop.Builder`."""
        assert self._running is None, "one update at a time"
        ends_s, outcome = self.now_s + self._climate.update_s, Outcome()
        for name, place in places.items():
            took_s, failure = self.replace(name, place.zone)
            outcome[name] = failure
            ends_s = max(ends_s, self.now_s + self._climate.update_s + took_s)
        self._running = ends_s, outcome

    def ended(self) -> Outcome | None:
        """See `loop.Builder`."""
        if self._running is None or self.now_s < self._running[0]:
            return None
        ends_s, outcome = self._running
        self._running = None
        for name, failure in outcome.items():
            if failure is None:
                self.arrive(name, ends_s)
        return outcome

    @property
    def next_end_s(self) -> float | None:
        """When the update that is under way ends."""
        return self._running[0] if self._running else None

    # What a request does

    def replace(self, name: str, zone: str = "") -> tuple[float, Failure | None]:
        """Deletes a node, if it is there, and asks for a new one: how long it takes, and whether it fails."""
        climate, node = self._climate, self.nodes.get(name)
        zone = zone or self._zone[name]
        took_s = 0.0
        if node is not None and node.state != _GONE:
            if node.state == "READY":
                self.tally.healthy_deleted.append(name)
                node.lost_s = self.now_s
            self.tally.deletes += 1
            took_s += climate.delete_s
            node.state = "CREATING"
        self.tally.creates += 1
        self._zone[name] = zone
        if self.dry(zone):
            self.tally.refused += 1
            if node is not None:
                node.state = _GONE
            words = f'There is no more capacity in the zone "{zone}"'
            return took_s + climate.refuse_s, Failure(Kind.STOCK_OUT, words)
        return took_s + climate.create_s * self._dice.uniform(0.5, 2.0), None

    def arrive(self, name: str, at_s: float) -> None:
        """A node is READY."""
        self._instances += 1
        node = self.nodes[name]
        self.tally.recoveries_s.append(at_s - node.lost_s)
        node.state, node.instance, node.created_s = "READY", self._instances, at_s


class Notebook:
    """A memory that is kept nowhere."""

    def __init__(self) -> None:
        self._memory = Memory()

    def read(self) -> Memory:
        """See `loop.Books`."""
        return self._memory

    def write(self, memory: Memory, sign: bool = True) -> None:
        """See `loop.Books`."""
        self._memory = memory

    def sign(self, memory: Memory) -> None:
        """See `loop.Books`."""
