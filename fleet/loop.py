"""The reconciler: look, decide, act, remember. The same code against Google and against a simulated cloud.

    keeper = Keeper(members, cloud, builder, books, limits)
    look = keeper.step()      # again and again; how often is the caller's choice

A step never waits for an update: one runs at a time, and its end is noted by a later step. What is to be
done is written down before it begins, so that a keeper that is killed in between has spent its budget.
"""

import random
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from fleet import memory as memories
from fleet.decide import Limits, decide, orphans
from fleet.errors import FleetError
from fleet.failures import FOR_PEOPLE, Failure, Kind
from fleet.google import AskedError, Google
from fleet.memory import Memory
from fleet.provision import Outcome, Stack
from fleet.state import TAKEN_AWAY, Action, Cause, Condition, Decision, Seen, View
from infra.errors import InfraError
from infra.nodes import Node

BOOKS = "fleet/memory.json"


class Cloud(Protocol):
    """Where nodes and words are seen."""

    def look(self, zones: Sequence[str]) -> View:
        """All of it, once."""
        ...

    def sweep(self, leftover: Seen) -> Failure | None:
        """Asks for the deletion of a node that the stack doesn't hold."""
        ...


class Builder(Protocol):
    """What creates nodes; one update at a time."""

    def start(self, nodes: Sequence[str]) -> None:
        """Begins to create members, deleting first those that are there."""
        ...

    def ended(self) -> Outcome | None:
        """The outcome of what was started, once; None while it runs, or where nothing was."""
        ...


class Books(Protocol):
    """Where a memory is kept."""

    def read(self) -> Memory:
        """What was remembered."""
        ...

    def write(self, memory: Memory) -> None:
        """Remembers. Raises FleetError where another keeper has written since."""
        ...


@dataclass(frozen=True)
class Look:
    """One step.

    Attributes:
        view: what was seen.
        decisions: one for each member.
        orphans: nodes with our labels that no setting asks for.
        events: what happened since the step before, in words.
        begun: members whose creation began with this step.
    """

    view: View
    decisions: list[Decision]
    orphans: list[Seen]
    events: list[str]
    begun: tuple[str, ...] = ()


class Keeper:
    """Keeps some members alive."""

    def __init__(
        self,
        members: Sequence[Node],
        cloud: Cloud,
        builder: Builder,
        books: Books,
        limits: Limits,
        labels: dict[str, str],
        dice: random.Random | None = None,
    ):
        self._members, self._cloud, self._builder, self._books = members, cloud, builder, books
        self._limits, self._labels = limits, labels
        self._dice = dice or random.Random()
        self._zone = {member.name: member.zone for member in members}
        self._zones = sorted(set(self._zone.values()))
        self.memory = books.read()
        self.outcome: Outcome = {}  # of the last update that has ended
        self._under_way: tuple[str, ...] = ()
        self._conditions: dict[str, str] = {}

    @property
    def busy(self) -> bool:
        """Whether an update is under way."""
        return bool(self._under_way)

    def step(self, may: Collection[Cause] = frozenset(Cause)) -> Look:
        """One look at everything, and what follows from it.

        Args:
            may: for which causes members are brought back; none to look only.
        """
        # Before the look: what ends during it may be missing from what it shows, and stays in hand.
        outcome = self._builder.ended()
        view = self._cloud.look(self._zones)
        events = self._note(outcome, view.at_s)
        found = [self._in_hand(one) for one in decide(self._members, view, self.memory, self._limits)]
        events += self._changes(found)
        due = [one for one in found if one.action in (Action.CREATE, Action.REPLACE) and one.cause in may]
        leftovers = orphans(self._members, view, self._labels)
        begun: tuple[str, ...] = ()
        if Cause.PREEMPTION in may:
            events += self._sweep(leftovers)
        if due and not self.busy:
            begun = self._begin(due, view.at_s)
            events += [f"{one.node}: {one.action} ({one.why})" for one in due]
        return Look(view, found, leftovers, events, begun)

    def _begin(self, due: Sequence[Decision], now_s: float) -> tuple[str, ...]:
        for one in due:
            self.memory.attempted(one.node, one.cause or Cause.NEW, now_s, one.instance)
        self._books.write(self.memory)
        self._under_way = tuple(one.node for one in due)
        self._builder.start(self._under_way)
        return self._under_way

    def _note(self, outcome: Outcome | None, now_s: float) -> list[str]:
        if outcome is None:
            return []
        self._under_way, self.outcome = (), outcome
        worst: dict[str, Failure] = {}
        events = []
        for node, failure in outcome.items():
            zone = self._zone[node]
            self.memory.ended(node, failure is None, now_s)
            if failure is None:
                events.append(f"{node}: created")
                continue
            events.append(f"{node}: {failure.kind}: {failure.message}")
            if zone not in worst or failure.kind in FOR_PEOPLE:
                worst[zone] = failure
        for zone in {self._zone[node] for node in outcome}:
            if zone in worst:
                self.memory.failed(zone, worst[zone], now_s, self._dice)
            else:
                self.memory.succeeded(zone)
        self._books.write(self.memory)
        return events

    def _in_hand(self, one: Decision) -> Decision:
        if one.node not in self._under_way:
            return one
        return replace(one, action=Action.WAIT, condition=Condition.RECOVERING, why="being brought back")

    def _changes(self, found: Sequence[Decision]) -> list[str]:
        """What is worth a line: a condition that is another one than at the last look."""
        before, self._conditions = self._conditions, {one.node: one.condition for one in found}
        return [
            f"{one.node}: {before[one.node]} -> {one.condition}{f' ({one.why})' if one.why else ''}"
            for one in found
            if before.get(one.node, one.condition) != one.condition
        ]

    def _sweep(self, leftovers: Sequence[Seen]) -> list[str]:
        """Deletes what is ours, wanted by nobody and taken away by Google: its name and quota are held."""
        events = []
        for one in leftovers:
            if one.state in TAKEN_AWAY:
                failure = self._cloud.sweep(one)
                word = f"not deleted: {failure.kind}: {failure.message}" if failure else "deleted"
                events.append(f"{one.name}: left over, {one.state}: {word}")
        return events


class StackBuilder:
    """Updates of a stack, in a thread of their own."""

    def __init__(self, stack: Stack):
        self._stack = stack
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="update")
        self._running: tuple[tuple[str, ...], Future[Outcome]] | None = None

    def start(self, nodes: Sequence[str]) -> None:
        """See `Builder`."""
        assert self._running is None, "one update at a time"
        self._running = tuple(nodes), self._pool.submit(self._stack.bring, nodes)

    def ended(self) -> Outcome | None:
        """See `Builder`. An update that couldn't begin has failed for all of its members."""
        if self._running is None or not self._running[1].done():
            return None
        nodes, future = self._running
        self._running = None
        try:
            return future.result()
        except InfraError as error:
            return dict.fromkeys(nodes, Failure(Kind.TRANSIENT, str(error)))


class Borrowed:
    """Somebody else's memory, for those who only look; a bucket that doesn't answer is no reason not to."""

    def __init__(self, google: Google):
        self._books = BucketBooks(google)

    def read(self) -> Memory:
        """See `Books`."""
        try:
            return self._books.read()
        except FleetError:
            return Memory()

    def write(self, memory: Memory) -> None:
        """See `Books`."""
        raise AssertionError(f"{memory} was to be kept by somebody who only looks")

    def start(self, nodes: Sequence[str]) -> None:
        """See `Builder`."""
        raise AssertionError(f"{nodes} were to be brought back by somebody who only looks")

    def ended(self) -> Outcome | None:
        """See `Builder`."""
        return None


class BucketBooks:
    """A memory in the bucket, of one keeper at a time: who finds that another has written stops."""

    def __init__(self, google: Google):
        self._google = google
        self._generation = 0

    def read(self) -> Memory:
        """See `Books`."""
        where = f"gs://{self._google.bucket}/{BOOKS}"
        try:
            found = self._google.read(BOOKS)
        except AskedError as error:
            raise FleetError(f"{where}: {error}") from None
        if found is None:
            return Memory()
        text, self._generation = found
        return memories.from_json(text, where)

    def write(self, memory: Memory) -> None:
        """See `Books`."""
        where = f"gs://{self._google.bucket}/{BOOKS}"
        try:
            self._generation = self._google.write(BOOKS, memory.to_json(), self._generation)
        except AskedError as error:
            if error.failure.kind is Kind.INVALID:
                fix = "leave it to that one (fleet monitor --watch only looks), or stop it"
                raise FleetError(
                    f"{where}: another `fleet` has acted on this environment\n    fix: {fix}"
                ) from None
            raise FleetError(f"{where}: {error}") from None
