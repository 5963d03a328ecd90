"""Adapters beside frozen weights: trained, resumed, exported, merged; quantized matrices and products."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.limits import HANG_S
from tests.parity import environment
from tests.workload.slice import command, train
from tests.workload.test_model import GEMMA, logits, parameters
from workload import folders
from workload.__main__ import main
from workload.errors import ConfigError
from workload.model import adapters, attention, decoder, huggingface
from workload.model.adapters import LoraConfig
from workload.model.architecture import Architecture
from workload.model.generation import Generation
from workload.model.products import Products, quantized
from workload.runs.store import FolderStore, open_store
from workload.train import config as configs
from workload.train.past import Past

pytestmark = pytest.mark.slow

ARCH = Architecture(layers=1, d_model=32, heads=4, d_ff=64, vocab_size=257)
LORA = (
    "lora.rank=4",
    "lora.alpha=8",
    'lora.targets=["[qv]_proj", "down_proj"]',
    "optimizer.learning_rate=0.05",
)


@pytest.fixture(name="root", scope="module")
def _root(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights, `base`, and a run of adapters, `lora`, of four steps and checkpoints 2 and 4."""
    root = tmp_path_factory.mktemp("adapters")
    huggingface.save(root / "base", parameters(ARCH), ARCH, "float32", Generation(longest=64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA_DIR", str(tokens))
        patch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        assert train(start(root)) == 0
    return root


def start(root: Path, *more: str) -> list[str]:
    return [*command("lora", 4, 2, *LORA, f"train.init_from={root / 'base'}", *more), "--dir", str(root)]


def exported(root: Path, out: Path, *options: str) -> Path:
    line = ["checkpoints", "export", str(root / "runs/lora"), "--out", str(out), "--dtype", "float32"]
    assert main([*line, *options]) == 0
    return out


def test_a_checkpoint_holds_adapters_alone_and_is_verified(root: Path) -> None:
    state = Past.read(FolderStore(root / "runs/lora")).restore(4, whole_state=True)
    shapes = {name: leaf.shape for name, leaf in state["params"]["layers"].items()}
    assert list(state["params"]) == ["layers"]
    assert shapes == {
        "query_a_NxDxP": (1, 32, 4),
        "query_b_NxPxQ": (1, 4, 32),
        "value_a_NxDxP": (1, 32, 4),
        "value_b_NxPxR": (1, 4, 32),
        "down_a_NxFxP": (1, 64, 4),
        "down_b_NxPxD": (1, 4, 32),
    }
    assert np.any(np.asarray(state["params"]["layers"]["down_b_NxPxD"]))
    moments = [leaf.shape for leaf in jax.tree.leaves(state["opt_state"]) if leaf.ndim]
    assert sorted(moments) == sorted(2 * list(shapes.values()))
    assert main(["checkpoints", "verify", str(root / "runs/lora")]) == 0


def test_a_run_that_lost_its_last_steps_ends_with_the_same_bits(
    root: Path, tmp_path: Path, training: None
) -> None:
    shutil.copytree(root, tmp_path / "again")
    run = tmp_path / "again/runs/lora"
    ended = json.loads((run / "final.json").read_text())
    shutil.rmtree(run / "checkpoints/4")
    (run / "final.json").unlink()
    for restored in (run / "events").glob("*-restore.json"):  # by another test of the same run
        restored.unlink()
    record = json.loads((run / "config.json").read_text())
    for name in ("window", "post_norms", "activation"):  # as by a version that didn't know them
        del record["exact"]["model"][name]
    (run / "config.json").write_text(json.dumps(record))
    line = [
        word.replace(str(tmp_path / "again/base"), str(root / "base")) for word in start(tmp_path / "again")
    ]
    assert train(line) == 0
    assert [json.loads(path.read_text())["step"] for path in (run / "events").glob("*-restore.json")] == [2]
    assert json.loads((run / "final.json").read_text()) == ended


def test_frozen_weights_are_hashed_again_only_where_a_file_changed(
    root: Path, training: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    digest = huggingface.digest
    monkeypatch.setattr(huggingface, "digest", lambda folder: hashed.append(folder) or digest(folder))
    assert train(start(root)) == 0
    assert hashed == []
    (root / "base/model.safetensors").touch()
    assert train(start(root)) == 0
    assert hashed == [root / "base"]


def test_frozen_weights_that_changed_are_refused(
    root: Path, tmp_path: Path, training: None, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(root / "base", tmp_path / "kept")
    stored = load_file(root / "base/model.safetensors")
    try:
        save_file({name: value * 2 for name, value in stored.items()}, root / "base/model.safetensors")
        assert train(start(root)) == 2
        assert "begun with other settings: base_sha256 was" in capsys.readouterr().err
        assert (
            main(
                ["checkpoints", "export", str(root / "runs/lora"), "--out", str(tmp_path / "no"), "--merged"]
            )
            == 2
        )
        assert "other weights than the run was trained beside" in capsys.readouterr().err
    finally:
        shutil.copy(tmp_path / "kept/model.safetensors", root / "base/model.safetensors")


def test_merged_weights_are_the_frozen_ones_and_the_product_of_the_adapters(
    root: Path, tmp_path: Path
) -> None:
    beside, merged = exported(root, tmp_path / "peft"), exported(root, tmp_path / "merged", "--merged")
    settings = json.loads((beside / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (4, 8.0)
    assert settings["target_modules"] == ["q_proj", "v_proj", "down_proj"]
    frozen, whole = (load_file(folder / "model.safetensors") for folder in (root / "base", merged))
    stored = load_file(beside / "adapter_model.safetensors")
    assert len(stored) == 6
    for name, value in frozen.items():
        path = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{path}.lora_A.weight" in stored:
            value = value + 2 * stored[f"{path}.lora_B.weight"] @ stored[f"{path}.lora_A.weight"]
        np.testing.assert_allclose(whole[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


def test_adapters_beside_weights_in_a_bucket_are_merged_without_its_mount(
    root: Path, tmp_path: Path, storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(folders, "MOUNT", tmp_path / "mnt")
    url = f"gs://bucket/{tmp_path.name}/base"
    for path in (root / "base").iterdir():
        open_store(url).write(path.name, path.read_bytes())
    run = shutil.copytree(root / "runs/lora", tmp_path / "runs/lora")
    record = json.loads((run / "config.json").read_text())
    record["exact"]["train"]["init_from"] = url
    (run / "config.json").write_text(json.dumps(record))
    merged, expected = (
        exported(tmp_path, tmp_path / "out", "--merged"),
        exported(root, tmp_path / "own", "--merged"),
    )
    assert (merged / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()


def test_an_export_names_a_base_that_peft_opens_or_says_how(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(root / "runs/lora", tmp_path / "runs/lora")
    record = json.loads((run / "config.json").read_text())
    record["exact"]["train"]["init_from"] = "gs://bucket/data/base"
    (run / "config.json").write_text(json.dumps(record))

    def base(out: Path) -> str:
        return str(json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"])

    capsys.readouterr()
    assert base(exported(tmp_path, tmp_path / "out")) == "gs://bucket/data/base"
    remark = "PEFT can't open gs://bucket/data/base, the base in adapter_config.json: --base FOLDER"
    assert remark in capsys.readouterr().out
    named = exported(tmp_path, tmp_path / "named", "--base", "meta-llama/Llama-3.1-8B-Instruct")
    assert base(named) == "meta-llama/Llama-3.1-8B-Instruct"
    assert base(exported(root, tmp_path / "own")) == str(root / "base")
    assert "PEFT" not in capsys.readouterr().out
    line = ["checkpoints", "export", str(run), "--out", str(tmp_path / "no"), "--merged", "--base", "a/b"]
    assert main(line) == 1
    assert "--base a/b: only adapters name a base" in capsys.readouterr().err


@pytest.mark.prove
def test_peft_and_transformers_read_the_exports_as_the_same_model(root: Path, tmp_path: Path) -> None:
    beside, merged = exported(root, tmp_path / "peft"), exported(root, tmp_path / "merged", "--merged")
    script = Path(environment.__file__).with_name("adapters.py")
    line = [environment.python(), script, root / "base", beside, merged, tmp_path / "out.npz"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    exports = np.load(tmp_path / "out.npz")
    assert np.max(np.abs(exports["adapted"] - exports["base"])) > 0.01, "the adapters do something"
    np.testing.assert_allclose(exports["adapted"], exports["merged"], atol=1e-5)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), decoder.shapes(ARCH)
    )
    own = logits(huggingface.load(merged, ARCH, abstract), jnp.asarray(exports["tokens"]), ARCH)
    np.testing.assert_allclose(own, exports["adapted"], atol=1e-5)


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_adapters_beside_a_matrix_are_the_merged_matrix(quantize: str) -> None:
    lora = LoraConfig(rank=3, alpha=6.0, targets=("o_proj", "gate_proj"), quantize=quantize)
    params = parameters(GEMMA)
    shapes = adapters.shapes(GEMMA, lora)
    layers = {
        name: jax.random.normal(jax.random.key(n), shape) / 8
        for n, (name, shape) in enumerate(shapes.items())
    }
    frozen = params["layers"]
    if quantize == "int8":
        frozen = quantized(frozen, "int8")
        params["layers"] |= {
            name: frozen[name] * frozen[scale]
            for name in params["layers"]
            for scale in frozen
            if scale.startswith(f"{name.partition('_')[0]}_scale") and name.count("x") == 2
        }
        assert frozen["up_NxDxF"].dtype == jnp.int8
    x = jax.random.normal(jax.random.key(9), (2, 7, 32))
    segments = jnp.zeros((2, 7), jnp.int32)

    def run(layers: Any, multiply: decoder.Multiply) -> jax.Array:
        return decoder.run_layers(
            x, layers, segments, GEMMA, attention.einsum, lambda _, w: w, multiply=multiply
        )

    beside = run({**frozen, **layers}, Products(lora, int8=False))
    merged = run(adapters.merged(params["layers"], layers, lora), decoder.product)
    np.testing.assert_allclose(beside, merged, rtol=1e-4, atol=1e-4)


def test_products_in_int8_are_near_those_in_float32_and_their_gradients_are_of_the_latter() -> None:
    x, w = jax.random.normal(jax.random.key(0), (4, 9, 32)), jax.random.normal(jax.random.key(1), (32, 24))
    multiply = Products(LoraConfig(), int8=True)

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return multiply(x, lambda _: w, "query_DxQ")

    near, (plain, backward) = product(x, w), jax.vjp(lambda x, w: x @ w, x, w)
    error = float(jnp.max(jnp.abs(near - plain)) / jnp.max(jnp.abs(plain)))
    assert 0 < error < 0.02
    assert "xi8>" in jax.jit(product).lower(x, w).as_text()
    for own, expected in zip(jax.vjp(product, x, w)[1](plain), backward(plain), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("lora.targets=c_attn", "lora.targets = 'c_attn': matches no matrix of a layer"),
        ("lora.targets=[]", "lora.targets = []: must name a matrix"),
        ('lora.targets=["q_proj", "(up"]', "is no regular expression"),
        ("lora.rank=-1", "lora.rank = -1: must be at least 0"),
        ("lora.quantize=nf4", "must be one of none, int8"),
        ("train.init_from=", 'train.init_from = "": must be set'),
        ("compute.products=int8", "lora.quantize = 'none': must be \"int8\""),
    ],
)
def test_settings_of_adapters_that_cannot_be(given: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        configs.load("tiny.toml", ["lora.rank=4", "train.init_from=base", given])
    assert problem in str(refusal.value)
    assert len(refusal.value.problems) == 1
