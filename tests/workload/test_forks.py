"""Runs that begin with another run's parameters, optimizer's state or step, and what must be equal for it."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.limits import HANG_S
from tests.workload.slice import Command, RunFolder, Workers, command, train
from workload.__main__ import main
from workload.runs.store import FolderStore
from workload.train import optimizer
from workload.train.past import Past

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("training")]

LION = ("optimizer.name=lion", "optimizer.options={b1=0.8}", "optimizer.schedule=constant")
STEPS = 4


@pytest.fixture(name="root", scope="module")
def _root(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, `first`, of Lion, with checkpoints 2 and 4."""
    root = tmp_path_factory.mktemp("forks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA_DIR", str(tokens))
        patch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        assert train([*command("first", STEPS, 2, *LION), "--dir", str(root)]) == 0
    return root


def fork(root: Path, folder: Path, begin: str, steps: int, *more: str, step: int | str = 2) -> list[str]:
    given = (f"train.init_from=run:{root}/runs/first@{step}", f"train.init_with={begin}")
    return [*command("fork", steps, 2, *LION, *given, *more), "--dir", str(folder)]


def state(folder: Path, run: str, step: int) -> Any:
    return Past.read(FolderStore(folder / "runs" / run)).restore(step, whole_state=True)


def same(left: Any, right: Any) -> bool:
    equal = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), left, right)
    return all(jax.tree.leaves(equal))


def test_a_fork_with_the_step_goes_on_to_the_bit_as_the_run_itself_did(root: Path, tmp_path: Path) -> None:
    assert train(fork(root, tmp_path, "step", STEPS)) == 0
    first, forked = RunFolder(root / "runs/first"), RunFolder(tmp_path / "runs/fork")
    assert forked.json("final.json") == first.json("final.json")
    assert forked.losses() == {step: loss for step, loss in first.losses().items() if step > 2}
    assert forked.complete() == [4]
    (event,) = forked.events("weights")
    assert (event["taken"], event["step"], event["changed"]) == ("step", 2, {})
    assert forked.events("restore") == []
    assert main(["checkpoints", "verify", str(forked.path)]) == 0


def test_a_fork_that_is_killed_ends_with_the_same_bits(root: Path, tmp_path: Path, tokens: Path) -> None:
    """Other settings than the run's, killed before its first checkpoint and after it."""
    other = ("train.batch_size=8", "train.seed=7", "optimizer.learning_rate=0.01", "checkpoint.every_steps=6")
    assert train(fork(root, tmp_path / "whole", "step", 12, *other)) == 0
    line = fork(root, tmp_path / "killed", "step", 12, *other)
    run, whole = RunFolder(tmp_path / "killed/runs/fork"), RunFolder(tmp_path / "whole/runs/fork")
    for number, kill in enumerate(
        (lambda: run.path.joinpath("config.json").exists(), lambda: run.complete() == [6])
    ):
        process = Command(line, tmp_path / f"log-{number}", {"DATA_DIR": str(tokens)})
        give_up = time.monotonic() + HANG_S
        while not kill() and process.status is None:
            assert time.monotonic() < give_up, process.log.read_text()
            time.sleep(0.01)
        process.kill()
    assert train(line) == 0
    assert run.json("final.json") == whole.json("final.json")
    assert run.losses() == whole.losses()
    assert sorted(run.losses()) == [*range(3, 13)]
    changed = run.json("config.json")["forked"]
    assert changed == {
        "optimizer.learning_rate": [0.003, 0.01],
        "train.batch_size": [16, 8],
        "train.seed": [0, 7],
        "train.steps": [4, 12],
    }


def test_a_fork_with_the_optimizers_state_begins_its_schedule_anew(root: Path, tmp_path: Path) -> None:
    more = ("optimizer.warmup_steps=0", "optimizer.learning_rate=1e-30", "checkpoint.every_steps=1")
    assert train(fork(root, tmp_path, "optimizer", 2, *more)) == 0
    was, now = state(root, "first", 2), state(tmp_path, "fork", 1)
    assert int(optimizer.finished(now["opt_state"])) == 1
    moments = [jax.tree.leaves(tree["opt_state"][1][0].mu) for tree in (was, now)]
    unlike = [float(np.abs(a - 0.99 * b).max()) for b, a in zip(*moments, strict=True)]
    alone = [float(np.abs(a).max()) for a in moments[1]]
    assert max(u / a for u, a in zip(unlike, alone, strict=True)) < 0.9, "they go on from the run's"
    assert [*RunFolder(tmp_path / "runs/fork").losses()] == [1, 2]


def test_a_fork_with_parameters_alone_begins_everything_else_anew(root: Path, tmp_path: Path) -> None:
    """Another optimizer, and no update: the rate of the first step of a warm-up is 0."""
    given = f"train.init_from=run:{root}/runs/first@4"
    assert train([*command("fork", 2, 1, given), "--dir", str(tmp_path)]) == 0
    forked = state(tmp_path, "fork", 1)
    assert same(forked["params"], state(root, "first", 4)["params"])
    assert int(optimizer.finished(forked["opt_state"])) == 1


def test_two_workers_fork_a_run_of_one(root: Path, tmp_path: Path, tokens: Path) -> None:
    line = fork(root, tmp_path, "step", STEPS)
    workers = Workers(2, line[1:], {"DATA_DIR": str(tokens)}, tmp_path / "logs")
    assert workers.wait() == [0, 0], workers.output()
    alone, together = RunFolder(root / "runs/first").losses(), RunFolder(tmp_path / "runs/fork").losses()
    assert [*together] == [3, 4]
    for step, (loss,) in together.items():
        assert float.fromhex(loss) == pytest.approx(float.fromhex(*alone[step]), rel=1e-4)


REFUSED = [
    ("step", ("optimizer.name=sgd", "optimizer.options={}"), "optimizer.name is lion there, sgd here"),
    ("step", ("optimizer.options={mu_dtype='bfloat16'}",), "is float32, here bfloat16"),
    ("step", ("train.steps=2",), "train.steps = 2 must be more than its step, 2"),
    ("optimizer", ("optimizer.name=adamw", "optimizer.options={}"), "is lion there, adamw here"),
    ("parameters", ("model.d_ff=96",), "model.d_ff = 96: must be 64, as in run:"),
    ("parameters", ("model.rope_theta=5000",), "model.rope_theta = 5000.0: must be 10000.0, as in run:"),
    ("step", ("lora.rank=2",), 'has no adapters, whose state train.init_with = "step" takes'),
    ("everything", (), "must be one of parameters, optimizer, step"),
    ("step", ("train.init_from=weights",), "is of a run in train.init_from, which is 'weights'"),
    ("step", ("train.init_from=",), "is of a run in train.init_from, which is ''"),
    ("step", ("train.init_from=run:first",), "must name a run and one of its steps, or best"),
    ("step", ("train.init_from=run:first@newest",), "must name a run and one of its steps, or best"),
]  # fmt: skip


@pytest.mark.parametrize(("begin", "more", "message"), REFUSED)
def test_what_must_be_equal_is_named_and_binds_no_name(
    begin: str,
    more: tuple[str, ...],
    message: str,
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(fork(root, tmp_path, begin, STEPS, *more)) == 2
    output = capsys.readouterr().err
    assert message in output
    assert "fix: " in output
    assert not (tmp_path / "runs/fork/config.json").exists()


def test_a_step_that_is_no_more_is_named_with_those_that_are(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(fork(root, tmp_path, "step", STEPS, step=3)) == 1
    assert "no complete checkpoint 3\n    fix: one of [2, 4]" in capsys.readouterr().err
    assert train(fork(root, tmp_path, "step", STEPS, step="best")) == 1
    assert "no checkpoint has a loss on held-out tokens\n    fix: name a step" in capsys.readouterr().err


def test_adapters_begin_beside_a_runs_parameters_and_are_merged(root: Path, tmp_path: Path) -> None:
    given = ("lora.rank=2", f"train.init_from=run:{root}/runs/first@4", "optimizer.warmup_steps=0")
    assert train([*command("adapters", 2, 2, *given), "--dir", str(tmp_path)]) == 0
    run = tmp_path / "runs/adapters"
    assert len(RunFolder(run).json("config.json")["exact"]["base_sha256"]) == 64
    export = ["checkpoints", "export", str(run), "--merged", "--out", str(tmp_path / "hf")]
    assert main(export) == 0
    assert json.loads((tmp_path / "hf/config.json").read_text())["num_hidden_layers"] == 1


def adapters(folder: Path, run: str, begin: str, *more: str) -> list[str]:
    """Return a run of adapters that begins with a checkpoint."""
    return [*command(run, STEPS, 2, "lora.rank=2", f"train.init_from={begin}", *more), "--dir", str(folder)]


@pytest.fixture(name="adapted", scope="module")
def _adapted(root: Path, tokens: Path) -> Path:
    """The folder of `root` with a run of adapters, `adapted`, too, with checkpoints 2 and 4."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA_DIR", str(tokens))
        patch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        assert train(adapters(root, "adapted", f"run:{root}/runs/first@4", *LION)) == 0
    return root


def test_a_fork_of_adapters_goes_on_to_the_bit_beside_the_same_weights(adapted: Path, tmp_path: Path) -> None:
    line = adapters(tmp_path, "fork", f"run:{adapted}/runs/adapted@2", "train.init_with=step", *LION)
    assert train(line) == 0
    first, fork = RunFolder(adapted / "runs/adapted"), RunFolder(tmp_path / "runs/fork")
    assert fork.json("final.json") == first.json("final.json")
    assert fork.losses() == {step: loss for step, loss in first.losses().items() if step > 2}
    # A fork of the fork, which lost its last step, and the export that adds the adapters to the weights.
    again = adapters(tmp_path, "again", f"run:{tmp_path}/runs/fork@4", "optimizer.warmup_steps=1", *LION)
    assert train(again) == 0
    run = RunFolder(tmp_path / "runs/again")
    assert run.json("config.json")["base"] == first.json("config.json")["exact"]["train"]["init_from"]
    ended = run.json("final.json")
    shutil.rmtree(run.path / "checkpoints/4")
    (run.path / "final.json").unlink()
    assert train(again) == 0
    assert (run.json("final.json"), run.events("restore")[0]["step"]) == (ended, 2)
    export = ["checkpoints", "export", str(run.path), "--merged", "--out", str(tmp_path / "hf")]
    assert main(export) == 0


def test_adapters_are_taken_without_their_optimizer(adapted: Path, tmp_path: Path) -> None:
    """No update: the rate of the first step of a warm-up is 0."""
    line = adapters(
        tmp_path, "fork", f"run:{adapted}/runs/adapted@2", "checkpoint.every_steps=1", "checkpoint.keep=4"
    )
    assert train(line) == 0
    taken, was = state(tmp_path, "fork", 1), state(adapted, "adapted", 2)
    assert same(taken["params"], was["params"])
    assert int(optimizer.finished(taken["opt_state"])) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("lora.rank=3",), "has shape (1, 32, 2), this run's is (1, 32, 3)"),
        (("lora.alpha=4",), "lora.alpha is 16.0 there, 4.0 here"),
        (('lora.targets=["q_proj"]',), "is of no array of this run"),
        (("lora.rank=0",), "its checkpoints hold adapters alone\n    fix: lora.rank = 2, to go on with them"),
        (("train.init_with=step", "optimizer.name=sgd"), "optimizer.name is lion there, sgd here"),
    ],
)
def test_what_adapters_must_share_is_named(
    more: tuple[str, ...], message: str, adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(adapters(tmp_path, "fork", f"run:{adapted}/runs/adapted@2", *more)) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs/fork/config.json").exists()
