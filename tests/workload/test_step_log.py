"""A run's step log: its curves across starts."""

from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]

from workload.runs.curves import records
from workload.runs.step_log import StepLog, line
from workload.runs.store import FolderStore


def test_a_resumed_runs_curves_lose_what_came_after_the_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    """TensorBoard drops an earlier start's points at and after the step of a START event."""
    starts = []
    for first in (0, 2):
        store = FolderStore(tmp_path / str(first))  # a folder each: files are named by the second
        log = StepLog(store, "run", "", 4)
        log.begin(first)
        for step in range(first + 1, 5):
            log.loss(step, 1.0 / step, {})
        log.flush(4)
        log.close()
        (name,) = store.list("tensorboard/")
        starts += [
            event.step
            for _, record in records(store.read(name))
            if (event := Event.FromString(record)).session_log.status == SessionLog.START
        ]
    assert starts == [1, 3]


@pytest.mark.parametrize("forget", [False, True])
def test_on_another_mesh_losses_up_to_the_checkpoint_stay_and_later_ones_go(
    tmp_path: Path, forget: bool
) -> None:
    store = FolderStore(tmp_path)
    for name in ("metrics/steps-0-2.jsonl", "metrics/steps-2-4.jsonl"):
        store.write(name, (line(int(name[-7]), 1.0) + "\n").encode())
    log = StepLog(store, "run", "", 4)
    log.begin(2, forget)
    assert (
        store.list("metrics/") == ["metrics/steps-0-2.jsonl", "metrics/steps-2-4.jsonl"][: 1 if forget else 2]
    )
    log.close()
