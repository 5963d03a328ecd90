"""The benchmark `queue` in small: what must be right of a thousand jobs is right of these."""

from pathlib import Path

import pytest

from benchmarks.queue import Queue, drawn, judged
from tests.rehearsal.kubernetes.lab import Lab

JOBS, POOLS, RUN_S, LIMIT_S = 24, 4, (2, 5), 240


@pytest.mark.prove
def test_jobs_are_admitted_in_order_and_one_to_a_slice(lab: Lab, tmp_path: Path) -> None:
    """As the layer has the queue, Kueue gives a slice that is free in the middle of its turn to what is left
    of the turn (docs/internals/benchmarks.md). With StrictFIFO it doesn't, and no order is broken at all.
    """
    queue = Queue(lab, POOLS, tmp_path / "kwok")
    results = {}
    try:
        for strategy in ("BestEffortFIFO", "StrictFIFO"):
            queue.use(strategy)
            mix = drawn(JOBS, POOLS, RUN_S, name=strategy.lower())
            queue.submit(mix)
            queue.wait(JOBS, LIMIT_S)
            names = {job.name for job in queue.history.jobs.values()}
            assert names >= {f"{result.job.team.namespace}/{result.job.name}" for result in mix}
            results[strategy] = judged(queue)
            print(strategy, results[strategy])
    finally:
        queue.close()
    for result in results.values():
        assert result["collisions"] == 0
        assert result["most_held"] == POOLS
        assert result["preemptions"] > 0
        assert result["preempted_by_no_higher"] == 0
        # A preempted job may finish before its pods are gone.
        assert JOBS <= result["admissions"] <= JOBS + result["preemptions"]
    assert results["BestEffortFIFO"]["out_of_order"] <= JOBS // 4
    assert results["StrictFIFO"]["out_of_order"] == 0
