"""A run's step log: its curves across starts."""

import json
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]

from workload.errors import OutageError, StoreError
from workload.runs import metrics
from workload.runs.step_log import StepLog, line
from workload.runs.store import FolderStore


def start(store: FolderStore, first: int, last: int, saved: int, value: float) -> StepLog:
    """Log the steps after `first` up to `last`, with a checkpoint at `saved`; an unclosed log was killed."""
    log = StepLog(store, "run", "", 9)
    log.begin(first)
    for step in range(first + 1, last + 1):
        log.loss(step, value + step, {"rate": value})
        if step == saved:
            log.evaluated(step, value)
            log.flush(step)
    return log


def event_files(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Curves as TensorBoard reads them: a START event drops the later points of earlier files."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("tensorboard/*")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            length = int.from_bytes(content[at : at + 8], "little")
            event = Event.FromString(content[at + 12 : at + 12 + length])
            at += 16 + length  # length, its checksum, the data, its checksum
            if event.session_log.status == SessionLog.START:
                curves = {
                    name: [point for point in points if point[0] < event.step]
                    for name, points in curves.items()
                }
            for value in event.summary.value:
                curves.setdefault(value.tag, []).append((event.step, value.simple_value))
    return curves


def test_a_killed_and_resumed_run_has_each_step_once_in_every_curve(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    start(store, 0, 4, 3, 10.0)  # killed before its event file was stored, or after
    second = start(store, 3, 6, 5, 20.0)
    second.close()
    start(store, 5, 9, 9, 30.0).close()
    losses = [11.0, 12.0, 13.0, 24.0, 25.0, 36.0, 37.0, 38.0, 39.0]
    assert event_files(tmp_path) == {
        "loss": [*enumerate(losses, start=1)],
        "rate": [(step, losses[step - 1] - step) for step in range(1, 10)],
        "eval_loss": [(3, 10.0), (5, 20.0), (9, 30.0)],
    }
    assert len(store.list("tensorboard/")) == 1  # the last start's, which holds everything


def test_the_rows_of_all_steps_are_stored_before_a_checkpoint_is_complete(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    start(store, 0, 4, 3, 10.0)
    (name,) = (name for name in store.list("progress/") if name != metrics.LIVE)
    rows = [json.loads(line) for line in store.read(name).splitlines()]
    assert [row.get("step", row.get("begin")) for row in rows] == [0, 1, 2, 3, 3]


class Refusing(FolderStore):
    """Refuses objects whose names begin with a prefix."""

    prefix, error = "progress/", StoreError("403: no role")

    def write(self, name: str, content: bytes) -> None:
        if self.prefix and name.startswith(self.prefix):
            raise self.error
        super().write(name, content)


def test_a_stream_that_is_refused_costs_rows_and_neither_the_checkpoint_nor_the_run(tmp_path: Path) -> None:
    store = Refusing(tmp_path)
    log = start(store, 0, 4, 3, 10.0)
    assert store.list("metrics/") == ["metrics/steps-0-3.jsonl"]
    store.prefix = ""
    log.flush(4)
    log.close()
    rows = [row.step for row in metrics.Metrics(store).new() if not row.begins]
    assert rows == [1, 2, 3, 3, 4], "the next checkpoint has all rows"


def test_losses_that_are_refused_and_rows_in_an_outage_hold_the_checkpoint_back(tmp_path: Path) -> None:
    store = Refusing(tmp_path)
    store.prefix = "metrics/"
    with pytest.raises(StoreError, match="no role"):
        start(store, 0, 3, 3, 10.0)
    store.prefix, store.error = "progress/", OutageError("503")
    with pytest.raises(OutageError):
        start(store, 0, 3, 3, 10.0)


@pytest.mark.parametrize("error", [StoreError("403: no role"), OSError(28, "No space left"), KeyError("x")])
def test_an_event_file_that_cant_be_written_is_named_and_the_run_ends_well(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Refusing(tmp_path)
    store.prefix, store.error = "tensorboard/", error  # type: ignore[assignment]
    start(store, 0, 3, 3, 10.0).end("done", 3, 13.0)
    assert json.loads(store.read("status.json"))["state"] == "done"
    assert (
        "not written: 403" if isinstance(error, StoreError) else "TensorBoard's file ends here"
    ) in caplog.text


def test_a_readers_rows_come_once_though_the_live_object_has_them_first(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    reader = metrics.Metrics(store)
    rows = [metrics.line(step, f"2026-01-01T00:00:0{step}Z", {"loss": float(step)}) for step in range(1, 5)]
    store.write(metrics.LIVE, "".join(rows[:2]).encode())
    assert [row.step for row in reader.new()] == [1, 2]
    store.write("progress/20260101-3.jsonl", "".join(rows[:3]).encode())
    store.write(metrics.LIVE, rows[3].encode())
    assert [row.step for row in reader.new()] == [3, 4]
    assert not [*reader.new()]
    store.write(metrics.LIVE, b"")  # listed before row 4 moved, read after
    assert not [*reader.new()]
    store.write("progress/20260101-4.jsonl", rows[3].encode())
    assert not [*reader.new()]


@pytest.mark.parametrize(
    "bad",
    [b"\xff\xfe", b"[]", b"{", b'{"step": -1, "time": "2026-01-01T00:00:00Z"}', b'{"step": 1}',
     b'{"step": 1, "time": "soon"}', b'{"step": 1, "time": "2026-01-01T00:00:00Z", "loss": [1]}'],
)  # fmt: skip
def test_a_line_that_is_no_row_is_left_out_and_named(
    bad: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = metrics.line(2, "2026-01-01T00:00:00Z", {"loss": 1.5}).encode()
    store = FolderStore(tmp_path)
    store.write("progress/20260101-2.jsonl", bad + b"\n" + good)
    assert [(row.step, row.numbers) for row in metrics.Metrics(store).new()] == [(2, {"loss": 1.5})]
    assert "a line of" in caplog.text


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
