"""Which members a stack holds, and whose failure is whose, from what Pulumi says."""

from typing import Any

from fleet.failures import Kind
from fleet.provision import Stack, _outcome
from infra import names
from tests.infra.conftest import FakePulumi, node_state


def stack(**more: Any) -> Stack:
    one = Stack.__new__(Stack)
    one.environment, one.root = "dev", more["root"]
    return one


def test_the_stack_holds_what_its_state_has_and_what_is_being_deleted_is_no_node(
    pulumi_cli: FakePulumi, tmp_path: Any
) -> None:
    old = node_state("b", "PREEMPTED", component=False, delete=True)
    resources = [*node_state("a", "READY"), *old, *node_state("c", None)]
    pulumi_cli.answer("stack export", {"deployment": {"resources": resources}})
    one = stack(root=tmp_path)
    assert one.known() == {"a"}
    assert one.urn("a") == resources[1]["urn"] == names.node_urn("dev", "a")


def test_a_members_own_words_say_why_it_failed_and_others_are_not_blamed() -> None:
    said = {"a": ["googleapi: Error 429: Quota limit 'X' has been exceeded."], "": ["update failed"]}
    assert _outcome("a", said, "update failed").kind is Kind.QUOTA  # type: ignore[union-attr]
    assert _outcome("b", said, "update failed") is None


def test_an_update_that_failed_as_a_whole_failed_for_all() -> None:
    found = _outcome("a", {"": ["error: could not find default credentials"]}, "exit status 255")
    assert found is not None
    assert found.kind is Kind.LOGIN
    assert _outcome("a", {}, "exit status 255") is not None
    assert _outcome("a", {}, "") is None
