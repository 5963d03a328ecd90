"""Requests: a deletion is of the node of the decision, a creation recognizes its own node."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleet.model import Claim, ObservedNode
from fleet.proof import Attested
from fleet.zones import Answer, NodeRequest, Verb, Zones
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.slices.nodes import Node
from tests.fleet.conftest import OWNER, fleet, labels
from tests.limits import HANG_S

NOW_S = 1e6
MEMBER, NEIGHBOUR = fleet(2)


class Api:
    """API with one node, and its requests."""

    def __init__(self, state: str = "READY", instance: str = "7", stack: str = OWNER.stack):
        self.observed: ObservedNode | None = ObservedNode(
            MEMBER.name, MEMBER.zone, state, instance, 1.0, labels(MEMBER, stack), "HEALTHY"
        )
        self.workers: list[Attested] = []
        self.then: list[ObservedNode | None] = []  # what it is from the second question on
        self.body: Mapping[str, Any] = {}
        self.ended = True
        self.fails: dict[str, Failure] = {}
        self.requests: list[str] = []

    def _note(self, what: str) -> None:
        self.requests.append(what)
        if what in self.fails:
            raise RequestError(self.fails[what])

    def node(self, zone: str, name: str) -> ObservedNode | None:
        self._note("node")
        observed, self.observed = self.observed, self.then.pop(0) if self.then else self.observed
        return observed

    def create(self, zone: str, name: str, body: Mapping[str, Any]) -> str:
        self._note("create")
        self.body = body
        return "operations/1"

    def delete(self, zone: str, name: str) -> None:
        self._note("delete")

    def update(self, zone: str, name: str, body: Mapping[str, Any]) -> None:
        self._note("update")
        self.body = body

    def operation(self, name: str) -> tuple[bool, Failure | None]:
        self._note("operation")
        return self.ended, None

    def attested(self, zone: str, name: str) -> list[Attested]:
        self._note("attested")
        return self.workers


def zones(api: Any) -> Zones:
    return Zones(api, OWNER, lambda node: {"labels": labels(node)}, lambda: NOW_S, 1800.0)


def send(api: Api, verb: Verb, node: Node = MEMBER, claim: Claim = Claim.NONE, instance: str = "7") -> Answer:
    item = zones(api)
    item.begin(NodeRequest(verb, node, instance, claim, "operations/1", generation=5))
    item.wait()
    (answer,) = item.ended()
    assert item.ended() == [], "each answer once"
    return answer


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED"])
@pytest.mark.parametrize("instance", ["7", "8", ""])
def test_what_google_took_away_is_deleted_if_it_is_what_was_decided_about(state: str, instance: str) -> None:
    api = Api(state)
    answer = send(api, Verb.DELETE, claim=Claim.BOOT_FAILED, instance=instance)
    assert not answer.done, "it doesn't go for the claim"
    assert answer.spared == (instance != "7")
    assert ("delete" in api.requests) == (instance == "7")


@pytest.mark.parametrize("instance", ["6", "8", ""])
@pytest.mark.parametrize("later", [True, False])
def test_a_node_that_was_made_anew_while_its_workers_were_asked_stays(instance: str, later: bool) -> None:
    """The guest attributes may be of either node."""
    api = Api()
    api.workers, node = [Attested("failed", NOW_S - 9)], api.observed
    assert node is not None
    other = replace(node, instance=instance) if instance else None
    api.observed, api.then = (node, [other]) if later else (other, [node])
    answer = send(api, Verb.DELETE, claim=Claim.BOOT_FAILED)
    assert "delete" not in api.requests
    assert answer.spared == bool(instance or later), "or it is gone"


def test_a_named_slice_is_deleted_without_a_label_of_the_stack_that_holds_it() -> None:
    api = Api("PREEMPTED", stack="")
    assert send(api, Verb.DELETE, replace(MEMBER, member=None)).failure is None
    assert api.requests == ["node", "delete"]


@pytest.mark.parametrize(
    ("health", "silent_s", "goes"),
    [("TIMEOUT", 600.0, True), ("HEALTHY", 600.0, False), ("HEALTHY", 1801.0, True)],
)
def test_silence_is_proven_by_googles_health_or_by_time(health: str, silent_s: float, goes: bool) -> None:
    api = Api()
    assert api.observed is not None
    api.observed, api.workers = replace(api.observed, health=health), [Attested("ready", NOW_S - silent_s)]
    assert send(api, Verb.DELETE, claim=Claim.SILENT).done == goes == ("delete" in api.requests)


@pytest.mark.parametrize(
    "state", ["READY", "CREATING", "STARTING", "REPAIRING", "STOPPED", "HIDDEN", "", "NEW"]
)
def test_what_lives_is_not_deleted_without_a_claim(state: str) -> None:
    """It came back between the list and the request."""
    api = Api(state)
    answer = send(api, Verb.DELETE)
    assert "delete" not in api.requests
    assert answer.spared
    assert answer.failure is not None
    assert "lives, and is left alone" in answer.failure.message
    assert answer.failure.kind is Kind.TRANSIENT, "it is asked again"


def test_a_proven_claim_deletes_that_node_and_no_newer_one() -> None:
    api = Api()
    api.workers = [Attested("failed", NOW_S - 9)]
    assert send(api, Verb.DELETE, claim=Claim.BOOT_FAILED).done
    assert api.requests == ["node", "attested", "node", "delete"], "its id stands on both sides"
    for item in (Api(instance="8"), Api("REPAIRING")):
        item.workers = api.workers
        assert send(item, Verb.DELETE, claim=Claim.BOOT_FAILED).spared
        assert "delete" not in item.requests


@pytest.mark.parametrize("what", ["node", "attested"])
def test_who_cannot_be_asked_is_not_deleted(what: str) -> None:
    api = Api()
    api.fails[what] = Failure(Kind.TRANSIENT, "unavailable")
    answer = send(api, Verb.DELETE, claim=Claim.SILENT)
    assert answer.failure == api.fails[what]
    assert not answer.spared
    assert "delete" not in api.requests


@pytest.mark.parametrize("stack", ["another", ""])
@pytest.mark.parametrize("state", ["READY", "PREEMPTED"])
def test_a_node_of_another_stack_is_not_deleted_even_if_it_was_taken_away(state: str, stack: str) -> None:
    api = Api(state, stack=stack)
    api.workers = [Attested("failed", NOW_S - 9)]
    answer = send(api, Verb.DELETE, claim=Claim.BOOT_FAILED)
    assert answer.spared
    assert api.requests == ["node"]


def test_what_is_gone_or_going_needs_no_deletion() -> None:
    for state in ("DELETING", "STOPPING", "HIDING"):
        api = Api(state)
        assert send(api, Verb.DELETE) == Answer(
            NodeRequest(Verb.DELETE, MEMBER, "7", Claim.NONE, "operations/1", 5)
        )
        assert api.requests == ["node"]
    api.observed = None
    assert send(api, Verb.DELETE).failure is None


@pytest.mark.parametrize("left", ["PREEMPTED", "DELETING", "", "newer"])
def test_a_deletion_whose_answer_was_lost_is_under_way_where_the_node_goes_or_is_gone(left: str) -> None:
    class Lossy(Api):
        def delete(self, zone: str, name: str) -> None:
            assert self.observed is not None
            newer = replace(self.observed, state="READY", instance="8")
            self.observed = newer if left == "newer" else replace(self.observed, state=left) if left else None
            super().delete(zone, name)

    api = Lossy("PREEMPTED")
    api.fails["delete"] = Failure(Kind.TRANSIENT, "the node is DELETING")
    failure = send(api, Verb.DELETE).failure
    assert api.requests == ["node", "delete", "node"]
    assert failure == (api.fails["delete"] if left == "PREEMPTED" else None)


def test_a_creation_whose_answer_was_lost_finds_its_own_node_there() -> None:
    api = Api()
    assert send(api, Verb.CREATE).operation == "operations/1"
    assert api.body["labels"]["generation"] == "5"
    api.fails["create"] = Failure(Kind.EXISTS, "already exists")
    answer = send(api, Verb.CREATE)
    assert (answer.failure, answer.operation) == (None, "")
    api.observed = None  # it goes just now: the next look says more
    assert send(api, Verb.CREATE).failure is None


def test_a_creation_that_finds_somebody_elses_node_there_fails() -> None:
    for result in (
        labels(MEMBER, "another"), labels(NEIGHBOUR), {**labels(MEMBER), "fleet": "other"},
    ):  # fmt: skip
        other = Api()
        other.fails["create"] = Failure(Kind.EXISTS, "already exists")
        assert other.observed is not None
        other.observed = replace(other.observed, labels=result)
        failure = send(other, Verb.CREATE).failure
        assert failure is not None
        assert (failure.kind, "isn't this member" in failure.message) == (Kind.EXISTS, True)


def test_a_refused_creation_is_what_google_said() -> None:
    api = Api()
    api.fails["create"] = Failure(Kind.QUOTA, "no more", "TPUV6E")
    assert send(api, Verb.CREATE).failure == api.fails["create"]


def test_a_creation_that_cannot_be_asked_about_is_neither_over_nor_refused() -> None:
    api = Api()
    api.fails["operation"] = Failure(Kind.TRANSIENT, "unavailable")
    assert not send(api, Verb.CHECK).done
    del api.fails["operation"]
    for over in (True, False):
        api.ended = over
        assert send(api, Verb.CHECK).done == over


def test_a_creation_that_failed_is_over_with_what_it_failed_with() -> None:
    class Failed(Api):
        def operation(self, name: str) -> tuple[bool, Failure | None]:
            return True, Failure(Kind.STOCK_OUT, "none")

    answer = send(Failed(), Verb.CHECK)
    assert (answer.done, answer.failure) == (True, Failure(Kind.STOCK_OUT, "none"))


def test_new_settings_reach_our_node_alone_and_keep_its_generation() -> None:
    api = Api()
    assert api.observed is not None
    api.observed = replace(api.observed, labels={**api.observed.labels, "generation": "3"})
    assert send(api, Verb.UPDATE).failure is None
    assert (api.requests, api.body["labels"]["generation"]) == (["node", "update"], "3")
    other = Api(stack="another")
    assert send(other, Verb.UPDATE).failure is None
    assert other.requests == ["node"]


def test_a_zone_that_does_not_answer_keeps_no_other_waiting() -> None:
    free = threading.Event()

    class Slow(Api):
        def create(self, zone: str, name: str, body: Mapping[str, Any]) -> str:
            assert zone != MEMBER.zone or free.wait(HANG_S)
            return zone

    item = zones(Slow())
    begun = [replace(MEMBER, name=f"n{number}") for number in range(20)]
    for node in (*begun, NEIGHBOUR):
        item.begin(NodeRequest(Verb.CREATE, node))
    while not (quick := item.ended()):
        pass
    assert [answer.operation for answer in quick] == [NEIGHBOUR.zone]
    free.set()
    item.wait()
    assert len(item.ended()) == 20


def test_requests_under_way_are_waited_for_though_one_died_of_something_else() -> None:
    """A count of a killed controller's requests must include its last one."""
    free = threading.Event()

    class Dying(Api):
        def create(self, zone: str, name: str, body: Mapping[str, Any]) -> str:
            if name == MEMBER.name:
                raise KeyboardInterrupt
            assert free.wait(HANG_S)
            return super().create(zone, name, body)

    api = Dying()
    item = zones(api)
    item.begin(NodeRequest(Verb.CREATE, MEMBER))
    while not item._running[0].done():
        pass
    item.begin(NodeRequest(Verb.CREATE, NEIGHBOUR))
    with pytest.raises(KeyboardInterrupt):
        item.ended()
    threading.Timer(0.2, free.set).start()
    item.wait()
    assert api.requests == ["create"]
