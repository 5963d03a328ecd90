"""The reconciler: observe, decide, record, act. The same code against Google and against a simulated cloud.

    controller = Controller(members, google, actor, store, limits, owner)
    observation = controller.step()      # again and again; the caller chooses how often

A step waits for no operation: a later step sees its effect in the nodes themselves. An attempt is written to
the store before its first request, and the nodes show how far it came, so that a controller that is killed at
any moment is followed by one that continues. A controller without the lease only observes.
"""

import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from types import MappingProxyType

from fleet.bundles import judged
from fleet.controller_state import ControllerState
from fleet.decide import LIST_LAG_S, Limits, decide, held
from fleet.errors import FleetError
from fleet.events import Events
from fleet.google import Google
from fleet.ids import RecordedNode
from fleet.members import in_zone, left_over, orphans, placed, requested_places
from fleet.model import (
    ON_THE_WAY,
    TAKEN_AWAY,
    Action,
    Cause,
    Condition,
    Decision,
    ObservedNode,
    Owner,
    View,
)
from fleet.observation import Observation
from fleet.recorded import FleetRecords
from fleet.store import BucketStore, LeaseHeldError, UnreachableError
from fleet.zones import Actor, Answer, NodeRequest, Verb
from infra.google.failures import Failure, Kind
from infra.slices.nodes import Node


def busy_s(members: int) -> float:
    """Return the seconds between two observations while requests are under way."""
    return max(10.0, members / 16)  # an observation lists every member


class Controller:
    """Reconciler of some members.

    Attributes:
        leads: it holds the lease, and acts; else it observes, with the state of the controller that acts.
    """

    def __init__(
        self,
        members: Sequence[Node],
        google: Google,
        actor: Actor,
        store: BucketStore,
        limits: Limits,
        owner: Owner,
        rng: random.Random | None = None,
        everyone: Sequence[Node] = (),
        zones: Collection[str] = (),
        spec: Callable[[Node], str] | None = None,
        lead: bool = True,
        manual: bool = False,
        records: FleetRecords | None = None,
        unread: Mapping[str, str] = MappingProxyType({}),
        refused: Callable[[Sequence[Node]], Mapping[str, str]] | None = None,
    ):
        """Create a controller of `members`; this stack's nodes outside `members` and `everyone` are orphans.

        Args:
            members: as the settings spread them.
            google: source of observations.
            actor: executor of requests.
            store: of the state and of the lease.
            limits: of preemptions and failures.
            owner: identifies this stack's nodes.
            rng: for pauses.
            everyone: all members of the settings.
            zones: further zones to observe.
            spec: label of a member's metadata; a node with another one is updated.
            lead: take the lease at once.
            manual: a user requests the attempts: zones that refused are retried.
            records: of the ad hoc fleets; what they don't want is neither created nor changed.
            unread: fleets whose record can't be followed, with the reason.
            refused: reads which of some members may not be created now, by key, with the reason.

        Raises:
            FleetError: another controller holds the lease, or the store can't be read, if `lead`.
        """
        self._google, self.actor, self._store = google, actor, store
        self._limits, self.owner = limits, owner
        self._rng, self._manual = rng or random.Random(), manual
        self._more = frozenset(zones)
        self.leads, self.state = False, ControllerState()
        self._running: dict[str, NodeRequest] = {}  # by member
        self._made: dict[str, str] = {}  # operation of each creation that isn't over, by member
        self._sent_spec: dict[str, str] = {}  # by member, the last metadata that was sent
        self._blamed: dict[str, tuple[str, str]] = {}  # by member, the bundle that failed on it, and how
        self._events = Events()
        self.follow(members, everyone, spec, records, unread, refused)
        if lead:
            self.lead()

    def follow(
        self,
        members: Sequence[Node],
        everyone: Sequence[Node] = (),
        spec: Callable[[Node], str] | None = None,
        records: FleetRecords | None = None,
        unread: Mapping[str, str] = MappingProxyType({}),
        refused: Callable[[Sequence[Node]], Mapping[str, str]] | None = None,
    ) -> None:
        """Replace the members to keep."""
        keys = {member.key for member in members}
        self._desired = [*members]
        self._others = [member for member in everyone if member.key not in keys]
        self._spec, self._records, self._unread, self._refused = spec, records, unread, refused

    def lead(self) -> None:
        """Take the lease, and act from now on. Raises LeaseHeldError, or UnreachableError."""
        self._load(self._store.read())
        self.leads = True

    def leave(self) -> None:
        """Release the lease, if held and still ours."""
        if self.leads:
            self.leads = False
            with suppress(FleetError):
                self._store.write(self.state, renew=False)

    def renew(self) -> None:
        """Renew the lease if it is held and due. Raises LeaseHeldError, or UnreachableError."""
        if self.leads:
            self._store.renew(self.state)

    def forget(self, keys: Collection[str]) -> None:
        """Record that members are deleted on purpose, so that none is recovered.

        Raises LeaseHeldError, or UnreachableError.
        """
        self.state.deleted(keys)
        self._store.write(self.state)

    @property
    def _zones(self) -> list[str]:
        """Zones of the settings, and former zones in which members live."""
        named = {zone for member in self._desired for zone in (*member.places, *member.spread)}
        attempts = (
            attempt for member in self._desired for attempt in self.state.attempts.get(member.key, ())[-2:]
        )
        recorded = {entry.zone for entry in self.owner.recorded.values() if entry.zone}
        return sorted(named | self._more | recorded | {item.zone for item in attempts if item.name})

    def note(self, text: str, level: int = logging.INFO, topic: str = "") -> None:
        """Add an event to the next observation and to the log, unless it repeats the last of its topic."""
        self._events.once(text, level, topic)

    def _member_event(self, text: str, member: Node, action: str, level: int = logging.INFO) -> None:
        attempt = len(self.state.attempts.get(member.key, ()))
        self._events.of_member(text, member, action, attempt, level)

    @property
    def busy(self) -> bool:
        """True while a request is under way."""
        return bool(self._running or self._made)

    @property
    def under_way(self) -> tuple[str, ...]:
        """Members with a request under way."""
        return tuple({**self._running, **self._made})

    def step(self, only: Collection[str] | None = None) -> Observation:
        """Observe, decide, and if this controller leads, begin the requests that follow.

        Args:
            only: keys of the members that may be recovered; None: all.

        Raises:
            LeaseHeldError: another controller has taken the lease.
        """
        if not self.leads:
            self._load(self._store.peek())
        # Answers before the observation, which then shows the effect of each request.
        answers = self.actor.ended()
        view = self._google.observe(self._zones)
        if view.statuses is not None or not self.state.listed_s:
            self.state.listed_s = view.at_s
        self._events.unread(view.unread)

        if self._records:  # as they are in this look
            self._records.read()
            self.owner = self._records.of(self.owner)

        # Record finished requests; a refused member may be placed in another zone after that.
        failures: dict[str, Failure] = {}
        changed = self._note_answers(answers, view.at_s, failures)
        members = self._placed(view)
        changed |= self._note_arrivals(members, view)
        self._note_ids(members, view)

        decisions = decide(members, view, self.state, self._limits, self.owner)
        bundles = dict(self.state.bundles)
        blamed = {key: item for key, item in self._blamed.items() if key in self._running}
        self._blamed = blamed | judged(decisions, view, self.state)
        changed |= bundles != self.state.bundles
        unwanted = {**self._unread, **(self._records.unwanted if self._records else {})}
        decisions = [held(self._in_hand(decision), unwanted) for decision in decisions]
        decisions = self._allowed(decisions)
        for decision, text in self._events.changes(decisions):
            self._member_event(text, decision.member, decision.action)
        # Nodes of a fleet whose record can't be followed are no orphans.
        unread = unwanted.keys() - {member.slice for member in members}
        leftovers = [
            orphan for orphan in orphans([*members, *self._placed(view, self._others)], view, self.owner)
            if orphan.labels.get("fleet") not in unread
        ]  # fmt: skip
        outdated = self._outdated(decisions, view)
        begun = self._act(decisions, view, only, outdated, leftovers, changed) if self.leads else ()

        nodes = [
            (member, observed)
            for member in members
            if (observed := view.node(member.name, member.zone)) and self.owner.has(member, observed)
        ]
        keys = tuple(item.member.key for item in outdated)
        events = self._events.taken()
        return Observation(
            view, tuple(members), decisions, leftovers, events, begun, failures, keys, nodes, unwanted,
            whole=not self._others and not unwanted,
        )  # fmt: skip

    def _allowed(self, decisions: list[Decision]) -> list[Decision]:
        """Return the decisions, without creations that are refused now."""
        due = [decision.member for decision in decisions if decision.action is Action.CREATE]
        if not due or not self.leads or self._refused is None:
            return decisions
        reasons = self._refused(due)
        self._events.once("; ".join(dict.fromkeys(reasons.values())), logging.WARNING, "refused")
        return [
            replace(decision, action=Action.HOLD, why=f"{decision.why}; {reasons[decision.member.key]}")
            if decision.member.key in reasons
            else decision
            for decision in decisions
        ]

    def _load(self, state: ControllerState) -> None:
        self.state = state
        if self._manual:
            state.retry_now()

    def _act(
        self,
        decisions: Sequence[Decision],
        view: View,
        only: Collection[str] | None,
        outdated: Sequence[Decision],
        leftovers: Sequence[ObservedNode],
        changed: bool,
    ) -> tuple[str, ...]:
        """Renew the lease, then begin what was decided; return the nodes of begun requests."""
        due = [
            decision
            for decision in decisions
            if decision.action in (Action.CREATE, Action.REPLACE)
            and (only is None or decision.member.key in only)
        ]
        begun: tuple[str, ...] = ()
        try:
            # The lease first: a controller that has lost it sends no request to Google.
            if due:
                begun = self._begin(due, view)
                for decision in [item for item in due if item.member.key in self._running]:
                    text = f"{decision.node}: {decision.action} ({decision.why})"
                    self._member_event(text, decision.member, decision.action)
            elif changed:
                self._store.write(self.state)
            else:
                self._store.renew(self.state)
            begun += self._update(outdated)
            self._sweep(leftovers)
        except UnreachableError as error:  # what can't be recorded isn't done
            self._events.add(f"no action taken: {error}", logging.WARNING)
        except LeaseHeldError:
            self.leads = False
            raise
        return begun

    def _placed(self, view: View, wanted: Sequence[Node] | None = None) -> list[Node]:
        return placed(self._desired if wanted is None else wanted, view, self.owner, self._placements(view))

    def _placements(self, view: View) -> dict[str, tuple[str, str]]:
        return requested_places(self.state.placements(view, LIST_LAG_S), self.owner, view)

    def _note_ids(self, members: Sequence[Node], view: View) -> None:
        if self._records:
            pending = {member.key for member in members if self.state.open(member.key)} | {*self._running}
            for problem in self._records.note(members, view, self.owner, pending, write=self.leads):
                self._events.once(problem, logging.WARNING, "records")
            self.owner = self._records.of(self.owner)

    def record_ids(self, view: View) -> Collection[str]:
        """Enter ids before a fleet ends, also of nodes that others made; return problems.

        `view`: of some zones.
        """
        if not self._records:
            return ()
        self._records.read()
        self.owner = self._records.of(self.owner)
        return self._records.enter(self._records.seen(self._placed(view), view, self.owner, ())).values()

    def own_places(self, view: View) -> set[tuple[str, str]]:
        """Return zones and names of the members' own nodes in a view of some zones."""
        return {
            (member.zone, member.name)
            for member in self._placed(view)
            if (observed := view.node(member.name, member.zone)) and self.owner.has(member, observed)
        }

    def _begin(self, due: Sequence[Decision], view: View) -> tuple[str, ...]:
        before = deepcopy(self.state)
        everyone = [*self._desired, *self._others]
        requests = []
        entries: dict[str, RecordedNode] = {}
        for item in due:
            node = item.member
            self.state.begin_attempt(node.key, item.cause or Cause.NEW, view.at_s, item.instance)
            entry = self.owner.recorded.get(node.key)
            if item.action is Action.REPLACE:
                if entry:
                    entries[node.key] = entry.at(node.zone, node.name)
                requests.append(NodeRequest(Verb.DELETE, node, item.instance, item.claim))
                continue
            placements = self._placements(view)
            if (
                node.member is not None
                and not node.together
                and placements.get(node.key) != (node.zone, node.name)
            ):
                node = in_zone(node, node.zone, view, everyone, placements, self.owner)
            self.state.requested(node.key, node.zone, node.name)
            if entry:  # others of this look keep off its place
                entries[node.key] = entry.at(node.zone, node.name)
                self.owner = replace(self.owner, recorded={**self.owner.recorded, **entries})
            requests.append(NodeRequest(Verb.CREATE, node, generation=self.state.generation(node.key)))
        try:
            self._store.write(self.state)
        except UnreachableError:
            self.state = before
            if self._records:
                self.owner = self._records.of(self.owner)
            raise
        requests = self._entered(requests, entries, before)
        for request in requests:
            self._running[request.node.key] = request
            self.actor.begin(request)
        return tuple(request.node.name for request in requests)

    def _entered(
        self, requests: list[NodeRequest], entries: Mapping[str, RecordedNode], before: ControllerState
    ) -> list[NodeRequest]:
        """Enter requests in the records of their fleets; return those that may be sent."""
        if not self._records:
            return requests
        refused = self._records.enter(entries)
        self.owner = self._records.of(self.owner)
        for problem in refused.values():
            self._events.add(f"no action taken: {problem}", logging.WARNING)
        for request in requests:
            if request.node.slice in refused:
                self.state.attempts[request.node.key] = before.attempts.get(request.node.key, [])
        return [request for request in requests if request.node.slice not in refused]

    def _outdated(self, decisions: Sequence[Decision], view: View) -> list[Decision]:
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
                outdated.append(item)
        return outdated

    def _update(self, outdated: Sequence[Decision]) -> tuple[str, ...]:
        """Begin updates of members' metadata; a repeated request is harmless."""
        for item in outdated:
            assert self._spec is not None
            key = item.member.key
            self._sent_spec[key] = self._spec(item.member)
            self._running[key] = NodeRequest(Verb.UPDATE, item.member, item.instance)
            self.actor.begin(self._running[key])
        return tuple(item.node for item in outdated)

    def _note_answers(self, answers: Sequence[Answer], now_s: float, failures: dict[str, Failure]) -> bool:
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
            text = f"{node.name}: {failure.kind}: {failure.message}"
            self._member_event(text, node, verb, logging.WARNING)
            failures[node.key] = failure
            # What keeps a node from being deleted says nothing of its zone.
            held = node.key if verb in (Verb.DELETE, Verb.UPDATE) else node.zone
            self.state.failed(node.key, held, failure, now_s, self._rng)
            changed = True
        return changed

    def _note_arrivals(self, members: Sequence[Node], view: View) -> bool:
        """Close the attempts whose nodes exist, and check the operations of the others."""
        changed = False
        for node in members:
            attempt, observed = self.state.open(node.key), view.node(node.name, node.zone)
            if attempt is None or not attempt.name or node.key in self._running:
                continue
            own = observed and (node.member is None or self.owner.has(node, observed))
            if observed and own and observed.instance != attempt.instance:
                if observed.state not in ON_THE_WAY:
                    self._made.pop(node.key, None)
                if observed.state == "READY":
                    self.state.succeeded(node.key, node.zone, view.at_s)
                    self._member_event(f"{node.name}: created", node, Verb.CREATE)
                    changed = True
            elif node.key in self._made and (zone := view.zones.get(node.zone)) and zone.nodes is not None:
                if operation := self._made[node.key]:
                    request = NodeRequest(Verb.CHECK, node, operation=operation)
                    self._running[node.key] = request
                    self.actor.begin(request)
                else:
                    self._made.pop(node.key)  # asked for again: a creation finds its own node there
        return changed

    def _in_hand(self, decision: Decision) -> Decision:
        key = decision.member.key
        if key not in self._running and key not in self._made:
            return decision
        verb = self._running[key].verb if key in self._running else Verb.CREATE
        if verb is Verb.UPDATE:
            return decision
        if verb is Verb.CREATE and decision.condition is Condition.ABSENT:
            return replace(decision, action=Action.WAIT, condition=Condition.STARTING, why="being created")
        why = "being deleted, to be recreated" if verb is Verb.DELETE else "being brought back"
        return replace(decision, action=Action.WAIT, condition=Condition.RECOVERING, why=why)

    def _sweep(self, leftovers: Sequence[ObservedNode]) -> None:
        """Delete preempted orphans, which hold their names and quota.

        One of a record that isn't followed here may be somebody else's by that record.
        """
        followed = {None, *(entry.record for entry in self.owner.recorded.values())}
        for leftover in leftovers:
            if leftover.labels.get("record") not in followed:
                continue
            if leftover.state in TAKEN_AWAY and leftover.name not in self._running and self._desired:
                node = left_over(leftover, self._desired)
                self._running[leftover.name] = NodeRequest(Verb.DELETE, node, leftover.instance)
                self.actor.begin(self._running[leftover.name])
                text = f"{leftover.name}: left over, {leftover.state}: deleted"
                self._member_event(text, node, Verb.DELETE)
