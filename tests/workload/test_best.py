"""Best checkpoint by the loss on held-out tokens: chosen, retained, named, and found after any kill."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workload.slice import RunFolder, command, train
from tests.workload.test_durable import saved
from workload.__main__ import main
from workload.errors import ConfigError, RunError
from workload.runs.store import FolderStore
from workload.train import base, best
from workload.train import config as configs
from workload.train.best import Evaluated
from workload.train.durable import DurableCopies
from workload.train.evaluation import Evaluation
from workload.train.past import complete_step
from workload.train.stored_steps import FOLDER

# Losses on held-out tokens after each evaluation, every second step of twelve.
LOSSES = {2: 5.0, 4: 3.0, 6: 4.0, 8: 2.0, 10: 2.5, 12: math.nan}


def evaluated(losses: dict[int, float], of: str = "a") -> dict[int, Evaluated]:
    return {step: Evaluated(loss, of) for step, loss in losses.items()}


def test_the_lowest_finite_loss_is_the_best_and_of_equal_ones_the_first() -> None:
    assert best.choose(evaluated(LOSSES)) == 8
    assert best.choose(evaluated({2: 1.0, 4: 1.0, 6: 1.5})) == 2
    assert best.choose(evaluated({2: math.nan, 4: math.inf})) is None
    assert best.choose({}) is None


def test_losses_on_other_tokens_arent_compared() -> None:
    earlier = evaluated({2: 1.0})
    assert best.choose({**earlier, **evaluated({4: 3.0, 6: 4.0}, of="b")}) == 4
    assert best.improves(Evaluated(3.0, "b"), earlier.values())
    assert not best.improves(Evaluated(1.0, "a"), earlier.values()), "equal isn't lower"
    assert not best.improves(Evaluated(math.nan, "b"), [])


def test_damaged_and_absent_losses_are_left_out(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for step, content in {
        2: b"{",
        3: b"[]",
        4: b'{"loss_hex": "x", "of": "a"}',
        5: b'{"loss_hex": 3}',
    }.items():
        store.write(f"{FOLDER}/{step}/{best.NAME}", content)
    store.write(f"{FOLDER}/6/{best.NAME}", Evaluated(1.5, "a").dump(6))
    assert best.read(store, range(8)) == {6: Evaluated(1.5, "a")}
    with pytest.raises(RunError, match=r"no checkpoint has a loss on held-out tokens\n    fix: name a step"):
        best.require(store, [2, 3])


def test_a_folder_that_ends_as_a_best_step_does_is_a_folder(tmp_path: Path) -> None:
    assert not base.is_best(str(tmp_path / "weights@best"))
    assert base.named(str(tmp_path / "weights@best")) == base.Folder(tmp_path / "weights@best")
    assert base.is_best(f"run:{tmp_path}/runs/run@best")
    assert not base.is_best(f"run:{tmp_path}/runs/run@8")


def test_the_best_needs_held_out_tokens() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint.keep_best = true: needs observe.eval_path"):
        configs.load("tiny.toml", ["checkpoint.keep_best=true"])


def line(folder: Path, steps: int, *more: str, every: int = 3) -> list[str]:
    settings = (
        "checkpoint.keep_best=true",
        "checkpoint.keep=1",
        "observe.eval_path=.",
        "observe.eval_every=2",
    )
    return [*command("run", steps, every, *settings, *more), "--dir", str(folder)]


@pytest.fixture(name="losses")
def _losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give evaluations the losses of LOSSES."""
    steps = iter(sorted(LOSSES))

    def loss(evaluation: Evaluation, params: Any, stops: Callable[[], bool]) -> Evaluated:
        return Evaluated(LOSSES[next(steps)], "a")

    monkeypatch.setattr(Evaluation, "loss", loss)


@pytest.mark.slow
@pytest.mark.usefixtures("training", "losses")
def test_the_best_checkpoint_is_saved_retained_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(line(tmp_path, 12)) == 0
    run = RunFolder(tmp_path / "runs/run")
    assert [event["step"] for event in run.events("save")] == [2, 3, 4, 6, 8, 9, 12], (
        "also where it is better"
    )
    assert run.complete() == [8, 12], "the newest, and the best, which is older"
    assert run.json("final.json")["best"] == 8
    assert run.json("checkpoints/8/eval.json")["loss"] == 2.0
    capsys.readouterr()
    assert main(["checkpoints", "list", str(run.path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "       8  complete, the best: 2 on held-out tokens", "      12  complete",
    ]  # fmt: skip
    assert (
        main(["checkpoints", "export", str(run.path), "--step", "best", "--out", str(tmp_path / "hf")]) == 0
    )
    exported = capsys.readouterr().out
    assert "hf: step 8; bfloat16 weights in model.safetensors" in exported
    assert "the best is" not in exported
    assert main(["checkpoints", "export", str(run.path), "--out", str(tmp_path / "last")]) == 0
    exported = capsys.readouterr().out
    assert "last: step 12; " in exported
    assert exported.endswith("the best is step 8, with 2 on held-out tokens: --step best\n")
    with pytest.raises(SystemExit):
        main(["checkpoints", "export", str(run.path), "--step", "zz", "--out", str(tmp_path / "no")])
    assert "zz: must be a step, or best" in capsys.readouterr().err
    assert base.find("model.weights", f"run:{run.path}@best")[1] == 8

    given = (f"train.init_from=run:{run.path}@best", "train.init_with=step")
    fork = [*command("fork", 13, 13, *given), "--dir", str(tmp_path)]
    assert train(fork) == 0
    status = run.json("status.json")
    assert (status["best"], status["best_loss"]) == (8, 2.0)
    recorded = RunFolder(tmp_path / "runs/fork").json("config.json")["exact"]["train"]["init_from"]
    assert recorded == f"run:{run.path}@8"
    # Another best one since: the fork stays what it was begun as.
    (run.path / "checkpoints/12/eval.json").write_bytes(Evaluated(0.5, "a").dump(12))
    assert complete_step(FolderStore(run.path), "best") == 12
    assert train(fork) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("training", "losses")
def test_the_best_is_known_after_a_kill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The later steps' losses are higher: a start that didn't know step 4 would take the first of them."""
    assert train(line(tmp_path, 4, every=100)) == 0
    run = RunFolder(tmp_path / "runs/run")
    assert run.complete() == [4]
    assert train([*line(tmp_path, 6, every=100), "--extend"]) == 0
    assert run.complete() == [4, 6]
    assert run.json("final.json")["best"] == 4
    (run.path / "checkpoints/4/commit_success.txt").unlink()
    assert complete_step(FolderStore(run.path), "best") == 6, "an incomplete one is none"


@pytest.mark.slow
@pytest.mark.usefixtures("training")
def test_keeping_the_best_changes_no_bits(tmp_path: Path) -> None:
    assert train(line(tmp_path, 6)) == 0
    assert train([*command("without", 6, 6), "--dir", str(tmp_path)]) == 0
    ended, without = (RunFolder(tmp_path / "runs" / name).json("final.json") for name in ("run", "without"))
    assert without == {key: value for key, value in ended.items() if key != "best"}
    final = tmp_path / "runs/run/final.json"
    final.write_text(json.dumps({**ended, "best": 2}))  # as with other tokens held out
    assert train(line(tmp_path, 6)) == 0


def test_the_best_one_is_kept_durable(tmp_path: Path) -> None:
    run, steps = FolderStore(tmp_path / "run"), FolderStore(tmp_path / "steps")
    run.write("config.json", b"{}")
    for step, loss in {1: 3.0, 2: 1.0, 3: 2.0, 4: 4.0}.items():
        saved(steps, step)
        steps.write(f"{FOLDER}/{step}/{best.NAME}", Evaluated(loss, "a").dump(step))
    copies = DurableCopies(run, steps, 0, keep=1, keep_best=True)
    for step in (1, 3, 4):
        copies.saved(step)
        copies.wait()
    copies.end(4)
    assert best.require(run, [2, 4]) == 2
    assert not (tmp_path / "run" / FOLDER / "3").exists()
