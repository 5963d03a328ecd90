"""Whatever a decision was made from: what lives and isn't named by it isn't deleted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from pulumi import automation

from fleet import stack
from fleet.failures import Failure, Kind
from fleet.google import AskedError
from fleet.stack import Stack
from fleet.state import Place, Seen, ZoneView
from infra import names
from tests.fleet.lab import LABELS

HERE, THERE = "us-central1-b", "us-east1-d"
NODES = ("a", "b", "c")


@dataclass
class Truth:
    """Google and a stack, as they are; a list that Google gives may be older.

    Attributes:
        nodes: state and number of each node by name, all in HERE; ERROR where Google doesn't answer.
        held: the members that the stack holds, by zone.
    """

    nodes: dict[str, tuple[str, str]]
    held: dict[str, str]
    deleted: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)

    def node(self, zone: str, name: str) -> Seen | None:
        state, instance = self.nodes.get(name, ("", ""))
        if state == "ERROR":
            raise AskedError(Failure(Kind.TRANSIENT, "unavailable"))
        return Seen(name, zone, state, instance, labels=LABELS) if state and zone == HERE else None

    def zone(self, zone: str) -> ZoneView:
        return ZoneView({})  # it lists nothing yet

    def destroy(self, target: Sequence[str], on_event: Callable[[Any], None], **_: Any) -> None:
        for urn in target:
            name = urn.rpartition("::")[2]
            self.deleted.append(name)
            self.held.pop(name)
            on_event(_ended(urn, automation.OpType.DELETE))

    def up(self, target: Sequence[str], on_event: Callable[[Any], None], **_: Any) -> None:
        for urn in target:
            if names.NODE_TYPE in urn:
                self.made.append(urn.rpartition("::")[2])
                on_event(_ended(urn, automation.OpType.CREATE))


def _ended(urn: str, op: automation.OpType) -> Any:
    return mock.Mock(diagnostic_event=None, res_outputs_event=mock.Mock(metadata=mock.Mock(op=op, urn=urn)))


def bring(truth: Truth, places: dict[str, Place], listed: Sequence[str] = NODES) -> dict[str, Failure | None]:
    members = [mock.Mock(zone=HERE) for _ in listed]
    for member, name in zip(members, listed, strict=True):
        member.name = name
    one = Stack.__new__(Stack)
    one.environment, one.root, one._stack = "dev", Path(), truth  # type: ignore[assignment]
    with (
        mock.patch.object(stack, "from_file"),
        mock.patch.object(stack, "nodes_of", return_value=members),
        mock.patch.object(stack, "Google", return_value=truth),
        mock.patch.object(stack, "placed", return_value={**truth.held}),
        mock.patch.object(stack, "known", return_value=frozenset(truth.held)),
        mock.patch.object(stack, "move", lambda _, zones, root: truth.moved.update(zones)),
    ):
        return one.bring(places)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Truth, dict[str, Place]]:
    """Any state of nodes, any stack, and decisions about the nodes of now or of another time."""
    state = st.sampled_from(
        ["", "READY", "READY", "PREEMPTED", "TERMINATED", "CREATING", "DELETING", "ERROR"]
    )
    nodes, held, places = {}, {}, {}
    for name in NODES:
        nodes[name] = draw(state), "7"
        if draw(st.booleans()):
            held[name] = HERE
        places[name] = Place(draw(st.sampled_from([HERE, THERE])), draw(st.sampled_from(["", "6", "7"])))
    return Truth(nodes, held), places


@given(cases())
def test_a_living_node_is_deleted_only_by_its_number(case: tuple[Truth, dict[str, Place]]) -> None:
    truth, places = case
    held = dict(truth.held)
    outcome = bring(truth, places)
    assert set(outcome) == set(NODES)
    for name, place in places.items():
        state, instance = truth.nodes[name]
        useless = state in ("", "PREEMPTED", "TERMINATED")
        named = state == "READY" and instance == place.instance
        assert (name in truth.deleted) == (name in held and (useless or named)), name
        assert (name in truth.made) == (name in truth.deleted or name not in held), name
        assert truth.moved.get(name) == (place.zone if name in truth.made else None)
        if name not in truth.made:
            lives_there = state == "READY" and place.zone == HERE
            assert (outcome[name] is None) == lives_there, name


def test_what_lives_in_another_zone_is_not_moved_but_said() -> None:
    truth = Truth({"a": ("READY", "8")}, {"a": HERE})
    found = bring(truth, {"a": Place(THERE, "7")})["a"]
    assert found is not None
    assert found.kind is Kind.EXISTS
    assert f"lives in {HERE}" in found.message
    assert (truth.deleted, truth.moved) == ([], {})


def test_what_the_settings_list_no_more_keeps_no_neighbour_from_being_made() -> None:
    truth = Truth({"a": ("", "")}, {"b": HERE})
    outcome = bring(truth, {"a": Place(HERE), "b": Place(HERE)}, listed=["a"])
    assert (truth.made, truth.deleted, outcome["a"]) == (["a"], [], None)
    refused = outcome["b"]
    assert refused is not None
    assert refused.kind is Kind.INVALID
