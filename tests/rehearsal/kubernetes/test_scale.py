"""The benchmark `queue` in small: what must be right of a thousand jobs is right of these."""

from pathlib import Path

import pytest

from benchmarks.queue import Queue, drawn, judged
from tests.rehearsal.kubernetes.lab import Lab

JOBS, POOLS, RUN_S, LIMIT_S = 24, 4, (2, 5), 240


@pytest.mark.prove
def test_jobs_are_admitted_in_order_and_one_to_a_slice(lab: Lab, tmp_path: Path) -> None:
    """As the layer has the queue, Kueue gives a slice that is free in the middle of its turn to what is left
    of the turn (docs/benchmarks.md). With StrictFIFO it doesn't, and no order is broken at all.
    """
    queue = Queue(lab, POOLS, tmp_path / "kwok")
    found = {}
    try:
        for strategy in ("BestEffortFIFO", "StrictFIFO"):
            queue.use(strategy)
            mix = drawn(JOBS, POOLS, RUN_S, name=strategy.lower())
            queue.submit(mix)
            queue.wait(JOBS, LIMIT_S)
            names = {job.name for job in queue.history.jobs.values()}
            assert names >= {f"{one.job.team.namespace}/{one.job.name}" for one in mix}
            found[strategy] = judged(queue)
            print(strategy, found[strategy])
    finally:
        queue.close()
    for one in found.values():
        assert one["collisions"] == 0
        assert one["most_held"] == POOLS
        assert one["preemptions"] > 0
        assert one["preempted_by_no_higher"] == 0
        # A preempted job may finish before its pods are gone.
        assert JOBS <= one["admissions"] <= JOBS + one["preemptions"]
    assert found["BestEffortFIFO"]["out_of_order"] <= JOBS // 4
    assert found["StrictFIFO"]["out_of_order"] == 0
