"""A run as its folder shows it, and its curves with few points."""

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.hostile import EXAMPLES, contents, fuzz
from workload.errors import RunError
from workload.runs import history, metrics
from workload.runs.errors import MissingObjectError
from workload.runs.history import RunReader
from workload.runs.page import Shown
from workload.runs.plots import thinned
from workload.runs.store import FolderStore

_TIME = "2026-01-01T00:00:01Z"
GOOD: dict[str, dict[str, Any]] = {
    "config.json": {
        "exact": {"train": {"steps": 9, "batch_size": 4}, "data": {"sequence_length": 8}},
        "rounding": {"mesh": {"data": 1, "fsdp": 4}, "chip": "TPU v6 lite", "slices": 1},
    },
    "status.json": {
        "state": "running", "step": 3, "steps": 9, "loss": 2.5, "tokens_per_s_per_chip": 10.0, "node": "n",
        "updated": _TIME, "left_s": 60.0,
    },
    "lease.json": {"written": 5.0, "owner": "n"},
    "events/20260101T000002Z-preempted.json": {
        "kind": "preempted", "time": _TIME, "step": 2, "lost_steps": 1,
    },
    "progress/20260101T000001Z-3.jsonl": {"step": 1, "time": _TIME, "loss": 2.5},
    "goodput/1.json": {"begin": 0.0, "end": 50.0, "accounts": {"step": 40.0}, "steps": 3},
}  # fmt: skip


class _Objects:
    """Objects in memory."""

    url = "gs://b/runs/tiny"

    def __init__(self, objects: dict[str, bytes]):
        self._objects = objects

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        if name not in self._objects:
            raise MissingObjectError(name)
        return self._objects[name][start:end]

    def list(self, prefix: str) -> list[str]:
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        return {name: len(raw) for name, raw in self._objects.items() if name.startswith(prefix)}


@EXAMPLES
def test_no_object_of_a_run_ends_what_lists_and_shows_it(examples: int) -> None:
    good = {name: json.dumps(data).encode() for name, data in GOOD.items()}

    def check(changed: dict[str, bytes]) -> None:
        objects = _Objects(good | changed)
        brief = history.brief(objects, "tiny", 10.0)
        with suppress(RunError):  # neither settings nor a status: no run is there
            read = RunReader(objects, "tiny").read(10.0)
            assert read.brief == brief
            assert brief
            json.dumps(asdict(brief))
            assert all(isinstance(fact, str) for fact in Shown(read).facts.values())

    raw = st.one_of([contents(data) for data in GOOD.values()])
    fuzz(examples, st.dictionaries(st.sampled_from(sorted(GOOD)), raw, min_size=1, max_size=3), check)


def test_a_spike_of_one_step_stays_in_a_curve_of_few_points() -> None:
    points = [(float(step), 1.0 + step / 1e6) for step in range(100_000)]
    points[31_337] = (31_337.0, 50.0)
    points[77_777] = (77_777.0, -50.0)
    few = thinned(points, 1000)
    assert len(few) <= 1000
    assert few == sorted(few)
    assert {points[31_337], points[77_777], points[0], points[-1]} <= {*few}
    assert thinned(points[:1000], 1000) == points[:1000]


def test_a_reader_continues_where_it_was_and_drops_steps_done_again(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.write("config.json", b'{"exact": {"train": {"steps": 9}}, "rounding": {}}')

    def rows(first: int, last: int, loss: float, second: int) -> str:
        time = f"2026-01-01T00:00:{second:02}Z"
        lines = [metrics.line(step, time, {"loss": loss}) for step in range(first + 1, last + 1)]
        return metrics.begin_line(first, time) + "".join(lines)

    def losses() -> list[float]:
        return [row.numbers["loss"] for row in reader.read(0.0).rows]

    reader = RunReader(store, "tiny")
    assert losses() == []
    store.write("progress/20260101T000001Z-3.jsonl", rows(0, 3, 1.0, 1).encode())
    assert losses() == [1.0] * 3
    store.write("progress/20260101T000003Z-6.jsonl", rows(2, 6, 2.0, 3).encode())
    notice = {"kind": "preempted", "time": "2026-01-01T00:00:02Z", "step": 2, "lost_steps": 1}
    store.write("events/20260101T000002Z-preempted.json", json.dumps(notice).encode())
    assert losses() == [1.0] * 2 + [2.0] * 4
    marks = reader.read(0.0).marks
    assert [(mark.kind, mark.step, mark.why) for mark in marks] == [
        ("preempted", 2, "steps to do again: 1"), ("restart", 2, ""),
    ]  # fmt: skip
    assert reader.read(0.0).brief.state == "silent"


def test_an_extension_of_a_run_that_was_done_is_no_loss_without_notice(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.write("config.json", b'{"exact": {}, "rounding": {}}')
    done = {"kind": "done", "time": "2026-01-01T00:00:02Z", "step": 3}
    store.write("events/20260101T000002Z-done.json", json.dumps(done).encode())
    for step, second in ((0, 1), (3, 5), (3, 7)):
        line = metrics.begin_line(step, f"2026-01-01T00:00:0{second}Z")
        store.write(f"progress/2026010{second}-{step}.jsonl", line.encode())
    marks = RunReader(store, "tiny").read(0.0).marks
    assert [(mark.step, mark.kind, bool(mark.why)) for mark in marks] == [
        (3, "restart", False), (3, "restart", True),
    ]  # fmt: skip
