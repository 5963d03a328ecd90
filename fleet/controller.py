"""The reconciler: observe, decide, act, remember. The same code against Google and against a simulated cloud.

    controller = Controller(members, cloud, zones, store, limits, owner)
    look = controller.step()      # again and again; how often is the caller's choice

A step waits for no operation: what a request began is seen by a later step, in the nodes themselves. What is
to be done is written down before it begins, and what is there says how far it came: a controller that is
killed at any moment is followed by one that continues.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from fleet.controller_state import ControllerState
from fleet.decide import LIST_LAG_S, Limits, decide
from fleet.members import in_zone, orphans, placed
from fleet.model import (
    ON_THE_WAY,
    TAKEN_AWAY,
    Action,
    Cause,
    Claim,
    Condition,
    Decision,
    ObservedNode,
    Owner,
    View,
)
from fleet.store import UnreachableError
from fleet.zones import Answer, NodeRequest, Verb
from infra.google.failures import Failure, Kind
from infra.slices.nodes import Node

_OF_A_BUNDLE = frozenset({"script", "bundle", "python", "environment", "launch"})
"""Stages of a boot that a bundle can fail."""

_PATIENCE_S = 300.0  # with a zone that doesn't answer, of those who wait for its members


def busy_s(members: int) -> float:
    """Seconds between two looks while something is under way: each look lists every member."""
    return max(10.0, members / 16)


class Cloud(Protocol):
    """Source of nodes and heartbeats."""

    def observe(self, zones: Sequence[str]) -> View:
        """Observe zones and heartbeats once."""
        ...


class Actor(Protocol):
    """Executor of requests; `begin` returns at once."""

    def begin(self, request: NodeRequest) -> None:
        """Begin a request."""
        ...

    def ended(self) -> list[Answer]:
        """Return the answers since the last call."""
        ...


class Store(Protocol):
    """Storage of the state and of the lease."""

    def read(self) -> ControllerState:
        """Return the stored state."""
        ...

    def write(self, state: ControllerState, renew: bool = True) -> None:
        """Store the state. Raises UnreachableError, or FleetError if another controller has written since."""
        ...

    def renew(self, state: ControllerState) -> None:
        """Renew the lease if that is due."""
        ...


@dataclass(frozen=True)
class Observation:
    """Result of a step.

    Attributes:
        view: the observation.
        members: in their present or intended zones.
        decisions: for each member.
        orphans: nodes of this stack outside the settings.
        events: messages since the previous step.
        begun: members for which a request was begun.
        failures: by member, of requests that failed since the previous step.
        outdated: keys of living members with metadata of earlier settings.
        nodes: existing nodes of this stack, with their members.
    """

    view: View
    members: Sequence[Node]
    decisions: list[Decision]
    orphans: list[ObservedNode]
    events: list[str]
    begun: tuple[str, ...] = ()
    failures: Mapping[str, Failure] | None = None
    outdated: tuple[str, ...] = ()
    nodes: Sequence[tuple[Node, ObservedNode]] = ()


class ZoneTimeouts:
    """Times since when zones haven't answered."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def lost(self, observation: Observation, keys: Collection[str]) -> dict[str, str]:
        """Return the members that are unknown because a zone hasn't answered for 5 min, with the reason."""
        now_s, silent = (
            observation.view.at_s,
            [zone for zone, item in observation.view.zones.items() if item.failure],
        )
        self._since_s = {zone: self._since_s.get(zone, now_s) for zone in silent}
        late = sorted(zone for zone, since_s in self._since_s.items() if now_s - since_s >= _PATIENCE_S)
        why = f"{', '.join(late)} didn't answer for {_PATIENCE_S / 60:.0f} min"
        waits = [decision for decision in observation.decisions if late and decision.action is Action.WAIT]
        lost = [wait.member.key for wait in waits if wait.zone in late or wait.condition is Condition.UNKNOWN]
        return {key: why for key in lost if key in keys}


class Controller:
    """Reconciler of some members."""

    def __init__(
        self,
        members: Sequence[Node],
        cloud: Cloud,
        actor: Actor,
        store: Store,
        limits: Limits,
        owner: Owner,
        rng: random.Random | None = None,
        everyone: Sequence[Node] = (),
        zones: Collection[str] = (),
        spec: Callable[[Node], str] | None = None,
    ):
        """Create a controller of `members`; this stack's nodes outside `members` and `everyone` are orphans.

        Args:
            members: as the settings spread them.
            cloud: what is observed.
            actor: what acts.
            store: what is remembered.
            limits: what may be done.
            owner: whose nodes are ours.
            rng: for pauses.
            everyone: all that the settings ask for.
            zones: further ones to look into.
            spec: label of what a member's hosts are told; one that has another is updated.
        """
        self._cloud, self.actor, self.store = cloud, actor, store
        self._limits, self.owner = limits, owner
        self._rng = rng or random.Random()
        self._more = frozenset(zones)
        self.state = store.read()
        self._running: dict[str, NodeRequest] = {}  # by member
        self._made: dict[str, str] = {}  # operation of each creation that isn't over, by member
        self._sent_spec: dict[str, str] = {}  # by member, what its hosts were told last
        self._blamed: dict[str, tuple[str, str]] = {}  # by member, the bundle that it says failed, and how
        self._conditions: dict[str, str] = {}
        self._events: list[str] = []
        self._last_event = ""
        self.follow(members, everyone, spec)

    def follow(
        self,
        members: Sequence[Node],
        everyone: Sequence[Node] = (),
        spec: Callable[[Node], str] | None = None,
    ) -> None:
        """Replace the members to keep."""
        mine = {member.key for member in members}
        self._desired = [*members]
        self._others = [item for item in everyone if item.key not in mine]
        self._spec = spec

    @property
    def _zones(self) -> list[str]:
        """Zones of the settings, and former zones in which members live."""
        named = {zone for item in self._desired for zone in (*item.places, *item.spread)}
        made = (item for node in self._desired for item in self.state.attempts.get(node.key, ())[-2:])
        return sorted(named | self._more | {item.zone for item in made if item.name})

    def note(self, event: str) -> None:
        """Add an event to the next step, unless it repeats the last one."""
        if event != self._last_event:
            self._events, self._last_event = [*self._events, event], event

    @property
    def busy(self) -> bool:
        """True while a request is under way."""
        return bool(self._running or self._made)

    @property
    def under_way(self) -> tuple[str, ...]:
        """Members with a request under way."""
        return tuple({**self._running, **self._made})

    def step(
        self, may: Collection[Cause] = frozenset(Cause), only: Collection[str] | None = None
    ) -> Observation:
        """Observe, decide, and begin the requests that follow.

        Args:
            may: causes for which members are recovered; empty: observe only.
            only: keys of the members that may be recovered; None: all.
        """
        answers = self.actor.ended()  # before the look, which then shows what they began
        view = self._cloud.observe(self._zones)
        if view.statuses is not None or not self.state.listed_s:
            self.state.listed_s = view.at_s
        members = self._placed(view)
        events, self._events = self._events, []
        failures: dict[str, Failure] = {}
        changed = self._note(answers, view.at_s, events, failures)
        changed |= self._arrived(members, view, events)
        members = self._placed(view)
        result = decide(members, view, self.state, self._limits, self.owner)
        changed |= self._judge_bundles(result, view)
        result = [self._in_hand(item) for item in result]
        events += self._changes(result)
        leftovers = orphans([*members, *self._placed(view, self._others)], view, self.owner)
        due = [
            item
            for item in result
            if item.action in (Action.CREATE, Action.REPLACE)
            and item.cause in may
            and (only is None or item.member.key in only)
        ]
        begun: tuple[str, ...] = ()
        outdated = self._outdated(result, view)
        try:
            # The lease first: who has lost it asks Google for nothing.
            if due:
                begun = self._begin(due, view)
                events += [f"{item.node}: {item.action} ({item.why})" for item in due]
            elif changed and may:
                self.store.write(self.state)
            elif may or self.busy:
                self.store.renew(self.state)
            if may:
                begun += self._update(outdated)
            if Cause.PREEMPTION in may:
                self._sweep(leftovers, events)
        except UnreachableError as error:
            # What can't be written down isn't done.
            events.append(f"no action taken: {error}")
        keys = tuple(item.key for item in outdated)
        nodes = [
            (member, observed) for member in members if (observed := view.node(member.name, member.zone))
        ]
        nodes = [(item, observed) for item, observed in nodes if self.owner.has(item, observed)]
        return Observation(view, tuple(members), result, leftovers, events, begun, failures, keys, nodes)

    def renew(self) -> None:
        """Renew the lease if that is due; for long pauses between two steps."""
        with suppress(UnreachableError):
            self.store.renew(self.state)

    def leave(self) -> None:
        """Release the lease."""
        with suppress(UnreachableError):
            self.store.write(self.state, renew=False)

    def _placed(self, view: View, wanted: Sequence[Node] | None = None) -> list[Node]:
        placements = self.state.placements(view.at_s, LIST_LAG_S)
        return placed(self._desired if wanted is None else wanted, view, self.owner, placements)

    def _begin(self, due: Sequence[Decision], view: View) -> tuple[str, ...]:
        before = self.state.copy()
        everyone = [*self._desired, *self._others]
        requests = []
        for item in due:
            node = item.member
            self.state.begin_attempt(node.key, item.cause or Cause.NEW, view.at_s, item.instance)
            if item.action is Action.REPLACE:
                requests.append(NodeRequest(Verb.DELETE, node, item.instance, item.claim))
                continue
            placements = self.state.placements(view.at_s, LIST_LAG_S)
            if (
                node.member is not None
                and not node.together
                and placements.get(node.key) != (node.zone, node.name)
            ):
                node = in_zone(node, node.zone, view, everyone, placements)
            self.state.requested(node.key, node.zone, node.name)
            requests.append(NodeRequest(Verb.CREATE, node, generation=self.state.generation(node.key)))
        try:
            self.store.write(self.state)
        except UnreachableError:
            self.state = before
            raise
        for request in requests:
            self._running[request.node.key] = request
            self.actor.begin(request)
        return tuple(request.node.name for request in requests)

    def _outdated(self, decisions: Sequence[Decision], view: View) -> list[Node]:
        """Return members whose hosts would boot with earlier settings, except by a bundle that failed."""
        if self._spec is None:
            return []
        outdated = []
        for item in decisions:
            node, observed = item.member, view.node(item.node, item.zone)
            if (
                node.member is None
                or self.state.bundles.get(node.bundle_label)
                or item.action is not Action.LEAVE
                or observed is None
                or observed.state != "READY"
            ):
                continue
            spec, held = self._spec(node), self.state.refusal(node.key, node.key).holds(view.at_s)
            if spec not in (observed.labels.get("spec"), self._sent_spec.get(node.key)) and not held:
                outdated.append(node)
        return outdated

    def _update(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """Begin updates of members' metadata; a repeated request is harmless."""
        for node in nodes:
            assert self._spec is not None
            self._sent_spec[node.key] = self._spec(node)
            self._running[node.key] = NodeRequest(Verb.UPDATE, node)
            self.actor.begin(self._running[node.key])
        return tuple(node.name for node in nodes)

    def _note(
        self, answers: Sequence[Answer], now_s: float, events: list[str], failures: dict[str, Failure]
    ) -> bool:
        """Record answers, creations before refusals; return whether the state changed."""
        changed = False
        for answer in sorted(answers, key=lambda item: item.failure is not None):
            node, failure = answer.request.node, answer.failure
            self._running.pop(node.key, None)
            verb = answer.request.verb
            if failure is None:
                if verb is Verb.DELETE:
                    self.state.refusals.pop(node.key, None)  # what kept it from being deleted
                    if answer.done and node.key in self._blamed:
                        self.state.boot_failed(*self._blamed[node.key])
                        changed = True
                if verb is Verb.CREATE and node.member is None:  # by Pulumi, which has told its stack
                    self.owner = replace(self.owner, held={**(self.owner.held or {}), node.name: node.zone})
                if verb is Verb.CREATE or (verb is Verb.CHECK and answer.done):
                    self._made[node.key] = answer.operation
                continue
            if verb is Verb.CHECK and not answer.done and failure.kind is not Kind.MISSING:
                continue  # what became of the creation isn't known: asked again
            if verb is Verb.CHECK:
                self._made.pop(node.key, None)
            if verb is Verb.UPDATE:
                self._sent_spec.pop(node.key, None)
            if answer.spared:
                self.state.withdrawn(node.key)
            events.append(f"{node.name}: {failure.kind}: {failure.message}")
            failures[node.key] = failure
            # What keeps a node from being deleted says nothing of its zone.
            held = node.key if verb in (Verb.DELETE, Verb.UPDATE) else node.zone
            self.state.failed(node.key, held, failure, now_s, self._rng)
            changed = True
        return changed

    def _arrived(self, members: Sequence[Node], view: View, events: list[str]) -> bool:
        """Close the attempts whose nodes exist, and check the operations of the others."""
        changed = False
        for node in members:
            attempt, observed = self.state.open(node.key), view.node(node.name, node.zone)
            if attempt is None or not attempt.name or node.key in self._running:
                continue
            if observed and observed.instance != attempt.instance:
                if observed.state not in ON_THE_WAY:
                    self._made.pop(node.key, None)
                if observed.state == "READY":
                    self.state.succeeded(node.key, node.zone, view.at_s)
                    events.append(f"{node.name}: created")
                    changed = True
            elif node.key in self._made and (zone := view.zones.get(node.zone)) and zone.nodes is not None:
                if operation := self._made[node.key]:
                    request = NodeRequest(Verb.CHECK, node, operation=operation)
                    self._running[node.key] = request
                    self.actor.begin(request)
                else:
                    self._made.pop(node.key)  # asked for again: a creation finds its own node there
        return changed

    def _judge_bundles(self, decisions: Sequence[Decision], view: View) -> bool:
        """Record which bundles boot: one that failed and has booted nowhere is rolled out no further.

        A failure counts once it is proven and the node is deleted for it.
        """
        before = dict(self.state.bundles)
        self._blamed = {key: item for key, item in self._blamed.items() if key in self._running}
        for entry in decisions:
            observed = view.node(entry.node, entry.zone)
            bundle = observed.labels.get("bundle", "") if observed else ""
            if not bundle or entry.status is None:
                continue
            if entry.status.boot == "ready" or entry.status.work:
                self.state.booted(bundle)
            elif entry.claim is Claim.BOOT_FAILED and entry.status.stage in _OF_A_BUNDLE:
                self._blamed[entry.member.key] = bundle, f"{entry.node}: {entry.why}"
        return before != self.state.bundles

    def _in_hand(self, decision: Decision) -> Decision:
        key = decision.member.key
        if key not in self._running and key not in self._made:
            return decision
        verb = self._running[key].verb if key in self._running else Verb.CREATE
        if verb is Verb.UPDATE:
            return decision
        why = "being deleted, to be recreated" if verb is Verb.DELETE else "being brought back"
        return replace(decision, action=Action.WAIT, condition=Condition.RECOVERING, why=why)

    def _changes(self, decisions: Sequence[Decision]) -> list[str]:
        """Return a line for each condition that has changed since the last step."""
        before, self._conditions = self._conditions, {item.member.key: item.condition for item in decisions}
        return [
            f"{item.node}: {before[item.member.key]} -> {item.condition}"
            f"{f' ({item.why})' if item.why else ''}"
            for item in decisions
            if before.get(item.member.key, item.condition) != item.condition
        ]

    def _sweep(self, leftovers: Sequence[ObservedNode], events: list[str]) -> None:
        """Delete preempted orphans, which hold their names and quota."""
        for leftover in leftovers:
            if leftover.state in TAKEN_AWAY and leftover.name not in self._running:
                request = NodeRequest(Verb.DELETE, _left_over(leftover, self._desired))
                self._running[leftover.name] = request
                self.actor.begin(request)
                events.append(f"{leftover.name}: left over, {leftover.state}: deleted")


def _left_over(observed: ObservedNode, members: Sequence[Node]) -> Node:
    """Return an orphan as a node, for a request."""
    return replace(members[0], slice=observed.name, name=observed.name, zone=observed.zone, member=None)
