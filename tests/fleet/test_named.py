"""Named slices: nodes that the stack holds, and the failure of each, from Pulumi's events."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pulumi import automation

from fleet import named
from fleet.named import NamedSlices
from fleet.zones import NodeRequest, Verb
from infra.core import names
from infra.engine import named as stack
from infra.engine.named import read_stack
from infra.errors import CommandError
from infra.google.failures import Failure, Kind
from infra.slices.names import node_urn, slice_urn
from tests.infra.conftest import FakePulumi, node_state
from tests.limits import HANG_S

Outcome = dict[str, Failure | None]


def test_the_stack_says_its_id_and_what_it_holds_and_what_is_being_deleted_is_not_held(
    pulumi_cli: FakePulumi, tmp_path: Path
) -> None:
    stack = {"type": names.STACK_TYPE, "urn": "urn:x", "outputs": {"stackId": "5a5a5a5"}}
    old = node_state("b", "PREEMPTED", component=False, delete=True)
    resources = [stack, *node_state("a", "READY"), *old, *node_state("c", None)]
    pulumi_cli.answer("stack ls", [{"name": "dev"}])
    pulumi_cli.answer("stack export", {"deployment": {"resources": resources}})
    result = read_stack("dev", tmp_path)
    assert (result.id, result.held) == ("5a5a5a5", {"a": "us-east5-b"})


@pytest.mark.parametrize("stacks", [[], [{"name": "dev"}]])
def test_a_stack_that_is_not_up_is_said_with_the_command_that_brings_it_up(
    stacks: list[Any], pulumi_cli: FakePulumi, tmp_path: Path
) -> None:
    pulumi_cli.answer("stack ls", stacks)
    pulumi_cli.answer("stack export", {"deployment": {}})
    with pytest.raises(CommandError, match="fix: pulumi up -s dev"):
        read_stack("dev", tmp_path)


def reporting(monkeypatch: pytest.MonkeyPatch, *events: Any, fails: str = "") -> Outcome:
    """The outcome of making a and b, where Pulumi says all that and then ends."""

    def up(target: list[str], on_event: Any, **options: Any) -> None:
        assert options == {"refresh": True, "continue_on_error": True}, "what is gone, only a refresh finds"
        assert {node_urn("dev", "a"), slice_urn("dev", "a")} < {*target}
        for event in events:
            on_event(event)
        if fails:
            result = SimpleNamespace(stdout="", stderr=fails, code=255)
            raise automation.CommandError(result)  # type: ignore[arg-type]

    held = [{"urn": node_urn("dev", node)} for node in ("a", "b")]
    monkeypatch.setattr(stack, "settle", lambda *_: [])
    monkeypatch.setattr(stack, "Pulumi", lambda *_: SimpleNamespace(state=lambda _: held))
    monkeypatch.setattr(automation, "LocalWorkspace", lambda **_: None)
    monkeypatch.setattr(automation.Stack, "select", lambda *_: SimpleNamespace(up=up))
    monkeypatch.setattr(
        automation, "LocalWorkspace", type("Workspace", (), {"__init__": lambda *_, **__: None})
    )
    return stack.create("dev", ["a", "b"])


def made(node: str, op: automation.OpType) -> Any:
    ended = SimpleNamespace(metadata=SimpleNamespace(op=op, urn=node_urn("dev", node)))
    return SimpleNamespace(diagnostic_event=None, res_outputs_event=ended)


def error_of(node: str, statuses: str) -> Any:
    urn = node_urn("dev", node) if node else None
    diagnostic = SimpleNamespace(severity="error", urn=urn, message=statuses)
    return SimpleNamespace(diagnostic_event=diagnostic, res_outputs_event=None)


def test_fine_is_only_what_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion alone, or another's failure, is no creation."""
    result = reporting(
        monkeypatch,
        made("a", automation.OpType.DELETE_REPLACED),
        error_of("b", "googleapi: Error 429: Quota limit 'X' has been exceeded."),
        fails="error: update failed",
    )
    assert result["a"] is not None
    assert result["b"] is not None
    assert (result["a"].kind, result["b"].kind) == (Kind.STACK, Kind.QUOTA)
    op = automation.OpType
    fine = reporting(monkeypatch, made("a", op.CREATE_REPLACEMENT), made("b", op.SAME))
    assert fine == {"a": None, "b": None}


def test_an_update_that_failed_as_a_whole_says_so_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    result = reporting(
        monkeypatch, error_of("", "could not find default credentials"), fails="error: exit status 255"
    )
    assert {item.kind for item in result.values() if item} == {Kind.STACK}
    assert all("default credentials" in item.message for item in result.values() if item)
    assert all(item is not None for item in reporting(monkeypatch).values())


def test_updates_run_one_at_a_time_in_processes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process without an outcome of each slice is a failed update."""
    program = tmp_path / "python"
    log = tmp_path / "log"
    program.write_text(
        f"#!/bin/sh\necho begun $4 $5 >> {log}; sleep 0.2; echo ended >> {log}\n"
        """[ "$4" = wrong ] || echo '{"'$4'": null}'\n"""
    )
    program.chmod(0o755)
    monkeypatch.setattr(named.sys, "executable", str(program))
    updates = NamedSlices("dev")
    answers = []
    for name in ("right", "wrong"):
        of = SimpleNamespace(name=name, key=name)
        updates.begin(NodeRequest(Verb.CREATE, of))  # type: ignore[arg-type]
        answers += updates.ended()
    deadline = time.monotonic() + HANG_S
    while len(answers) < 2 and time.monotonic() < deadline:
        answers += updates.ended()
    assert log.read_text().split() == ["begun", "right", "ended", "begun", "wrong", "ended"]
    right, wrong = answers
    assert right.failure is None
    assert wrong.failure is not None
    assert wrong.failure.kind is Kind.STACK
    assert updates.ended() == []
