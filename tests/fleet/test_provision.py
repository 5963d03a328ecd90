"""Which members a stack holds, and whose failure is whose, from what Pulumi says."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pulumi import automation

from fleet import provision, stack
from fleet.failures import Kind
from fleet.provision import Outcome, known
from fleet.stack import Stack
from fleet.state import Place
from infra import names
from infra.nodes import nodes
from infra.settings import from_file
from tests.infra.conftest import FakePulumi, node_state


def test_the_stack_holds_what_its_state_has_and_what_is_being_deleted_is_no_node(
    pulumi_cli: FakePulumi, tmp_path: Path
) -> None:
    old = node_state("b", "PREEMPTED", component=False, delete=True)
    resources = [*node_state("a", "READY"), *old, *node_state("c", None)]
    pulumi_cli.answer("stack export", {"deployment": {"resources": resources}})
    assert known("dev", tmp_path) == {"a"}
    assert [one["urn"] for one in resources[:2]] == [names.slice_urn("dev", "a"), names.node_urn("dev", "a")]


def heard(*events: Any, fails: str = "") -> Outcome:
    """The outcome of bringing a and b, where Pulumi says all that and then ends."""
    one = Stack.__new__(Stack)
    one.environment = "dev"

    def update(hear: Any) -> None:
        for event in events:
            hear(event)
        if fails:
            result = SimpleNamespace(stdout="", stderr=fails, code=255)
            raise automation.CommandError(result)  # type: ignore[arg-type]

    return one._heard(["a", "b"], stack._MADE, update)


def made(node: str, op: automation.OpType) -> Any:
    ended = SimpleNamespace(metadata=SimpleNamespace(op=op, urn=names.node_urn("dev", node)))
    return SimpleNamespace(diagnostic_event=None, res_outputs_event=ended)


def said(node: str, words: str) -> Any:
    urn = names.node_urn("dev", node) if node else None
    diagnostic = SimpleNamespace(severity="error", urn=urn, message=words)
    return SimpleNamespace(diagnostic_event=diagnostic, res_outputs_event=None)


def test_fine_is_only_what_was_made() -> None:
    """A deletion alone, or another's failure, is no creation."""
    found = heard(
        made("a", automation.OpType.DELETE_REPLACED),
        said("b", "googleapi: Error 429: Quota limit 'X' has been exceeded."),
        fails="error: update failed",
    )
    assert found["a"] is not None
    assert found["b"] is not None
    assert (found["a"].kind, found["b"].kind) == (Kind.STACK, Kind.QUOTA)
    fine = heard(made("a", automation.OpType.CREATE_REPLACEMENT), made("b", automation.OpType.CREATE))
    assert fine == {"a": None, "b": None}


def test_an_update_that_failed_as_a_whole_says_so_for_all() -> None:
    found = heard(said("", "could not find default credentials"), fails="error: exit status 255")
    assert {one.kind for one in found.values() if one} == {Kind.STACK}
    assert all("default credentials" in one.message for one in found.values() if one)
    assert all(one is not None for one in heard().values())


def test_what_an_update_told_comes_back_whole(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(provision, "require", lambda _: None)
    monkeypatch.setattr(provision.sys, "executable", "/bin/sh")
    updates = provision.Updates("dev")
    updates.start({"a": Place("us-east5-b")})
    while (outcome := updates.ended()) is None:
        pass
    assert outcome["a"] is not None
    assert outcome["a"].kind is Kind.STACK, "a shell is no update"
    assert updates.ended() is None


SETTINGS = """\
config:
  gcp:project: my-project
  storage:bucketName: my-project-checkpoints
  storage:location: us-east5
  tpu:slices:
    - {name: extract, acceleratorType: v6e-8, zones: [us-east5-b], otherZones: [us-east5-a], count: 2}
"""


def test_where_a_member_is_made_stands_in_the_settings_while_it_is_not_at_home(tmp_path: Path) -> None:
    """`pulumi up` reads it there; otherwise it would move the member back."""
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_text(SETTINGS)
    member = "tpu-us-east5-b-1"

    def places() -> dict[str, str]:
        return {one.name: one.zone for one in nodes(from_file("dev", tmp_path))}

    provision.move("dev", {member: "us-east5-b"}, tmp_path)
    assert path.read_text() == SETTINGS
    provision.move("dev", {member: "us-east5-a"}, tmp_path)
    assert places() == {"tpu-us-east5-b-0": "us-east5-b", member: "us-east5-a"}
    provision.move("dev", {"tpu-us-east5-b-0": "us-east5-b"}, tmp_path)
    assert places()[member] == "us-east5-a"
    provision.move("dev", {member: "us-east5-b"}, tmp_path)
    assert path.read_text() == SETTINGS
