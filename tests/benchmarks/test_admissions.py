"""The judge of a queue notices each wrong order, on histories that are made up."""

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.admissions import (
    FINISHED,
    HOLDING,
    WAITING,
    History,
    Job,
    PodChange,
    Transition,
    collisions,
    most_held,
    out_of_order,
    overtakings,
    preemptions,
    starts_s,
    waits_s,
)

FIRST, SECOND = "2026-11-24T10:00:00Z", "2026-11-24T10:00:01Z"


def history(jobs: Mapping[str, Job], *changes: tuple[str, str] | tuple[str, str, str]) -> History:
    """Each change a second after the one before."""
    result = [Transition(number, float(number), *change) for number, change in enumerate(changes)]
    return History(4, dict(jobs), result)


def job(name: str, priority: int = 100, created: str = FIRST, slices: int = 1) -> Job:
    return Job(name, priority, created, slices)


def passed_over(result: History, slices: int) -> list[tuple[str, str]]:
    return [(overtaking.job.name, overtaking.by.name) for overtaking in overtakings(result, slices)]


@pytest.mark.parametrize(
    ("early", "late", "is_wrong"),
    [
        (job("a", 500), job("b", 100), True),
        (job("a"), job("b", created=SECOND), True),
        (job("a"), job("b"), False),
        (job("a", 100), job("b", 500), False),
        (job("a", created=SECOND), job("b"), False),
        (job("a", 500, SECOND), job("b", 100, FIRST), True),
        (job("a", 500, slices=2), job("b"), False),
    ],
)
def test_who_is_admitted_before_one_ahead_of_it(early: Job, late: Job, is_wrong: bool) -> None:
    """`late` gets the only slice while `early` waits."""
    jobs = {"a": early, "b": late}
    result = history(jobs, ("a", WAITING), ("b", WAITING), ("b", HOLDING), ("b", FINISHED), ("a", HOLDING))
    assert passed_over(result, 1) == ([("a", "b")] if is_wrong else [])
    right = history(jobs, ("a", WAITING), ("b", WAITING), ("a", HOLDING), ("a", FINISHED), ("b", HOLDING))
    assert passed_over(right, 1) == ([] if is_wrong or not late.ahead_of(early) else [("b", "a")])


def test_how_long_it_had_waited_and_had_to_wait() -> None:
    jobs = {"a": job("a", 500), "b": job("b")}
    result = history(jobs, ("a", WAITING), ("b", WAITING), ("b", HOLDING), ("b", FINISHED), ("a", HOLDING))
    (item,) = overtakings(result, 1)
    assert (item.waited_s, item.longer_s) == (2, 2)
    (never,) = overtakings(history(jobs, ("a", WAITING), ("b", WAITING), ("b", HOLDING)), 1)
    assert never.longer_s == float("inf")


def test_admissions_out_of_order_are_counted_once_and_beyond_the_slack() -> None:
    jobs = {name: job(name, 500) for name in ("a", "b")} | {"low": job("low")}
    start = (("a", WAITING), ("b", WAITING), ("low", WAITING), ("low", HOLDING))
    result = history(jobs, *start, ("a", HOLDING), ("b", HOLDING))
    assert [out_of_order(overtakings(result, 3), slack_s) for slack_s in (0.5, 1.5, 2.5)] == [1, 1, 0]
    backwards = history(jobs, *start, ("low", FINISHED), ("b", HOLDING), ("b", FINISHED), ("a", HOLDING))
    assert out_of_order(overtakings(backwards, 1), 0.5) == 1
    assert out_of_order(overtakings(history(jobs, *start), 1), 0.5) == 1, "they never are"


def test_a_large_job_may_be_passed_over_only_while_it_doesnt_fit() -> None:
    jobs = {"big": job("big", 500, slices=2), "a": job("a", 500), "b": job("b", 100), "c": job("c", 100)}
    start = (("a", WAITING), ("a", HOLDING), ("big", WAITING), ("b", WAITING), ("b", HOLDING))
    assert passed_over(history(jobs, *start), 2) == []
    assert passed_over(history(jobs, *start), 3) == [("big", "b")]
    # b is of lower priority, so its slice is as good as free to the large job, once a has finished.
    more = (*start, ("c", WAITING), ("a", FINISHED), ("c", HOLDING))
    assert passed_over(history(jobs, *more), 2) == [("big", "c")]


def test_a_preempted_job_waits_in_its_place() -> None:
    jobs = {"a": job("a"), "b": job("b", created=SECOND), "high": job("high", 1000)}
    start = (("a", WAITING), ("a", HOLDING), ("b", WAITING), ("high", WAITING), ("a", WAITING, "high"))
    right = history(jobs, *start, ("high", HOLDING), ("high", FINISHED), ("a", HOLDING))
    assert passed_over(right, 1) == []
    assert [(item.name, by and by.name) for item, by in preemptions(right)] == [("a", "high")]
    wrong = history(jobs, *start, ("high", HOLDING), ("high", FINISHED), ("b", HOLDING))
    assert passed_over(wrong, 1) == [("a", "b")]


def test_changes_are_taken_in_the_order_of_their_versions() -> None:
    result = history(
        {"a": job("a", 500), "b": job("b")}, ("a", WAITING), ("b", WAITING), ("a", HOLDING), ("b", HOLDING)
    )
    assert passed_over(result, 2) == []
    result.changes[2:] = [Transition(9, 2.0, "a", HOLDING), Transition(8, 3.0, "b", HOLDING)]
    assert passed_over(result, 2) == [("a", "b")]


def test_quota_is_counted_in_slices() -> None:
    jobs = {"a": job("a", slices=2), "b": job("b", slices=3)}
    result = history(jobs, ("a", HOLDING), ("b", HOLDING), ("a", FINISHED), ("b", FINISHED))
    assert most_held(result) == 5
    result = history(jobs, ("a", HOLDING), ("a", FINISHED), ("b", HOLDING), ("b", FINISHED))
    assert most_held(result) == 3


def pod(version: int, name: str, job_slice: tuple[str, str], node: str, phase: str) -> PodChange:
    return PodChange(version, float(version), name, job_slice, node, phase)


def test_two_jobs_on_one_pool_at_a_time_are_noticed() -> None:
    pool_of = {"n0": "pool", "n1": "pool", "m0": "other"}
    a, b = ("team/a", "0"), ("team/b", "0")
    first = [pod(1, "p", a, "", "Pending"), pod(2, "p", a, "n0", "Pending"), pod(3, "q", a, "n1", "Running")]
    apart = [*first, pod(4, "r", b, "m0", "Running")]
    after = [
        *first,
        pod(4, "p", a, "n0", "Succeeded"),
        pod(5, "q", a, "n1", "Deleted"),
        pod(6, "r", b, "n0", "Pending"),
    ]
    during = [*first, pod(4, "p", a, "n0", "Succeeded"), pod(5, "r", b, "n0", "Pending")]
    same_job = [*first, pod(4, "r", ("team/a", "1"), "n0", "Pending")]
    one_node = [*first, pod(4, "r", a, "n1", "Pending")]

    def pools(pods: list[PodChange]) -> list[str]:
        return [name for name, _ in collisions(History(4, pods=pods), pool_of)]

    assert [pools(pods) for pods in (first, apart, after)] == [[], [], []]
    assert [pools(pods) for pods in (during, same_job, one_node)] == [["pool"], ["pool"], ["pool"]]


def test_waits_and_starts() -> None:
    result = history({"a": job("team/a", slices=2)}, ("a", WAITING), ("a", HOLDING))
    result.pods = [pod(10 + n, f"p{n}", ("team/a", str(n // 4)), f"n{n}", "Running") for n in range(8)]
    assert waits_s(result) == [1.0]
    assert starts_s(result) == [16.0]
    result.pods.pop()
    assert starts_s(result) == []


def workload(version: int, *conditions: tuple[str, str], message: str = "") -> dict[str, Any]:
    meta = {"uid": "u", "namespace": "team", "resourceVersion": str(version), "creationTimestamp": FIRST,
            "ownerReferences": [{"name": "a"}]}  # fmt: skip
    states = [{"type": kind, "status": status, "message": message} for kind, status in conditions]
    return {
        "metadata": meta,
        "spec": {"priority": 500, "podSets": [{"count": 8}]},
        "status": {"conditions": states},
    }


def test_a_workloads_conditions_become_changes() -> None:
    result = History(4)
    text = "Preempted to accommodate a workload (UID: 0a-1b, JobUID: 2c-3d) due to prioritization"
    events = [
        workload(1),
        workload(2, ("QuotaReserved", "True")),
        workload(3, ("QuotaReserved", "True"), ("Admitted", "True")),
        workload(4, ("QuotaReserved", "False"), ("Preempted", "True"), message=text),
        workload(5, ("QuotaReserved", "True"), ("Preempted", "False")),
        workload(6, ("QuotaReserved", "True"), ("Finished", "True")),
    ]
    for number, item in enumerate(events):
        result.workload("MODIFIED", item, float(number))
    assert result.jobs == {"u": job("team/a", 500, slices=2)}
    assert [(change.version, change.state, change.by) for change in result.changes] == [
        (1, WAITING, ""), (2, HOLDING, ""), (4, WAITING, "0a-1b"), (5, HOLDING, ""), (6, FINISHED, ""),
    ]  # fmt: skip
    assert result.count(FINISHED) == 1
