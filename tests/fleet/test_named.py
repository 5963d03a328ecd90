"""Named slices: nodes that the stack holds, and the failure of each, from Pulumi's events."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

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
from tests.limits import until

Outcome = dict[str, Failure | None]


def test_the_stack_says_its_id_and_what_it_holds_and_what_is_being_deleted_is_not_held(
    pulumi_cli: FakePulumi, tmp_path: Path
) -> None:
    stack = {"type": names.STACK_TYPE, "urn": "urn:x", "outputs": {"stackId": "5a5a5a5"}}
    old = node_state("b", "PREEMPTED", component=False, delete=True)
    resources = [stack, *node_state("a", "READY"), *old, *node_state("c", None)]
    pulumi_cli.answer("stack export", {"deployment": {"resources": resources}})
    result = read_stack("dev", tmp_path)
    assert (result.id, result.held) == ("5a5a5a5", {"a": "us-east5-b"})


@pytest.mark.parametrize("missing", ["", "error: no stack named 'dev' found"])
def test_a_stack_that_is_not_up_is_said_with_the_command_that_brings_it_up(
    missing: str, pulumi_cli: FakePulumi, tmp_path: Path
) -> None:
    pulumi_cli.answer("stack export", {"deployment": {}}, status=255 if missing else 0, err=missing)
    with pytest.raises(CommandError, match="fix: tpu up dev tpu"):
        read_stack("dev", tmp_path)


def reporting(pulumi: FakePulumi, *events: dict[str, Any], fails: str = "") -> Outcome:
    """Return the outcome of creating a and b, where Pulumi writes these events and then ends."""
    resources = [{"urn": node_urn("dev", node)} for node in ("a", "b")]
    pulumi.answer("stack export", {"deployment": {"resources": resources}})
    pulumi.answer("up", status=255 if fails else 0, err=fails)
    pulumi.log(*events)
    with mock.patch.object(stack, "settle"):
        outcome = stack.create("dev", ["a", "b"])
    *_, up = (arguments for _, arguments, _ in pulumi.calls if arguments[0] == "up")
    assert {"--refresh", "--continue-on-error"} < {*up}, "what is gone, only a refresh finds"
    assert {node_urn("dev", "a"), slice_urn("dev", "a")} < {*up}
    return outcome


def made(node: str, op: str) -> dict[str, Any]:
    return {"resOutputsEvent": {"metadata": {"op": op, "urn": node_urn("dev", node)}}}


def error_of(node: str, message: str) -> dict[str, Any]:
    urn = {"urn": node_urn("dev", node)} if node else {}
    return {"diagnosticEvent": {"severity": "error", "message": message, **urn}}


def test_fine_is_only_what_was_made(pulumi_cli: FakePulumi) -> None:
    """A deletion alone, or another's failure, is no creation."""
    result = reporting(
        pulumi_cli,
        made("a", "delete-replaced"),
        error_of("b", "googleapi: Error 429: Quota limit 'X' has been exceeded."),
        fails="error: update failed",
    )
    assert result["a"] is not None
    assert result["b"] is not None
    assert (result["a"].kind, result["b"].kind) == (Kind.STACK, Kind.QUOTA)
    fine = reporting(pulumi_cli, made("a", "create-replacement"), made("b", "same"))
    assert fine == {"a": None, "b": None}


def test_an_update_that_failed_as_a_whole_says_so_for_all(pulumi_cli: FakePulumi) -> None:
    result = reporting(
        pulumi_cli, error_of("", "could not find default credentials"), fails="error: exit status 255"
    )
    assert {item.kind for item in result.values() if item} == {Kind.STACK}
    assert all("default credentials" in item.message for item in result.values() if item)
    assert all(item is not None for item in reporting(pulumi_cli).values())


def test_what_a_stack_holds_is_refreshed_beside_what_it_lost(pulumi_cli: FakePulumi) -> None:
    """An update can't refresh a resource that isn't in the stack: b's creation failed the last time."""
    held = [{"urn": node_urn("dev", "a")}, {"urn": slice_urn("dev", "a")}, {"urn": slice_urn("dev", "b")}]
    pulumi_cli.answer("stack export", {"deployment": {"resources": held}})
    with mock.patch.object(stack, "settle"):
        outcome = stack.create("dev", ["a", "b", "destroyed"])
    assert "doesn't hold it any more" in str(outcome["destroyed"])
    (refresh,) = (arguments for _, arguments, _ in pulumi_cli.calls if arguments[0] == "refresh")
    assert [word for word in refresh if word.startswith("urn:")] == [node_urn("dev", "a")]
    (up,) = (arguments for _, arguments, _ in pulumi_cli.calls if arguments[0] == "up")
    assert "--refresh" not in up
    assert not [word for word in up if "destroyed" in word]


@pytest.mark.parametrize("unheld", [False, True])
def test_a_slice_that_a_destroy_took_from_the_stack_is_created_by_a_user_alone(
    unheld: bool, pulumi_cli: FakePulumi
) -> None:
    pulumi_cli.answer("stack export", {"deployment": {}})
    with mock.patch.object(stack, "settle"):
        stack.create("dev", ["a"], unheld=unheld)
    assert [arguments[0] for _, arguments, _ in pulumi_cli.calls].count("up") == unheld


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
    until(lambda: answers.extend(updates.ended()) or len(answers) == 2)
    assert log.read_text().split() == ["begun", "right", "ended", "begun", "wrong", "ended"]
    right, wrong = answers
    assert right.failure is None
    assert wrong.failure is not None
    assert wrong.failure.kind is Kind.STACK
    assert updates.ended() == []
