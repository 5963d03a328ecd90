"""Several programs on one cloud and one virtual clock, each stopped at every request and every pause.

An actor is a thread that runs only while it is let run: until its next request or its next pause. It can be
killed at a request, before or after that is carried out, lose an answer, be interrupted, or stand still while
time goes on, as a laptop that sleeps.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fleet.adhoc import Phase
from fleet.model import GOING, TAKEN_AWAY, Condition, ObservedNode, View, WorkerStatus, ZoneView
from fleet.proof import Attested
from infra.errors import InfraError
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from tests.limits import HANG_S

BOOT_S, DELETE_S = 120.0, 60.0
UNAVAILABLE = Failure(Kind.TRANSIENT, "unavailable")
_threads = threading.local()


class KilledError(BaseException):
    """End of a process that is killed; nothing catches it."""


class Actor:
    """A program that runs when it is let.

    Attributes:
        wakes_s: end of its pause; 0: it is at a request.
        outcome: what it ended with; None: it runs.
        stalled: it isn't let run, whatever the time.
        doom: how it ends at its next request: `before` or `after` it, or `interrupt`.
        loses: the answer of its next change.
    """

    def __init__(self, name: str, cloud: SharedCloud, program: Callable[[], object]):
        self.name, self._cloud, self._program = name, cloud, program
        self.wakes_s, self.stalled, self.doom, self.loses = 0.0, False, "", False
        self.outcome: object = None
        self.dead = False
        self.read: tuple[str, str] | None = None  # the node that its last request read
        self._may, self._yields = threading.Lock(), threading.Lock()  # each held until the other's turn
        self._may.acquire()
        self._yields.acquire()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        _threads.actor = self
        self._may.acquire()
        try:
            self.outcome = self._program() or 0
        except BaseException as error:
            self.outcome = error
            known = KilledError | KeyboardInterrupt | SystemExit | InfraError
            if not isinstance(error, known):
                self._cloud.violations.append(f"{self.name} ended with {error!r}")
        self._yields.release()

    @property
    def runs(self) -> bool:
        return self.outcome is None

    def go(self) -> None:
        """Let it run until its next request, pause or end."""
        self._may.release()
        assert self._yields.acquire(timeout=HANG_S), f"{self.name} hangs"

    def wait(self) -> None:
        """Stop here, until it is let run."""
        self._yields.release()
        self._may.acquire()

    def request(self) -> None:
        """Stop before a request; it may end here."""
        if self.dead:
            raise KilledError
        self.wakes_s = 0.0
        self.wait()
        self.read = None
        if self.doom == "before":
            self._die()
        if self.doom == "interrupt":
            self.doom = ""
            self._cloud.faults["interrupt"] += 1
            raise KeyboardInterrupt

    def changed(self) -> None:
        """Get the answer of a request that was carried out, or not."""
        if self.doom == "after":
            self._die()
        if self.loses:
            self.loses = False
            self._cloud.faults["lost answer"] += 1
            raise RequestError(UNAVAILABLE)

    def _die(self) -> None:
        self._cloud.faults[f"killed {self.doom}"] += 1
        self.dead = True
        raise KilledError

    def pause(self, seconds: float) -> None:
        """Sleep on the virtual clock."""
        if self.dead:
            raise KilledError
        self.wakes_s = self._cloud.now_s + seconds
        self.wait()
        if self.doom == "interrupt":
            self.doom = ""
            self._cloud.faults["interrupt"] += 1
            raise KeyboardInterrupt


def acting() -> Actor:
    """Return the actor whose thread this is."""
    return _threads.actor  # type: ignore[no-any-return]


@dataclass
class Machine:
    """A node.

    Attributes:
        program: bundle that its hosts run.
        bundles: those of its metadata so far.
        member: fleet and number that it was made for; None: somebody else made it.
        taken: its labels, while somebody has replaced them.
    """

    name: str
    zone: str
    labels: dict[str, str]
    instance: str
    created_s: float
    state: str = "CREATING"
    changes_s: float = math.inf
    program: str = ""
    work: str = "running"
    heartbeat: str = ""  # what its heartbeat says, unless it says the truth
    heartbeat_s: float = 0.0  # when it said so; 0: it goes on
    bundles: list[str] = field(default_factory=list)
    member: tuple[str, str] | None = None
    taken: dict[str, str] | None = None


class SharedCloud:
    """Nodes, and objects of the controller's bucket; the truth about both.

    Attributes:
        violations: what must not happen, and has.
        faults: counts of those that took effect.
        silent: zones that don't answer.
    """

    bucket, controller_bucket = "my-project-checkpoints", "my-project-checkpoints-fleet"

    def __init__(self) -> None:
        self.now_s, self.nodes = 1_000_000.0, dict[tuple[str, str], Machine]()
        self.objects: dict[str, tuple[str, int]] = {}
        self.violations: list[str] = []
        self.faults: Counter[str] = Counter()
        self.silent: set[str] = set()
        self.actors: list[Actor] = []
        self.programs: dict[str, list[str]] = {}  # by record id, the bundles that it had
        self.ended: set[str] = set()  # ids of records
        self.left: set[str] = set()  # ids of nodes whose record ended while somebody had their labels
        self._instances = itertools.count(1)

    # Time

    def advance(self, seconds: float) -> None:
        """Let time pass; who isn't stalled goes on, without requests in an endless loop."""
        end_s, sent = self.now_s + seconds, 0
        while True:
            awake = [actor for actor in self.actors if actor.runs and not actor.stalled]
            actor = min(awake, key=lambda item: item.wakes_s, default=None)
            if actor is None or max(actor.wakes_s, self.now_s) > end_s:
                break
            sent = 0 if actor.wakes_s > self.now_s else sent + 1
            assert sent < 2000, f"{actor.name} sends requests without an end"
            self._to(max(actor.wakes_s, self.now_s))
            self.let(actor)
        self._to(end_s)

    def let(self, actor: Actor) -> None:
        """Let an actor run until its next stop."""
        actor.go()
        self.check()

    def _to(self, at_s: float) -> None:
        self.now_s = at_s
        for key, node in [*self.nodes.items()]:
            if node.changes_s > at_s:
                continue
            node.changes_s = math.inf
            if node.state == "DELETING":
                del self.nodes[key]
            else:
                node.state, node.program = "READY", node.labels["bundle"]

    def check(self) -> None:
        """Check what holds at each instant: one node a member, but for those that its earlier record left."""
        members = Counter(
            node.member
            for node in self.nodes.values()
            if node.member and node.state not in GOING and node.instance not in self.left
        )
        self.violations += [f"{count} nodes of {member}" for member, count in members.items() if count > 1]
        assert not self.violations, self.violations

    # What other people do

    def take_labels(self, node: Machine) -> None:
        """Replace the labels of a node, or give them back."""
        node.labels, node.taken = (
            ({"cost-center": "ml"}, node.labels) if node.taken is None else (node.taken, None)
        )

    def make_anew(self, node: Machine, labels: bool) -> None:
        """Delete a node and make another of its name, with its labels or none.

        Not while a program is between reading the node and changing it: Google's API has no precondition.
        """
        key = node.zone, node.name
        if any(actor.read == key for actor in self.actors if actor.runs):
            return
        copied = dict(node.taken or node.labels) if labels else {}
        other = Machine(node.name, node.zone, copied, str(next(self._instances)), self.now_s, "READY")
        self.nodes[key] = other
        self.faults["made anew"] += 1

    def leave_to_us(self) -> None:
        """Give back all labels, and delete what other people made."""
        for key, node in [*self.nodes.items()]:
            if node.member is None:
                del self.nodes[key]
            elif node.taken is not None:
                self.take_labels(node)

    def confirmed(self, node: Machine) -> bool:
        """Return whether the record of a node has its id, and nothing was requested since."""
        entries = self.record_of(node).get("nodes", {}).values()
        return any(entry["id"] == node.instance and not entry.get("requested") for entry in entries)

    # Records

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the records as they are, by name."""
        return {
            name.rpartition("/")[2].removesuffix(".json"): json.loads(text)
            for name, (text, _) in self.objects.items()
            if "/fleets/" in name
        }

    def is_orphan(self, node: Machine) -> bool:
        """Return whether a node's labels were taken while its record ended, which is gone by now."""
        return node.instance in self.left and not self.record_of(node)

    def record_of(self, node: Machine) -> dict[str, Any]:
        """Return the record of a node; empty if there is none."""
        record = self.records().get(node.labels.get("fleet", ""), {})
        return record if record.get("id") == node.labels.get("record") else {}

    # What clients ask for

    def observe(self, zones: Sequence[str]) -> View:
        acting().request()
        views = {zone: self._zone(zone) for zone in zones}
        statuses = {
            node.name: [_status(node.heartbeat or node.work, node.heartbeat_s or self.now_s)]
            for node in self.nodes.values()
            if node.state in {"READY", *TAKEN_AWAY}
        }
        return View(self.now_s, views, statuses)

    def _zone(self, zone: str) -> ZoneView:
        if zone in self.silent:
            self.faults["silent zone"] += 1
            return ZoneView(None, UNAVAILABLE)
        return ZoneView({node.name: _seen(node) for node in self.nodes.values() if node.zone == zone})

    def all_nodes(self) -> list[ObservedNode]:
        acting().request()
        if self.silent:
            raise RequestError(UNAVAILABLE)
        return [_seen(node) for node in self.nodes.values()]

    def node(self, zone: str, name: str) -> ObservedNode | None:
        acting().request()
        acting().read = zone, name
        node = self.nodes.get((zone, name))
        return _seen(node) if node else None

    def create(self, zone: str, name: str, body: Mapping[str, Any]) -> str:
        acting().request()
        if (zone, name) in self.nodes:
            raise RequestError(Failure(Kind.EXISTS, f"{name} exists"))
        node = Machine(name, zone, dict(body["labels"]), str(next(self._instances)), self.now_s)
        node.changes_s = self.now_s + BOOT_S
        node.member = node.labels["fleet"], node.labels["member"]
        node.bundles.append(node.labels["bundle"])
        self.nodes[zone, name] = node
        acting().changed()
        return "operation"

    def operation(self, name: str) -> tuple[bool, Failure | None]:
        acting().request()
        return True, None

    def delete(self, zone: str, name: str) -> None:
        acting().request()
        node = self.nodes.get((zone, name))
        if node is not None and node.state not in GOING:
            self._require_ours(node, "deleted")
            ended = node.labels.get("record") in self.ended
            ends = ended or self.record_of(node).get("phase") == Phase.ENDING
            if node.state == "READY" and node.work == "running" and not ends:
                self.violations.append(f"{name} was deleted, and ran: {self.record_of(node)}")
            node.state, node.changes_s = "DELETING", self.now_s + DELETE_S
        acting().changed()

    def update(self, zone: str, name: str, body: Mapping[str, Any]) -> None:
        acting().request()
        node = self.nodes[zone, name]
        self._require_ours(node, "changed")
        bundle = body["labels"]["bundle"]
        if bundle != node.labels["bundle"]:
            node.bundles.append(bundle)
            self._require_in_order(node)
        node.labels = dict(body["labels"])
        acting().changed()

    def _require_ours(self, node: Machine, verb: str) -> None:
        """Nodes that somebody else made, or took by their labels, are left alone."""
        if node.member is None or node.taken is not None:
            whose = "somebody else made it" if node.member is None else "its labels were taken"
            self.violations.append(f"{node.name} was {verb}, though {whose}")

    def _require_known(self, record: Mapping[str, Any]) -> None:
        """The ids of a record are of nodes that were made for it, each of one member."""
        ids = [entry["id"] for entry in record["nodes"].values() if entry["id"]]
        foreign = {node.instance for node in self.nodes.values() if node.member is None}
        if len(ids) != len({*ids}) or foreign & {*ids}:
            self.violations.append(f"{record['name']} has the ids {ids}, of others {foreign}")

    def _require_proven(self, record: Mapping[str, Any]) -> None:
        """A program that goes on has no end: `done` and `failed` are what its hosts attest."""
        attested = str(record.get("why")).partition(":")[0] in (Condition.DONE, Condition.FAILED)
        if record["phase"] == Phase.ENDING and attested:
            self.violations += [
                f"{node.name} runs, and ends: {record}"
                for node in self.nodes.values()
                if node.state == "READY" and node.work == "running"
                if node.member is not None and node.labels.get("record") == record["id"]
            ]

    def _require_in_order(self, node: Machine) -> None:
        """The bundles of a node are those of its record, in order: nobody puts an earlier one back."""
        rest = iter(self.programs.get(node.labels.get("record", ""), ()))
        if not all(bundle in rest for bundle in node.bundles):
            self.violations.append(f"{node.name} had the bundles {node.bundles}")

    def attested(self, zone: str, name: str) -> list[Attested]:
        acting().request()
        node = self.nodes[zone, name]
        status = _status(node.work, self.now_s)
        return [Attested("ready", job=status.work, job_s=self.now_s, final=status.final)]

    def is_there(self, name: str) -> bool:
        return True

    def caller(self) -> dict[str, str]:
        return {"who": f"{acting().name}@example.com", "from": "laptop"}

    def remove(self, name: str, generation: int) -> None:
        acting().request()
        if self.objects.get(name, ("", 0))[1] == generation:
            del self.objects[name]

    def age_s(self, name: str) -> float | None:
        return None

    def read(self, name: str) -> tuple[str, int] | None:
        acting().request()
        return self.objects.get(name)

    def read_all(self, names: Sequence[str]) -> list[tuple[str, int] | None]:
        return [self.read(name) for name in names]

    def saved(self, prefix: str) -> dict[str, int]:
        acting().request()
        return {name: self.objects[name][1] for name in sorted(self.objects) if name.startswith(prefix)}

    def write(self, name: str, text: str, generation: int) -> int:
        acting().request()
        if generation != self.objects.get(name, ("", 0))[1]:
            raise RequestError(Failure(Kind.INVALID, "conditionNotMet"))
        self.objects[name] = text, generation + 1
        if "/fleets/" in name:
            record = self.records()[name.rpartition("/")[2].removesuffix(".json")]
            self._require_proven(record)
            self._require_known(record)
            if record["phase"] == Phase.ENDED:
                self.ended.add(record["id"])
                taken = [node for node in self.nodes.values() if node.taken]
                self.left |= {node.instance for node in taken if node.taken["record"] == record["id"]}
            bundles = self.programs.setdefault(record["id"], [])
            if bundles[-1:] != [record["bundle"][:12]]:
                bundles.append(record["bundle"][:12])
        acting().changed()
        return generation + 1


def _status(work: str, at_s: float) -> WorkerStatus:
    final = work == "final"
    return WorkerStatus(at_s, "ready", "launch", "failed" if final else work, final=final)


def _seen(node: Machine) -> ObservedNode:
    return ObservedNode(node.name, node.zone, node.state, node.instance, node.created_s, dict(node.labels))


@contextmanager
def virtual_time(cloud: SharedCloud) -> Iterator[None]:
    """Give actors the virtual clock, and all other threads the real one."""
    real = {name: getattr(time, name) for name in ("time", "monotonic", "sleep")}

    def now(name: str) -> Callable[[], float]:
        return lambda: cloud.now_s if hasattr(_threads, "actor") else real[name]()

    def sleep(seconds: float) -> None:
        acting().pause(seconds) if hasattr(_threads, "actor") else real["sleep"](seconds)

    time.time, time.monotonic, time.sleep = now("time"), now("monotonic"), sleep
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(time, name, function)
