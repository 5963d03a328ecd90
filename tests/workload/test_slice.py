"""Two workers, taken away in every way there is, end bit for bit where undisturbed ones do.

Two runs are made once for the whole file. `whole` is left alone. `disturbed` is, in turn:
killed on one worker, so that the others have to notice; told of a preemption on one worker;
killed on all workers at a random moment and bereft of its newest checkpoint's marker; left to
finish; started again after a bit of its last checkpoint was flipped in a file of worker 1. Four
workers are left to `make rehearse` and `make prove`.
"""

import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.workload.slice import SETTINGS, RunFolder, Workers
from workload.errors import HopelessError
from workload.runs.store import FolderStore

WORKERS = 2
STEPS, EVERY = 80, 10
ARGUMENTS = ["tiny.toml", f"--set=train.steps={STEPS}", f"--set=checkpoint.every_steps={EVERY}"]
pytestmark = pytest.mark.slow


@dataclass
class Scenario:
    """Observations of the disturbed run."""

    run: RunFolder
    exits: dict[str, list[int | None]] = field(default_factory=dict)
    complete_after: dict[str, list[int]] = field(default_factory=dict)
    status_when_preempted: dict[str, object] = field(default_factory=dict)
    unmarked: int = 0


def start(
    run: str,
    root: Path,
    tokens: Path,
    logs: str,
    only: Mapping[int, Sequence[str]] | None = None,
    prepare: Callable[[], None] | None = None,
) -> Workers:
    """Start all workers; `only`: more arguments of some, `prepare`: called by each first."""
    arguments = [*ARGUMENTS, *(f"--set={setting}" for setting in SETTINGS), "--name", run, "--dir", str(root)]
    environment = {"DATA_DIR": str(tokens), "TPU_NAME": "tpu-test"}
    return Workers(WORKERS, arguments, environment, root / "logs" / logs, only or {}, prepare)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slice")


@pytest.fixture(scope="module")
def whole(root: Path, tokens: Path) -> RunFolder:
    workers = start("whole", root, tokens, "whole")
    assert workers.wait() == [0] * WORKERS, workers.output()
    return RunFolder(root / "runs" / "whole")


@pytest.fixture(scope="module")
def disturbed(root: Path, tokens: Path) -> Scenario:
    scenario = Scenario(RunFolder(root / "runs" / "disturbed"))
    moments = random.Random(20261120)

    def leave(how: str, what: signal.Signals, on: list[int]) -> None:
        """While it saves what no start before it saved, or in the half second after that."""
        newest = max(scenario.run.begun(), default=0)
        step = newest - newest % EVERY + EVERY
        workers = start("disturbed", root, tokens, how)
        try:
            workers.wait_until(lambda: scenario.run.has_begun_to_save(step))
            time.sleep(moments.uniform(0, 0.5))
            workers.send(what, on)
            scenario.exits[how] = workers.wait()
        finally:
            workers.kill()
        assert not (scenario.run.path / "final.json").exists(), "the run was over before it was disturbed"
        scenario.complete_after[how] = scenario.run.complete()

    leave("one killed", signal.SIGKILL, [moments.randrange(WORKERS)])
    leave("preempted", signal.SIGTERM, [moments.randrange(WORKERS)])
    scenario.status_when_preempted = scenario.run.json("status.json")
    leave("all killed", signal.SIGKILL, list(range(WORKERS)))
    scenario.unmarked = scenario.run.complete()[-1]
    (scenario.run.path / "checkpoints" / str(scenario.unmarked) / "commit_success.txt").unlink()
    workers = start("disturbed", root, tokens, "finish")
    scenario.exits["finish"] = workers.wait()
    assert scenario.exits["finish"] == [0] * WORKERS, workers.output()
    written = (scenario.run.path / f"checkpoints/{STEPS}/ocdbt.process_1/d").iterdir()
    largest = max(written, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    workers = start("disturbed", root, tokens, "flipped")
    scenario.exits["flipped"] = workers.wait()
    assert scenario.exits["flipped"] == [0] * WORKERS, workers.output()
    return scenario


def test_the_disturbed_run_ends_bit_for_bit_where_the_whole_one_does(
    whole: RunFolder, disturbed: Scenario
) -> None:
    assert disturbed.run.json("final.json") == whole.json("final.json")
    assert whole.json("final.json")["step"] == STEPS
    losses = whole.losses()
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert all(len(seen) == 1 for seen in losses.values())
    assert disturbed.run.losses() == losses


def test_it_learns_from_real_text(whole: RunFolder) -> None:
    losses = {step: float.fromhex(seen) for step, (seen,) in whole.losses().items()}
    assert losses[1] == pytest.approx(6.05, abs=0.4)  # ln 257 + 1/2: undecided, logits of variance 1
    assert sum(losses[step] for step in range(STEPS - 9, STEPS + 1)) / 10 < losses[1] - 1
    assert whole.json("final.json")["loss_hex"] == losses[STEPS].hex()


def test_a_run_leaves_what_the_contract_says(whole: RunFolder) -> None:
    status = whole.json("status.json")
    assert status.pop("updated").endswith("Z")
    assert status.pop("loss") == float.fromhex(whole.json("final.json")["loss_hex"])
    assert status.keys() >= {"gradient_norm", "step_s", "tokens_per_s_per_chip", "left_s"}
    status = {key: status[key] for key in ("state", "step", "steps", "run", "node")}
    assert status == {"state": "done", "step": STEPS, "steps": STEPS, "run": "whole", "node": "tpu-test"}
    segments = sorted(path.name for path in (whole.path / "metrics").iterdir())
    assert segments == sorted(f"steps-{to - EVERY}-{to}.jsonl" for to in range(EVERY, STEPS + 1, EVERY))
    assert whole.complete() == [STEPS - 2 * EVERY, STEPS - EVERY, STEPS]
    assert list((whole.path / "tensorboard").glob("events.out.tfevents.*"))


def test_killing_one_worker_ends_the_others(disturbed: Scenario) -> None:
    exits = disturbed.exits["one killed"]
    assert exits.count(-signal.SIGKILL) >= 1
    assert 0 not in exits


def test_a_notice_to_one_worker_saves_all_at_one_step(disturbed: Scenario) -> None:
    # Nobody says that these machines are taken away: they are to meet again.
    assert disturbed.exits["preempted"] == [75] * WORKERS
    (event,) = disturbed.run.events("preempted")
    step = event["step"]
    assert EVERY <= step < STEPS
    assert disturbed.complete_after["preempted"][-1] == step
    assert disturbed.status_when_preempted["state"] == "preempted"
    assert disturbed.status_when_preempted["step"] == step


def test_each_start_goes_on_from_the_newest_complete_step(disturbed: Scenario) -> None:
    after = disturbed.complete_after
    restored = [event["step"] for event in disturbed.run.events("restore")]
    of_one = after["one killed"][-1:]  # none, if it was killed while it saved its first
    assert restored == [*of_one, after["preempted"][-1], after["all killed"][-2], STEPS - EVERY]
    # The last start passed over the step whose marker was gone, and said so.
    assert disturbed.unmarked == after["all killed"][-1]
    (passed_over,) = [
        event for event in disturbed.run.events("passed-over") if event["step"] == disturbed.unmarked
    ]
    assert "no marker" in passed_over["reason"]
    (flipped,) = [event for event in disturbed.run.events("passed-over") if event["step"] == STEPS]
    assert flipped["reason"]


def test_workers_with_different_settings_are_refused_and_named(root: Path, tokens: Path) -> None:
    # The batch divides over no two devices: what it can't use a worker must not find out alone.
    changed = ["--set=train.batch_size=15", "--set=optimizer.learning_rate=0.5"]
    workers = start("unlike", root, tokens, "unlike", {1: changed})
    assert workers.wait() == [HopelessError.exit_code] * WORKERS, workers.output()
    first, second = (log.read_text() for log in workers.logs)
    assert "worker 1 would train another way than worker 0\n" in first
    assert "optimizer.learning_rate is 0.003 there, 0.5 here; train.batch_size is 16 there, 15 here" in second
    # Nor is the name taken: with the same settings everywhere it is still free for whichever they are.
    assert not (root / "runs" / "unlike" / "config.json").exists()


def slow_reads() -> None:
    """Let losses take longer to read than leaving may."""
    read = FolderStore.read

    def slow(store: FolderStore, name: str, *part: Any) -> bytes:
        time.sleep(4 if name.startswith("metrics/") else 0)
        return read(store, name, *part)

    FolderStore.read = slow  # type: ignore[method-assign]


def test_the_others_wait_for_what_worker_0_writes_at_the_end(root: Path, tokens: Path) -> None:
    quick = ["--set=train.steps=20", "--set=cluster.shutdown_timeout_s=1"]
    workers = start("slow-end", root, tokens, "slow-end", dict.fromkeys(range(WORKERS), quick), slow_reads)
    assert workers.wait() == [0] * WORKERS, workers.output()
    run = RunFolder(root / "runs" / "slow-end")
    assert run.json("final.json")["step"] == 20
    assert run.json("status.json")["state"] == "done"
