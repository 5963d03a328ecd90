"""The benchmark `queue` in small: what must be right of a thousand jobs is right of these."""

from pathlib import Path

import pytest

from benchmarks.queue import Queue, drawn, judged
from tests.kubernetes.lab import Lab

JOBS, POOLS = 24, 4


@pytest.mark.slow
def test_jobs_are_admitted_in_order_and_one_to_a_slice(lab: Lab, tmp_path: Path) -> None:
    queue = Queue(lab, POOLS, tmp_path / "kwok")
    try:
        mix = drawn(JOBS, POOLS, (2, 5))
        queue.submit(mix)
        queue.wait(JOBS, 240)
    finally:
        queue.close()
    found = judged(queue)
    print(found)
    assert {job.name for job in queue.history.jobs.values()} == {
        f"{one.job.team.namespace}/{one.job.name}" for one in mix
    }
    assert found["collisions"] == 0
    assert found["most_held"] == POOLS
    assert found["overtaken_by_same_size"]["beyond_slack"] == 0
    assert found["preemptions"] > 0
    assert found["preempted_by_no_higher"] == 0
    # A preempted job may finish before its pods are gone.
    assert JOBS <= found["admissions"] <= JOBS + found["preemptions"]
