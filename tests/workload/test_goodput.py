"""Accounts of time, interval of checkpoints, progress."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import EXAMPLES, contents, fuzz
from workload.runs.goodput import ACCOUNTS, GoodputRecorder, read, summary
from workload.runs.store import FolderStore
from workload.train import config as configs
from workload.train.interval import FIRST_STEPS, Interval, best_interval_s
from workload.train.progress import Progress


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def start(begun: float, first: int, last: int, **seconds: float) -> dict[str, Any]:
    accounts = dict.fromkeys(ACCOUNTS, 0.0) | seconds
    wall = sum(accounts.values())
    return {
        "number": 0,
        "begun": begun,
        "written": begun + wall,
        "seconds": wall,
        "from": first,
        "to": last,
        "accounts": accounts,
    }


def test_the_accounts_of_a_start_add_up_to_its_wall_time() -> None:
    clock = Clock()
    goodput = GoodputRecorder(10.0, clock)
    goodput.seconds["init"] = 10.0
    with goodput.doing("compile"):
        clock.now += 30
    clock.now += 2
    with goodput.doing("step"):
        clock.now += 58
    goodput.begin(0)
    goodput.did(7)
    content = goodput.content()
    assert content["seconds"] == 100
    assert content["accounts"] == pytest.approx(
        dict.fromkeys(ACCOUNTS, 0.0) | {"init": 10, "compile": 30, "step": 58, "other": 2}
    )
    assert (content["from"], content["to"]) == (0, 7)


def test_time_within_another_account_counts_once() -> None:
    clock = Clock()
    goodput = GoodputRecorder(clock=clock)
    with goodput.doing("save"):
        clock.now += 5
        with goodput.doing("step"):
            clock.now += 4
        clock.now += 1
    assert (goodput.seconds["save"], goodput.seconds["step"]) == (6, 4)
    assert goodput.content()["accounts"]["other"] == 0
    assert (goodput.share, goodput.share_of("save")) == (0.4, 0.6)


def test_a_clock_that_is_set_back_a_day_changes_no_duration(tmp_path: Path) -> None:
    store, clock, wall = FolderStore(tmp_path), Clock(), Clock()
    wall.now = 1_800_000_000.0
    for number, (first, last) in enumerate([(0, 50), (40, 100)]):
        goodput = GoodputRecorder(10.0, clock, wall)
        goodput.number = number
        goodput.begin(first)
        with goodput.doing("step"):
            clock.now += 60
            wall.now += 60 - 86_400
        goodput.did(last)
        assert goodput.share == pytest.approx(60 / 70)
        store.write(goodput.name(), json.dumps(goodput.content()).encode())
        wall.now += 30 + 10  # until the next process begins, and until it counts
    starts = read(store)
    assert [start["seconds"] for start in starts] == [70, 70]
    assert [start["to"] for start in starts] == [50, 100], "in their order, whatever the labels"
    total = summary(starts)
    assert (total.accounts_s["down"], total.steps) == (pytest.approx(30), 100)
    assert total.accounts_s["lost"] == pytest.approx(12)


def test_starts_of_earlier_versions_come_first(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for name, begun, number in (("a", 0.0, 2), ("b", 300.0, None), ("c", 200.0, None)):
        content = start(begun, 0, 1, step=5.0) | {"number": number}
        if number is None:
            del content["number"], content["written"]
        store.write(f"goodput/{name}.json", json.dumps(content).encode())
    assert [start["begun"] for start in read(store)] == [200.0, 300.0, 0.0]
    assert [start["written"] for start in read(store)] == [205.0, 305.0, 5.0]


def test_steps_done_again_are_lost_and_the_time_between_starts_is_down() -> None:
    starts = [
        start(0, 0, 50, init=10.0, step=100.0),  # killed after step 50; its newest checkpoint was 40
        start(200, 40, 100, init=10.0, step=120.0, save=5.0),
    ]
    total = summary(starts)
    assert total.wall_s == 200 + 135 == pytest.approx(sum(total.accounts_s.values()))
    assert total.accounts_s["lost"] == pytest.approx(20)
    assert total.accounts_s["down"] == 90
    assert total.accounts_s["step"] == 200
    assert total.goodput == pytest.approx(200 / 335)
    assert (total.starts, total.steps) == (2, 100)
    assert summary([]).goodput == 0


def test_a_later_start_may_go_back_behind_the_one_before_it() -> None:
    starts = [
        start(0, 0, 50, step=100.0),
        start(100, 50, 60, step=20.0),
        start(120, 0, 0, init=5.0) | {"from": None},  # it couldn't read its checkpoint
        start(125, 40, 100, step=120.0),  # 50 was damaged
    ]
    total = summary(starts)
    assert total.accounts_s["lost"] == pytest.approx(20 + 20)
    assert total.accounts_s["step"] == pytest.approx(80 + 120)
    assert summary(starts[:3]).steps == 60


def test_what_is_no_account_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FolderStore(tmp_path)
    store.write("goodput/1.json", json.dumps(start(0, 0, 50, step=100.0)).encode())
    store.write("goodput/2.json", json.dumps(start(0, 0, 50, step=-86386.0)).encode())
    store.write("goodput/3.json", b'{"a":' * 100_000)
    assert summary(read(store)).steps == 50
    warnings = caplog.text
    assert "goodput/2.json: has a time that is missing or negative" in warnings
    assert "goodput/3.json: is no JSON" in warnings


@EXAMPLES
def test_no_object_ends_the_sum(examples: int, tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    good = start(0, 0, 50, step=100.0)
    store.write("goodput/1.json", json.dumps(good).encode())

    def check(raw: bytes) -> None:
        store.write("goodput/2.json", raw)
        total = summary(read(store))
        assert math.isfinite(total.goodput)
        assert total.wall_s >= 100

    fuzz(examples, contents(good) | contents(good["accounts"]), check)


@pytest.mark.parametrize(
    ("stall_s", "save_s", "between_h", "seconds", "reason"),
    [
        (2.0, 10.0, 24.0, 587.9, "Young's rule"),
        (2.0, 10.0, 0.05, 40.0, "below 5 %"),
        (0.1, 900.0, 1.0, 900.0, "over before the next"),
    ],
)
def test_the_interval_is_the_largest_of_three_bounds(
    stall_s: float, save_s: float, between_h: float, seconds: float, reason: str
) -> None:
    interval_s, rule = best_interval_s(stall_s, save_s, between_h * 3600)
    assert interval_s == pytest.approx(seconds, rel=1e-3)
    assert reason in rule


class Alone:
    """A cluster of one."""

    def agree(self, query: Any) -> Any:
        return query()


def by_time(clock: Clock) -> Interval:
    config = configs.load("tiny.toml", ["checkpoint.every_steps=0", "checkpoint.preemption_every_h=1"])
    return Interval(config.checkpoint, Alone(), 0, clock)  # type: ignore[arg-type]


def test_the_first_save_measures_and_the_next_come_at_the_interval() -> None:
    clock = Clock()
    interval = by_time(clock)
    saves, reasons = [], []
    for step in range(1, 400):
        clock.now += 2.0
        if interval.due(step):
            saves.append(step)
            reasons.append(interval.saved(step, 0.5, 4.0))
    # sqrt(2 * 0.5 s * 3600 s) = 60 s = 30 steps of 2 s
    assert saves[:3] == [FIRST_STEPS, FIRST_STEPS + 30, FIRST_STEPS + 60]
    assert "Young's rule" in reasons[0]
    assert not any(reasons[1:])


@pytest.mark.parametrize(("stall_s", "steps"), [(0.6, 30), (0.8, 38), (0.2, 19)])
def test_an_interval_changes_only_by_more_than_a_quarter(stall_s: float, steps: int) -> None:
    """Of 60 s and 30 steps, by Young's rule: 66 s are no reason, 76 s and 38 s are."""
    clock = Clock()
    interval = by_time(clock)
    interval.due(1)
    clock.now += 20.0
    interval.due(11)
    interval.saved(11, 0.5, 4.0)
    reason = interval.saved(11, stall_s, 4.0)
    assert interval.every_steps == steps
    assert bool(reason) == (steps != 30)


def test_an_interval_follows_the_speed_since_the_last_save() -> None:
    clock = Clock()
    interval = by_time(clock)
    for first, step_s, every_steps in ((1, 2.0, 30), (12, 4.0, 15)):
        interval.due(first)
        clock.now += 10 * step_s
        interval.due(first + 10)
        interval.saved(first + 10, 0.5, 4.0)
        assert interval.every_steps == every_steps


def test_a_given_interval_is_kept() -> None:
    config = configs.load("tiny.toml", ["checkpoint.every_steps=7"])
    interval = Interval(config.checkpoint, Alone(), 0)  # type: ignore[arg-type]
    assert [step for step in range(1, 30) if interval.due(step)] == [7, 14, 21, 28]
    assert interval.saved(7, 1.0, 1.0) == ""


def test_progress_tells_speed_and_three_shares_of_the_peak(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    overrides = ["model.layers=32", "model.d_model=4096", "model.heads=32", "model.kv_heads=8"]
    overrides += ["model.d_ff=14336", "model.vocab_size=128256"]
    overrides += ["data.sequence_length=8192", "train.batch_size=1024"]
    progress = Progress(configs.load("tiny.toml", overrides), 256, "TPU v6 lite", clock)
    progress.begin(0)
    for step in range(1, 12):
        clock.now += 4.546
        numbers = progress.did(step, {"loss": 2.0, "gradient_norm": 1.0})
    assert numbers["step_s"] == pytest.approx(4.546)
    assert numbers["tokens_per_s_per_chip"] == pytest.approx(7208, rel=1e-3)
    assert numbers["mfu_non_causal"] == pytest.approx(0.455, abs=1e-3)
    assert numbers["left_s"] == pytest.approx(49 * 4.546)
    output = capsys.readouterr().out
    assert "7,208 tokens/s/chip" in output
    assert "MFU 40.4% causal, 45.5% non_causal, 37.8% 6N" in output
