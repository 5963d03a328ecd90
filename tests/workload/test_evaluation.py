"""The loss on held-out tokens: the right number, at its steps, and a run that doesn't notice it."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.workload.slice import SETTINGS, RunFolder, Workers, train
from workload.train.preemption import Preemption

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("training")]


def line(folder: Path, name: str, *more: str) -> list[str]:
    settings = [*SETTINGS, "train.steps=8", "optimizer.warmup_steps=1", *more]
    return ["tiny.toml", "--name", name, "--dir", str(folder), *(f"--set={setting}" for setting in settings)]


def trained(folder: Path, name: str, *more: str) -> RunFolder:
    assert train(["train", *line(folder, name, *more)]) == 0
    return RunFolder(folder / "runs" / name)


def evaluated(run: RunFolder) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in run.events("eval")}


def test_it_is_the_loss_of_the_model_as_it_is(tmp_path: Path) -> None:
    """With the training tokens held out, seed 0 and no learning, the first batch is the first step's."""
    still = ["optimizer.learning_rate=1e-30", "observe.eval_path=.", "observe.eval_every=4"]
    run = trained(tmp_path, "still", *still, "observe.eval_batches=1")
    (first,) = run.losses()[1]
    assert evaluated(run) == pytest.approx(dict.fromkeys((4, 8), float.fromhex(first)), abs=1e-4)
    workers = Workers(2, line(tmp_path, "two", *still, "observe.eval_batches=3"), {}, tmp_path / "logs")
    parts = trained(tmp_path, "parts", *still, "observe.eval_batches=3", "train.accumulate=4")
    two = RunFolder(tmp_path / "runs" / "two")
    assert workers.wait() == [0, 0], workers.output()
    assert evaluated(parts) == pytest.approx(evaluated(two), abs=1e-4)
    assert [*(two.path / "events").glob("*-eval.json")] != []


def test_a_run_ends_with_the_same_bits_as_without(tmp_path: Path) -> None:
    without = trained(tmp_path, "without")
    run = trained(tmp_path, "with", "observe.eval_path=.", "observe.eval_every=3")
    assert [*evaluated(run)] == [3, 6, 8], "and after the last step"
    assert evaluated(run)[8] < evaluated(run)[3]
    assert run.json("final.json") == without.json("final.json")
    (account,) = (run.path / "goodput").glob("*.json")
    assert json.loads(account.read_text())["accounts"]["eval"] > 0


@pytest.mark.parametrize("batch", [0, 2], ids=["before it", "within it"])
def test_a_notice_doesnt_wait_for_an_evaluation_which_the_next_start_makes_up(
    batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [
        "observe.eval_path=.",
        "observe.eval_every=3",
        "observe.eval_batches=4",
        "checkpoint.keep_best=true",
    ]
    undisturbed = trained(tmp_path, "undisturbed", *settings)
    calls = 0
    reached = Preemption.reached

    def noticed(preemption: Preemption) -> bool:  # the third step's, or that within its evaluation
        nonlocal calls
        calls += 1
        if calls == 3 + batch:
            os.kill(os.getpid(), signal.SIGTERM)
        return reached(preemption)

    with monkeypatch.context() as patched:
        patched.setattr(Preemption, "reached", noticed)
        assert train(["train", *line(tmp_path, "noticed", *settings)]) == 0
    run = RunFolder(tmp_path / "runs" / "noticed")
    assert (run.complete(), evaluated(run), calls) == ([3], {}, 3 + batch)
    again = trained(tmp_path, "noticed", *settings)
    assert evaluated(again) == evaluated(undisturbed)
    assert [*evaluated(again)] == [3, 6, 8]
    assert again.json("final.json") == undisturbed.json("final.json")
    assert (run.path / "checkpoints" / "3" / "eval.json").exists()


def test_tokens_that_do_not_fit_are_refused(
    tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfit = tmp_path / "unfit"
    unfit.mkdir()
    manifest = json.loads((tokens / "manifest.json").read_text())
    first, few = manifest["shards"][0], 200
    raw = (tokens / first["file"]).read_bytes()
    (unfit / first["file"]).write_bytes(raw[: few * np.dtype(manifest["dtype"]).itemsize])
    manifest |= {"shards": [{**first, "tokens": few}], "tokenizer_sha256": "ab" * 32}
    (unfit / "manifest.json").write_text(json.dumps(manifest))
    assert train(["train", *line(tmp_path, "unfit", f"observe.eval_path={unfit}")]) == 2
    output = capsys.readouterr().err
    assert "must use the training tokens' tokenizer" in output
    assert "must hold a batch of 16 examples" in output
