"""The reconciler: look, decide, act, remember. The same code against Google and against a simulated cloud.

    keeper = Keeper(members, cloud, builder, books, limits)
    look = keeper.step()      # again and again; how often is the caller's choice

A step never waits for an update: one runs at a time, and its end is noted by a later step. What is to be
done is written down before it begins, so that a keeper that is killed in between has spent its budget.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Protocol

from fleet import adopt
from fleet.books import UnreachableError
from fleet.decide import Limits, decide, orphans
from fleet.failures import Failure
from fleet.memory import Memory
from fleet.provision import Outcome
from fleet.state import TAKEN_AWAY, Action, Cause, Condition, Decision, Place, Seen, View
from infra.nodes import Node


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

    def held(self) -> Mapping[str, str] | None:
        """Members that the stack holds, by zone, since the last update; None where nobody can say."""
        ...

    def start(self, places: Mapping[str, Place]) -> None:
        """Begins to create members where each is to be.

        What is left of them is deleted first; one that lives is left alone, unless its place names it, and
        taken in where the stack doesn't hold it.
        """
        ...

    def ended(self) -> Outcome | None:
        """The outcome of what was started, once; None while it runs, or where nothing was."""
        ...


class Books(Protocol):
    """Where a memory is kept."""

    def read(self) -> Memory:
        """What was remembered."""
        ...

    def write(self, memory: Memory, sign: bool = True) -> None:
        """Remembers. Raises UnreachableError where it can't, FleetError where another has written since."""
        ...

    def sign(self, memory: Memory) -> None:
        """Shows that this keeper is alive, if that is due."""
        ...


@dataclass(frozen=True)
class Look:
    """One step.

    Attributes:
        view: what was seen.
        members: with the zones where they are, or are being made.
        decisions: one for each.
        orphans: nodes with our labels that no setting asks for.
        events: what happened since the step before, in words.
        begun: members whose creation began with this step.
    """

    view: View
    members: Sequence[Node]
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
        everyone: Sequence[Node] = (),
    ):
        """Keeps `members`; nodes with `labels` are orphans where neither they nor `everyone` ask for them."""
        self._cloud, self._builder, self._books = cloud, builder, books
        self._limits, self._labels = limits, labels
        self._dice = dice or random.Random()
        self.memory = books.read()
        self.outcome: Outcome = {}  # of the last update that has ended
        self._under_way: tuple[str, ...] = ()
        self._alive: frozenset[str] = frozenset()  # those of them that are only taken in
        self._conditions: dict[str, str] = {}
        self._said: list[str] = []
        self._told = ""
        self.follow(members, everyone)

    def follow(self, members: Sequence[Node], everyone: Sequence[Node] = ()) -> None:
        """Keeps these members from now on; not while an update is under way."""
        assert not self.busy, "an update is of the members that it was begun for"
        mine = {member.name for member in members}
        self._members = [*members]
        self._others = [one for one in everyone if one.name not in mine]
        self._zones = sorted({zone for member in members for zone in member.places})

    def held(self) -> Mapping[str, str] | None:
        """See `Builder.held`."""
        return self._builder.held()

    def say(self, event: str) -> None:
        """Has the next step tell this, unless it was the last that was told so."""
        if event != self._told:
            self._said, self._told = [*self._said, event], event

    @property
    def under_way(self) -> tuple[str, ...]:
        """Members of the update that is under way."""
        return self._under_way

    @property
    def busy(self) -> bool:
        """Whether an update is under way."""
        return bool(self._under_way)

    def step(self, may: Collection[Cause] = frozenset(Cause), only: Collection[str] | None = None) -> Look:
        """One look at everything, and what follows from it.

        Args:
            may: for which causes members are brought back; none to look only.
            only: the members that may be; all, unless given.
        """
        # Before the look: what ends during it may be missing from what it shows, and stays in hand.
        outcome = self._builder.ended()
        view = self._cloud.look(self._zones)
        events, self._said = [*self._said, *self._note(outcome, view.at_s)], []
        wishes = decide(self._members, view, self.memory, self._limits)
        found = [self._in_hand(one) for one in adopt.told(wishes, view, self._builder.held(), self._labels)]
        events += self._changes(found)
        # Of a member that is being moved the update deletes what is left in the zone before.
        leftovers = [
            one
            for one in orphans([*self._members, *self._others], view, self._labels)
            if one.name not in self._under_way
        ]
        due = [
            one
            for one in found
            if one.action in (Action.CREATE, Action.REPLACE, Action.ADOPT)
            and one.cause in may
            and (only is None or one.node in only)
        ]
        begun: tuple[str, ...] = ()
        try:
            if due and not self.busy:
                begun = self._begin(due, view.at_s)
                events += [f"{one.node}: {one.action} ({one.why})" for one in due]
            elif may or self.busy:
                self._books.sign(self.memory)
            if Cause.PREEMPTION in may:
                events += self._sweep(leftovers)
        except UnreachableError as error:
            # What can't be written down isn't done.
            events.append(f"nothing is done: {error}")
        return Look(view, tuple(self._members), found, leftovers, events, begun)

    def sign(self) -> None:
        """Shows that this keeper is alive, if that is due; for those who wait long between two steps."""
        with suppress(UnreachableError):
            self._books.sign(self.memory)

    def leave(self) -> None:
        """Gives the keeper's place up."""
        with suppress(UnreachableError):
            self._books.write(self.memory, sign=False)

    def _begin(self, due: Sequence[Decision], now_s: float) -> tuple[str, ...]:
        before = deepcopy(self.memory)
        for one in due:
            self.memory.attempted(one.node, one.cause or Cause.NEW, now_s, one.instance)
        try:
            self._books.write(self.memory)
        except UnreachableError:
            self.memory = before
            raise
        places = {one.node: Place(one.zone, one.instance) for one in due}
        self._members = [
            replace(one, zone=places[one.name].zone) if one.name in places else one for one in self._members
        ]
        self._under_way = tuple(places)
        self._alive = frozenset(one.node for one in due if one.action is Action.ADOPT)
        self._builder.start(places)
        return self._under_way

    def _note(self, outcome: Outcome | None, now_s: float) -> list[str]:
        if outcome is None:
            return []
        self._under_way, self.outcome = (), outcome
        events = []
        held = self._builder.held() or {}
        self._members = [_where(one, held) if one.name in outcome else one for one in self._members]
        zones = {member.name: member.zone for member in self._members}
        # What one was given first: what another was refused then stands.
        for node, failure in sorted(outcome.items(), key=lambda one: one[1] is not None):
            if failure is None:
                taken_in = node in self._alive
                events.append(f"{node}: {'taken in' if taken_in else 'created'}")
                self.memory.succeeded(node, None if taken_in else zones[node], now_s)
            else:
                events.append(f"{node}: {failure.kind}: {failure.message}")
                self.memory.failed(node, zones[node], failure, now_s, self._dice)
        try:
            self._books.write(self.memory)
        except UnreachableError as error:
            events.append(f"not written down yet: {error}")  # with the next step that acts
        return events

    def _in_hand(self, one: Decision) -> Decision:
        if one.node not in self._under_way:
            return one
        if one.node in self._alive:
            return replace(one, action=Action.WAIT, why="being taken in")
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
                word = (
                    f"not deleted: {failure.kind}: {failure.message}" if failure else "its deletion is begun"
                )
                events.append(f"{one.name}: left over, {one.state}: {word}")
        return events


def _where(member: Node, held: Mapping[str, str]) -> Node:
    """Where an update left a member: in the zone before, if it lived."""
    zone = held.get(member.name)
    return replace(member, zone=zone) if zone in member.places else member
