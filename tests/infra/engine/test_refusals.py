"""Obstacles to a destroy, as the states of stacks hold them."""

import pytest

from infra.core import guard
from infra.engine.refusals import against

URN = "urn:pulumi:dev::gke::gcp:storage/bucket:Bucket::"


def test_what_is_protected_stands_against_a_destroy_unless_another_stack_holds_it() -> None:
    resources = [{"urn": f"{URN}{name}", "protect": True} for name in ("a", "b", "c", "d")]
    (problem,) = against("dev", "gke", [*resources, {"urn": f"{URN}read", "protect": True, "external": True}])
    assert str(problem).startswith("gke = protected: a, b, c and 1 more: ")
    assert f"pulumi -C infra/layers/gke state unprotect -s dev '{URN}a'" in str(problem)


@pytest.mark.parametrize("what", guard.KINDS)
def test_living_members_and_jobs_stand_against_a_destroy(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        assert given == (what, "p", "dev", {"stack": "a"}, "")
        raise guard.LivingError("1 lives\n    fix: end it")

    monkeypatch.setattr(guard, "refuse", refuse)
    outputs = {"what": what, "project": "p", "environment": "dev", "labels": {"stack": "a"}}
    placeholder = {"urn": f"{URN}guard", "type": "pulumi-python:dynamic:Resource", "outputs": outputs}
    (problem,) = against("dev", "tpu", [placeholder])
    assert (problem.path, problem.value, problem.fix) == (what, "1 lives", "end it")
