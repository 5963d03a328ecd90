"""No healthy node and no foreign one is ever deleted, through lags, lies, losses and kills."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.controller import Controller
from fleet.decide import Limits
from fleet.model import TAKEN_AWAY, ObservedNode, View, WorkerStatus, ZoneView
from fleet.proof import Attested
from fleet.zones import Answer, NodeRequest, Zones
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from tests.fleet.conftest import OWNER, ZONES, fleet, labels
from tests.fleet.shown import Kept

MEMBERS = fleet(4, zones=2, others=ZONES[:3])
HEARTBEAT_TIMEOUT_S = 1800.0
STATES = ["REPAIRING", "RESTARTING", "STOPPED", "HIDDEN", "", "NEW"]


@dataclass
class Machine:
    """A node as it truly is."""

    observed: ObservedNode
    attested: Attested = field(default_factory=lambda: Attested("booting"))
    works: bool = True


@dataclass
class Truth:
    """Google, and the hosts: the API of `Zones`, the cloud of a controller, and who judges them.

    Attributes:
        wrong: what was deleted though it was healthy or another's.
        deleted: how many were.
    """

    rng: random.Random
    now_s: float = 1e6
    nodes: dict[tuple[str, str], Machine] = field(default_factory=dict)
    lists: list[dict[tuple[str, str], ObservedNode]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    deleted: int = 0
    instances: int = 0

    def maybe(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def make(self, zone: str, name: str, state: str, result: Mapping[str, str]) -> None:
        self.instances += 1
        observed = ObservedNode(name, zone, state, str(self.instances), self.now_s - 1, result, "HEALTHY")
        self.nodes[zone, name] = Machine(observed)

    def pass_time(self) -> None:
        """Machines work, break and are taken away; labels change hands; lists are kept for who lags."""
        self.now_s += self.rng.choice([5.0, 60.0, 300.0, 2400.0])
        for where, entry in list(self.nodes.items()):
            state = entry.observed.state
            if state == "DELETING" and self.maybe(50):
                del self.nodes[where]
                continue
            if state == "CREATING" and self.maybe(50):
                entry.observed = replace(entry.observed, state="READY")
            elif state == "READY" and self.maybe(12):
                entry.observed = replace(entry.observed, state=self.rng.choice([*STATES, *TAKEN_AWAY]))
            elif state in STATES and self.maybe(50):
                entry.observed = replace(entry.observed, state="READY")
            if self.maybe(3):
                entry.observed = replace(entry.observed, labels={**entry.observed.labels, "stack": "another"})
            if entry.works and self.maybe(8):
                entry.works = False
                broken = [
                    Attested("failed", self.now_s), Attested("ready", self.now_s, "failed", self.now_s),
                    Attested("ready", self.now_s, "running", self.now_s),  # and falls silent
                ]  # fmt: skip
                entry.attested = self.rng.choice(broken)
            elif entry.works:
                state = self.rng.choice(["running", "running", "done", ""])
                boot = self.rng.choice(["ready", "booting", "rerun-failed"])
                entry.attested = Attested(boot, self.now_s, state, self.now_s - self.rng.uniform(0, 90))
        self.lists.append({where: item.observed for where, item in self.nodes.items()})

    # The API, as of one node

    def _fails(self, percent: int = 8) -> None:
        if self.maybe(percent):
            raise RequestError(Failure(self.rng.choice(list(Kind)), "drawn"))

    def node(self, zone: str, name: str) -> ObservedNode | None:
        self._fails()
        result = self.nodes.get((zone, name))
        return result.observed if result else None

    def create(self, zone: str, name: str, body: Mapping[str, Any]) -> str:
        self._fails()
        if (zone, name) in self.nodes:
            raise RequestError(Failure(Kind.EXISTS, "already exists"))
        self.make(zone, name, "CREATING", body["labels"])
        self._fails()  # its answer is lost
        return "operation"

    def delete(self, zone: str, name: str) -> None:
        item = self.nodes.get((zone, name))
        if item and item.observed.state != "DELETING":
            self.deleted += 1
            silent = self.now_s - max(item.attested.boot_s, item.attested.job_s) > HEARTBEAT_TIMEOUT_S
            useless = item.observed.state in TAKEN_AWAY or (
                item.observed.state == "READY"
                and (item.attested.boot == "failed" or item.attested.job == "failed" or silent)
            )
            if not useless or not OWNER.owns(item.observed):
                self.wrong.append(f"{name}: {item}")
            item.observed = replace(item.observed, state="DELETING")
        self._fails()

    def update(self, zone: str, name: str, body: Mapping[str, Any]) -> None:
        self._fails()

    def operation(self, name: str) -> tuple[bool, Failure | None]:
        self._fails()
        return self.maybe(70), None

    def attested(self, zone: str, name: str) -> list[Attested]:
        self._fails()
        return [self.nodes[zone, name].attested] if (zone, name) in self.nodes else []

    # What a controller observes

    def observe(self, zones: Any) -> View:
        """Lists of now or of before, silent zones, and whatever anybody may have written of anybody."""
        views: dict[str, ZoneView] = {}
        for zone in zones:
            shown = self.lists[-1] if self.maybe(60) else self.rng.choice(self.lists[-6:])
            views[zone] = ZoneView(
                {name: observed for (place, name), observed in shown.items() if place == zone}
            )
            if self.maybe(12):
                views[zone] = ZoneView(None, Failure(self.rng.choice(list(Kind)), "drawn"))
        statuses: dict[str, list[WorkerStatus]] = {}
        for _, name in self.nodes:
            at_s = self.now_s - self.rng.choice([1.0, 100.0, 3000.0])
            boot = self.rng.choice(["", "booting", "ready", "failed", "rerun-failed"])
            work = self.rng.choice(["", "running", "done", "failed"])
            full = self.maybe(50)
            statuses[name] = [
                WorkerStatus(at_s, boot, "bundle"),
                WorkerStatus(at_s, work=work, disk_full=full),
            ][: self.rng.randrange(3)]
        return View(self.now_s, views, None if self.maybe(5) else statuses)


class Later(Zones):
    """Carries requests out at some later time, when things are no longer as they were decided about."""

    def __init__(self, truth: Truth):
        super().__init__(
            truth, OWNER, lambda item: {"labels": labels(item)}, lambda: truth.now_s, HEARTBEAT_TIMEOUT_S
        )
        self._truth, self._queue, self._done = truth, list[NodeRequest](), list[Answer]()

    def begin(self, request: NodeRequest) -> None:
        self._queue.append(request)

    def carry_out(self) -> None:
        waiting, self._queue = self._queue, []
        for request in waiting:
            if self._truth.maybe(70):
                self._done.append(self._answer(request))
            else:
                self._queue.append(request)

    def ended(self) -> list[Answer]:
        result, self._done = self._done, []
        return result


class Careless(Later):
    """Delete as it was decided, without reading the node again, which is wrong."""

    def _delete(self, request: NodeRequest) -> Answer:
        self._truth.delete(request.node.zone, request.node.name)
        return Answer(request)


def lived(rng: random.Random, how: type[Later] = Later, steps: int = 14) -> Truth:
    """Two controllers, each killed now and then, over some hours of one fleet."""
    truth = Truth(rng)
    for member in MEMBERS:
        if truth.maybe(80):
            stack = OWNER.stack if truth.maybe(85) else "another"
            truth.make(member.zone, member.name, "READY", labels(member, stack))
    stores, actors = [Kept(), Kept()], [how(truth), how(truth)]

    def begun(n: int) -> Controller:
        return Controller(MEMBERS, truth, actors[n], stores[n], Limits(), OWNER, rng)

    truth.pass_time()
    controllers = [begun(0), begun(1)]
    for _ in range(steps):
        n = rng.randrange(2)
        controllers[n].step()
        truth.pass_time()
        actors[n].carry_out()
        if truth.maybe(20):  # killed: what it had begun may come about still, and nobody hears of it
            actors[n].carry_out()
            actors[n] = how(truth)
            controllers[n] = begun(n)
    return truth


@given(st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_no_healthy_node_is_ever_deleted(rng: random.Random) -> None:
    assert lived(rng).wrong == []


def test_no_healthy_node_is_ever_deleted_in_many_lives() -> None:
    """By plain chance, which meets long chains of events that a search for small ones does not."""
    lives = [lived(random.Random(seed), steps=40) for seed in range(60)]
    assert [wrong for truth in lives for wrong in truth.wrong] == []
    assert sum(truth.deleted for truth in lives) > 120, "what is of no use is"
    assert sum(truth.instances for truth in lives) > 240, "and it is made again"


def test_who_deletes_without_asking_again_does_delete_healthy_ones() -> None:
    """Else the two tests above would show nothing."""
    assert any(lived(random.Random(seed), Careless).wrong for seed in range(20))
