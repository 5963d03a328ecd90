"""Obstacles to a destroy, as the states of stacks hold them."""

from typing import Any

import pytest

from infra.core import guard
from infra.engine.refusals import against, in_use
from infra.errors import Problem

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
    (problem,) = in_use({"network": [], "tpu": [placeholder]})
    assert (problem.path, problem.value, problem.fix) == ("tpu", "1 lives", "end it")


def test_a_job_that_several_guards_hold_stands_once_against_a_destroy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on = {"jobs": ["text/b", "vision/a"], "pods": ["vision/a"], "members": ["n-0"]}

    def refuse(what: str, *_: object) -> None:
        if what == "runs":
            raise guard.LivingError("it isn't known\n    fix: log in")
        noun = ("member", "members") if what == "members" else ("job", "jobs")
        raise guard.InUseError(on[what], noun, f"end the {noun[1]}")

    def held(*kinds: str) -> list[dict[str, Any]]:
        given = {"project": "p", "environment": "dev", "labels": {}}
        kind = "pulumi-python:dynamic:Resource"
        return [{"urn": f"{URN}{what}", "type": kind, "outputs": {**given, "what": what}} for what in kinds]

    monkeypatch.setattr(guard, "refuse", refuse)
    states = {
        "network": held("members", "jobs", "runs"),
        "gke": held("jobs", "pods", "pods"),
        "queue": held("jobs"),
    }
    rule = "a layer in use isn't destroyed"
    jobs = "in use by 2 jobs: text/b, vision/a"
    assert list(in_use(states)) == [
        Problem("network", "in use by 1 member: n-0", rule, "end the members; then again"),
        Problem("network, gke, queue", jobs, rule, "end the jobs; then again"),
        Problem("network", "it isn't known", rule, "log in"),
    ]
