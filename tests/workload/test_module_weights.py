"""Modules that begin with another run's parameters, whole or frozen beside adapters."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.workload.slice import RunFolder, Workers, train
from tests.workload.test_modules import EXAMPLES, config_of, line
from workload.__main__ import main
from workload.errors import ConfigError, WeightsError
from workload.modules import lora
from workload.modules.module import UserModule
from workload.runs.store import FolderStore
from workload.train import base
from workload.train.base import Checkpoint
from workload.train.module_step import open_module
from workload.train.past import Past

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_in_the_examples", "training")]

LORA = (
    "lora.rank=2",
    "lora.alpha=4.0",
    r'lora.targets=["blocks\\..*\\.(up|out)"]',
    "optimizer.learning_rate=0.05",
)
QUICK = "compute.quick_compile=true"


@pytest.fixture
def _in_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.fixture(name="root", scope="module")
def _root(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a transformer, `base`, and one of adapters beside it, `lora`."""
    root = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(EXAMPLES)
        patch.syspath_prepend(str(EXAMPLES))
        patch.setenv("DATA_DIR", str(tokens))
        patch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        assert train(line("transformer:Model", "base", root, "train.steps=2", QUICK)) == 0
        assert train(adapted(root)) == 0
    return root


def adapted(root: Path, *more: str) -> list[str]:
    begin = f"train.init_from=run:{root / 'runs/base'}@2"
    return line("transformer:Model", "lora", root, "train.steps=4", QUICK, begin, *LORA, *more)


def params(root: Path, run: str, step: int) -> dict[str, Any]:
    state: dict[str, Any] = Past.read(FolderStore(root / "runs" / run)).restore(step, whole_state=False)
    return state["params"]  # type: ignore[no-any-return]


def paths(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def test_a_run_begins_with_another_runs_parameters(root: Path, tmp_path: Path) -> None:
    begin = f"train.init_from=run:{root / 'runs/base'}@2"
    more = (begin, "train.steps=2", "optimizer.warmup_steps=1", "checkpoint.every_steps=1", QUICK)
    assert train(line("transformer:Model", "tuned", tmp_path, *more)) == 0
    before, after = paths(params(root, "base", 2)), paths(params(tmp_path, "tuned", 1))
    assert before.keys() == after.keys()
    for name, value in before.items():  # the learning rate of the first update is 0
        np.testing.assert_array_equal(value, after[name])
    events = RunFolder(tmp_path / "runs/tuned").events("weights")
    assert [event["folder"] for event in events] == [begin.partition("=")[2]]


def test_parameters_of_another_tree_or_shape_are_refused_in_one_message_and_bind_no_name(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = f"train.init_from=run:{root / 'runs/base'}@2"
    other = "model.settings={layers=2, width=16, heads=2}"
    assert train(line("transformer:Model", "tuned", tmp_path, begin, QUICK, other)) == 2
    output = capsys.readouterr().err
    assert "runs/base@2: 16 arrays don't fit\n    blocks.1.attention.key.bias is missing\n" in output
    assert "\n    and 8 more\n    fix: name a run of the same module with the same model.settings" in output
    assert not (tmp_path / "runs/tuned/config.json").exists()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("up", {"kernel": (16, 32)}, "blocks.0.up.kernel has shape (16, 64), this run's is (16, 32)"),
        ("down", None, "blocks.0.down.kernel is of no array of this run"),
        ("gate", {"kernel": (16, 64)}, "blocks.0.gate.kernel is missing"),
    ],
)
def test_each_array_that_doesnt_fit_is_named(
    name: str, change: dict[str, Any] | None, message: str, root: Path
) -> None:
    known = Checkpoint(FolderStore(root / "runs/base"), 2)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params(root, "base", 2))
    block = shapes["blocks"]["0"]
    if change is None:
        del block[name]
    else:
        given = {key: jax.ShapeDtypeStruct(shape, jnp.float32) for key, shape in change.items()}
        block[name] = {**block.get(name, {}), **given}
    with pytest.raises(WeightsError) as refused:
        known.fits(config_of("transformer:Model", {}), shapes, {}, "")
    assert message in str(refused.value)


def test_what_no_run_or_no_checkpoint_is_called_is_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, message in {
        "run:first": "train.init_from = 'run:first': must name a run and one of its steps",
        f"run:{root}/runs/none@2": "no run was begun here",
        f"run:{root}/runs/base@7": "no complete checkpoint 7",
        f"run:{root}/runs/lora@4": "its checkpoints hold adapters alone",
    }.items():
        assert train(line("transformer:Model", "tuned", tmp_path, f"train.init_from={name}")) != 0
        assert message in capsys.readouterr().err


def test_a_run_of_another_tokenizer_is_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "runs/base", tmp_path / "base")
    (tmp_path / "base/tokenizer").mkdir(exist_ok=True)
    (tmp_path / "base/tokenizer/tokenizer.json").write_text("{}")
    known = Checkpoint(FolderStore(tmp_path / "base"), 2)
    with pytest.raises(WeightsError, match="has another tokenizer than the tokens"):
        known.fits(config_of("transformer:Model", {}), params(root, "base", 2), {}, "0" * 64)


def test_a_checkpoint_of_adapters_holds_them_alone_and_is_done_again_to_the_bit(
    root: Path, tmp_path: Path
) -> None:
    shapes = {name: leaf.shape for name, leaf in paths(params(root, "lora", 4)).items()}
    assert shapes == {
        "blocks.0.attention.out.kernel_lora_a": (16, 2),
        "blocks.0.attention.out.kernel_lora_b": (2, 16),
        "blocks.0.up.kernel_lora_a": (16, 2),
        "blocks.0.up.kernel_lora_b": (2, 64),
    }
    run = root / "runs/lora"
    ended = json.loads((run / "final.json").read_text())
    shutil.rmtree(run / "checkpoints/4")
    (run / "final.json").unlink()
    assert train(adapted(root)) == 0
    assert json.loads((run / "final.json").read_text()) == ended
    assert [event["step"] for event in RunFolder(run).events("restore")] == [2]
    assert len(RunFolder(run).losses()) == 4


def test_a_fork_of_adapters_goes_on_to_the_bit_beside_the_same_parameters(root: Path, tmp_path: Path) -> None:
    begin = (f"train.init_from=run:{root / 'runs/lora'}@2", "train.init_with=step")
    assert train(line("transformer:Model", "fork", tmp_path, "train.steps=4", QUICK, *LORA, *begin)) == 0
    fork = RunFolder(tmp_path / "runs/fork")
    assert fork.json("final.json") == RunFolder(root / "runs/lora").json("final.json")
    assert sorted(fork.losses()) == [3, 4]
    assert fork.json("config.json")["base"] == f"run:{root / 'runs/base'}@2"


def test_two_workers_read_their_parts_of_what_they_begin_with(
    root: Path, tokens: Path, tmp_path: Path
) -> None:
    arguments = [
        word.replace(f"{root}", f"{tmp_path}") if word == str(root) else word for word in adapted(root)
    ]
    workers = Workers(2, arguments[1:], {"DATA_DIR": str(tokens)}, tmp_path / "logs")
    assert workers.wait() == [0, 0], workers.output()
    alone, together = (RunFolder(folder / "runs/lora").losses() for folder in (root, tmp_path))
    assert together.keys() == alone.keys()
    for step, (loss,) in together.items():
        assert float.fromhex(loss) == pytest.approx(float.fromhex(*alone[step]), rel=1e-4)


def test_the_merged_export_computes_what_the_adapters_do(root: Path, tmp_path: Path) -> None:
    run = str(root / "runs/lora")
    for out, more in (("beside", []), ("merged", ["--merged"])):
        assert (
            main(["checkpoints", "export", run, "--out", str(tmp_path / out), "--dtype", "float32", *more])
            == 0
        )
    about = json.loads((tmp_path / "beside/config.json").read_text())
    assert (about["lora"]["rank"], about["base"]) == (2, f"run:{root / 'runs/base'}@2")
    assert load_file(tmp_path / "beside/model.safetensors").keys() == paths(params(root, "lora", 4)).keys()
    frozen, trained = params(root, "base", 2), params(root, "lora", 4)
    assert np.any(np.asarray(trained["blocks"]["0"]["up"]["kernel_lora_b"])), "it has learned"
    merged = load_file(tmp_path / "merged/model.safetensors")
    assert merged.keys() == paths(frozen).keys()

    def settings(*more: str) -> Any:
        given = {"layers": 1, "width": 16, "heads": 2}
        return config_of("transformer:Model", given, "model.vocab_size=257", *more)

    rng = np.random.default_rng(0)
    batch = {name: jnp.asarray(rng.integers(0, top, (8, 9)), jnp.int32)
             for name, top in (("tokens_BxL1", 257), ("segments_BxL1", 1))}  # fmt: skip
    key = jax.random.key(0)

    def sums(module: UserModule, *values: Any) -> tuple[jax.Array, jax.Array]:
        result: tuple[jax.Array, jax.Array] = jax.jit(partial(module.sums, trains=False))(*values, batch, key)
        return result

    beside = open_module(settings(*LORA, f"train.init_from=run:{root / 'runs/base'}@2"))
    total, count = sums(beside, frozen, trained)
    whole = lora.merged(frozen, trained, settings(*LORA, "train.init_from=run:x@1").lora)
    for name, value in paths(whole).items():
        np.testing.assert_array_equal(value, merged[name])
    bare = open_module(settings())
    (expected, _), (plain, _) = sums(bare, {}, whole), sums(bare, {}, frozen)
    assert count == 64
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert abs(float(plain - expected)) > 1e-3


def test_adapters_that_cant_be_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = adapted(root, 'lora.targets=["q_proj", "blocks.*"]')
    assert train(other) == 2
    output = capsys.readouterr().err
    assert "lora.targets = 'q_proj': matches no layer of transformer:Model" in output
    assert "a regular expression of blocks.0.attention.key, blocks.0.attention.out" in output
    begin = "train.init_from=run:x@1"
    with pytest.raises(ConfigError, match=r"lora\.rank = 2: is for modules of nnx alone"):
        open_module(config_of("of_linen:Model", {"width": 16}, *LORA, begin))
    settings = {"layers": 2, "width": 16, "heads": 2, "experts": 4}
    with pytest.raises(ConfigError, match="qwix raises IndexError"):
        open_module(config_of("mixture:Model", settings, *LORA, begin))
    with pytest.raises(ConfigError, match=r'train\.init_from = "": must be set'):
        config_of("transformer:Model", {}, "lora.rank=2")


def test_other_parameters_beside_the_adapters_are_another_run(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Past, "identity", lambda self, step: {"run_sha256": "0", "step": step})
    assert train(adapted(root)) == 2
    assert "begun with other settings: base_sha256 was" in capsys.readouterr().err
    with pytest.raises(WeightsError, match="other weights than the run was trained beside"):
        base.merged(Past.read(FolderStore(root / "runs/lora")), {})
