"""Requests to Google for members: a few threads for each zone, independent of other zones.

Every request may be repeated: a deletion applies to the node of the decision and to no other, a creation that
finds a node checks its owner. The next observation shows the effect of a request; only the operation of a
creation is polled, for its failure.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from fleet.google import Google
from fleet.model import GOING, TAKEN_AWAY, Claim, ObservedNode, Owner
from fleet.proof import objection
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.slices.nodes import Node

_AT_ONCE = 8  # requests of one zone
_MADE_SINCE = "it was made since that was decided"


class Verb(StrEnum):
    """Kind of a request."""

    DELETE = "delete"
    CREATE = "create"
    UPDATE = "update"  # metadata and labels, which hosts take over at their next boot
    CHECK = "check"  # what became of a creation whose node isn't there


@dataclass(frozen=True)
class NodeRequest:
    """A request for a member.

    Attributes:
        verb: of the request.
        node: the member, with zone and name.
        instance: id of the node that may be deleted or updated; empty for a creation.
        claim: to be proven before that.
        operation: of the creation that is checked.
        generation: label of the node that is created.
    """

    verb: Verb
    node: Node
    instance: str = ""
    claim: Claim = Claim.NONE
    operation: str = ""
    generation: int = 0


@dataclass(frozen=True)
class Answer:
    """Answer to a request: a failure, or the operation that it began.

    Attributes:
        done: the checked operation is over, or the node is being deleted for its claim.
        spared: the node is left alone, without a deletion.
    """

    request: NodeRequest
    failure: Failure | None = None
    operation: str = ""
    done: bool = False
    spared: bool = False


class Actor(Protocol):
    """Executor of requests; `begin` returns at once."""

    def begin(self, request: NodeRequest) -> None:
        """Begin a request."""
        ...

    def ended(self) -> list[Answer]:
        """Return the answers since the last call."""
        ...


class Zones:
    """Requests under way, in each zone a few at a time."""

    def __init__(
        self,
        google: Google,
        owner: Owner,
        body: Callable[[Node], Mapping[str, Any]],
        now: Callable[[], float],
        heartbeat_timeout_s: float,
    ):
        """Create the requests' threads; `body` renders the request body that creates a member."""
        self._google, self._owner, self._body = google, owner, body
        self._now, self._heartbeat_timeout_s = now, heartbeat_timeout_s
        self._workers: dict[str, ThreadPoolExecutor] = {}
        self._running: list[Future[Answer]] = []

    def begin(self, request: NodeRequest) -> None:
        """Send a request, in its zone's turn."""
        zone = request.node.zone
        if zone not in self._workers:
            self._workers[zone] = ThreadPoolExecutor(_AT_ONCE, f"zone {zone}")
        self._running.append(self._workers[zone].submit(self._answer, request))

    def ended(self) -> list[Answer]:
        """Return the answers since the last call."""
        done = {item for item in self._running if item.done()}
        result, self._running = self._running, [item for item in self._running if item not in done]
        return [item.result() for item in result if item in done]

    def wait(self) -> None:
        """Wait until every request has its answer."""
        for item in self._running:
            item.exception()

    def _answer(self, request: NodeRequest) -> Answer:
        send = {
            Verb.DELETE: self._delete, Verb.CREATE: self._create, Verb.UPDATE: self._update,
            Verb.CHECK: self._check,
        }[request.verb]  # fmt: skip
        try:
            return send(request)
        except RequestError as error:
            return Answer(request, error.failure)

    def _delete(self, request: NodeRequest) -> Answer:
        """Delete a node after reading it again: a decision is as old as its list."""
        node = request.node
        observed = self._google.node(node.zone, node.name)
        if observed is None or observed.state in GOING:
            return Answer(request)
        if node.member is not None and not self._owner.owns(observed):
            why = f"{node.name} isn't of this stack any more: left alone"
            return Answer(request, Failure(Kind.EXISTS, why), spared=True)
        if observed.instance != request.instance:
            failure = Failure(Kind.TRANSIENT, f"{node.name} is left alone: {_MADE_SINCE}")
            return Answer(request, failure, spared=True)
        if observed.state not in TAKEN_AWAY and (why := self._objection(request, observed)):
            failure = Failure(Kind.TRANSIENT, f"{node.name} lives, and is left alone: {why}")
            return Answer(request, failure, spared=True)
        try:
            self._google.delete(node.zone, node.name)
        except RequestError:  # its answer alone may be lost
            left = self._google.node(node.zone, node.name)
            if left and left.instance == observed.instance and left.state not in GOING:
                raise
        return Answer(request, done=observed.state not in TAKEN_AWAY)

    def _objection(self, request: NodeRequest, observed: ObservedNode) -> str:
        timeout_s = self._heartbeat_timeout_s
        return unproven(self._google, observed, request.instance, request.claim, self._now(), timeout_s)

    def _create(self, request: NodeRequest) -> Answer:
        node, body = request.node, dict(self._body(request.node))
        body["labels"] = {**body["labels"], "generation": str(request.generation)}
        try:
            return Answer(request, operation=self._google.create(node.zone, node.name, body))
        except RequestError as error:
            if error.failure.kind is not Kind.EXISTS:
                raise
        observed = self._google.node(node.zone, node.name)
        member = {key: body["labels"][key] for key in ("fleet", "member", "record") if key in body["labels"]}
        if observed is None or (self._owner.owns(observed) and member.items() <= observed.labels.items()):
            return Answer(request)  # an earlier request of ours whose answer was lost
        why = f"{node.name} is there, and isn't this member: left alone"
        return Answer(request, Failure(Kind.EXISTS, why))

    def _update(self, request: NodeRequest) -> Answer:
        node = request.node
        observed = self._google.node(node.zone, node.name)
        if observed and self._owner.owns(observed) and observed.instance == request.instance:
            body = self._body(node)
            labels = {**body["labels"], "generation": observed.labels.get("generation", "0")}
            self._google.update(node.zone, node.name, {**body, "labels": labels})
        return Answer(request)

    def _check(self, request: NodeRequest) -> Answer:
        done, failure = self._google.operation(request.operation)
        return Answer(request, failure, done=done)


def unproven(
    google: Google,
    observed: ObservedNode,
    instance: str,
    claim: Claim,
    now_s: float,
    heartbeat_timeout_s: float,
) -> str:
    """Return why a claim about a living node isn't proven; empty if it is. Raises RequestError.

    Args:
        google: client of the project.
        observed: the node as read just now.
        instance: id of the node that the claim is about.
        claim: to be proven by its workers or by its health.
        now_s: the present.
        heartbeat_timeout_s: time after which a worker that had reported counts as silent.
    """
    if observed.instance != instance:
        return _MADE_SINCE
    if observed.state != "READY":
        return f"it is {observed.state}"
    workers = google.attested(observed.zone, observed.name)
    # The attributes are of the node whose id stands on both sides.
    again = google.node(observed.zone, observed.name)
    if again is None or again.instance != instance:
        return _MADE_SINCE
    return objection(claim, workers, observed.health, now_s, heartbeat_timeout_s)
