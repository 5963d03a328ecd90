"""Hugging Face folders: the same bytes out as in, read in parts, and refused where they don't fit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.workload.slice import cpu_devices
from workload.errors import ConfigError, WeightsError
from workload.model import decoder, huggingface
from workload.model.architecture import Architecture, RopeScaling
from workload.model.generation import Generation
from workload.train import sharding
from workload.train.config import MeshConfig
from workload.train.sharding import make_mesh

GENERATION = Generation((1,), (2, 5), 64)
MODELS = {
    "llama": Architecture(layers=3, d_model=32, heads=4, kv_heads=2, d_ff=48, vocab_size=61),
    "scaled": Architecture(
        layers=1,
        d_model=32,
        heads=4,
        d_ff=48,
        vocab_size=61,
        rope_theta=5e5,
        norm_epsilon=1e-5,
        rope_scaling=RopeScaling("llama3", 8.0, 8192, 1.0, 4.0),
    ),
    "yarn": Architecture(
        layers=1, d_model=32, heads=4, d_ff=48, vocab_size=61, rope_scaling=RopeScaling("yarn", 4.0, 64)
    ),
    "qwen2": Architecture(
        layers=2, d_model=28, heads=7, kv_heads=1, d_ff=40, vocab_size=61, qkv_bias=True, tie_embeddings=True
    ),
    "qwen3": Architecture(
        layers=2, d_model=32, heads=4, kv_heads=2, head_dim=16, d_ff=40, vocab_size=61, qk_norm=True
    ),
}


def random_params(arch: Architecture) -> decoder.Params:
    """Values that bfloat16 holds exactly, so that a way through it and back loses nothing."""
    generator = np.random.default_rng(0)

    def leaf(shape: Any) -> np.ndarray:
        return generator.standard_normal(shape.shape).astype(ml_dtypes.bfloat16).astype(np.float32)

    return jax.tree.map(leaf, decoder.shapes(arch))


def abstract(arch: Architecture) -> Any:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32, sharding=device), decoder.shapes(arch)
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shard_bytes", [4000, 10**9], ids=["sharded", "whole"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_out_and_in_and_out_again_is_bit_for_bit(
    name: str, shard_bytes: int, dtype: str, tmp_path: Path
) -> None:
    arch = MODELS[name]
    params = random_params(arch)
    files = huggingface.save(tmp_path / "one", params, arch, dtype, GENERATION, shard_bytes)
    assert (len(files) > 1) == (shard_bytes == 4000)
    assert huggingface.read_architecture(tmp_path / "one") == with_sizes(arch)
    loaded = huggingface.load(tmp_path / "one", arch, abstract(arch))
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    huggingface.save(tmp_path / "two", loaded, arch, dtype, GENERATION, shard_bytes)
    for path in (tmp_path / "one").iterdir():
        assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes()


def with_sizes(arch: Architecture) -> Architecture:
    """The same with all sizes explicit, as in a config.json."""
    return replace(arch, kv_heads=arch.J, head_dim=arch.K)


def test_a_host_reads_its_part_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a matrix that is cut in four, the rows asked for and no others."""
    arch = MODELS["llama"]
    huggingface.save(tmp_path, random_params(arch), arch, "float32", GENERATION)
    parts: list[tuple[str, tuple[slice, ...]]] = []
    read = huggingface.Weights.read

    def watched(self: Any, name: str, index: tuple[slice, ...]) -> Any:
        parts.append((name, index))
        return read(self, name, index)

    monkeypatch.setattr(huggingface.Weights, "read", watched)
    weights = huggingface.Weights(tmp_path)
    tensor = huggingface.TENSORS["gate_NxDxF"]
    part = huggingface._read_part(weights, tensor, tensor.name.format(n=1), (slice(8, 16), slice(None)))
    whole = load_file(tmp_path / "model.safetensors")["model.layers.1.mlp.gate_proj.weight"]
    np.testing.assert_array_equal(part, whole.T[8:16])
    assert parts == [("model.layers.1.mlp.gate_proj.weight", (slice(None), slice(8, 16)))]


def test_hosts_read_the_rows_that_they_need_and_the_devices_exchange_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first to the last byte that a device reads of a tensor: over all devices the file's, once."""
    arch = replace(MODELS["llama"], vocab_size=64)  # 61 rows don't divide over four devices
    params = random_params(arch)
    huggingface.save(tmp_path, params, arch, "float32", GENERATION)
    extents: list[int] = []
    read = huggingface.Weights.read

    def watched(self: Any, name: str, index: tuple[slice, ...]) -> Any:
        shape = self.shape(name)
        first, last, stride = 0, 0, 4
        for size, part in reversed(list(zip(shape, index, strict=True))):
            start, end, _ = part.indices(size)
            first, last, stride = first + start * stride, last + (end - 1) * stride, stride * size
        extents.append(last + 4 - first)
        return read(self, name, index)

    monkeypatch.setattr(huggingface.Weights, "read", watched)
    with cpu_devices(4) as devices:
        mesh = make_mesh(MeshConfig(), [devices])
        shapes = decoder.shapes(arch)
        where = sharding.shardings(shapes, mesh)
        placed = jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, jnp.float32, sharding=place), shapes, where
        )
        loaded = huggingface.load(tmp_path, arch, placed)
        jax.tree.map(np.testing.assert_array_equal, loaded, params)
        assert jax.tree.all(jax.tree.map(lambda leaf, place: leaf.sharding == place, loaded, where))
    files = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert sum(extents) <= 1.1 * files


def saved(folder: Path) -> tuple[Architecture, Any]:
    arch = MODELS["llama"]
    huggingface.save(folder, random_params(arch), arch, "float32", GENERATION, 4000)
    return arch, abstract(arch)


def test_missing_and_misshapen_tensors_are_all_named(tmp_path: Path) -> None:
    arch, shapes = saved(tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    del index["weight_map"]["lm_head.weight"]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    norm = "model.layers.0.input_layernorm.weight"
    file = tmp_path / index["weight_map"][norm]
    save_file({**load_file(file), norm: np.ones(31, np.float32)}, file)
    with pytest.raises(WeightsError) as refusal:
        huggingface.load(tmp_path, arch, shapes)
    assert "2 tensors don't fit" in str(refusal.value)
    assert "lm_head.weight is missing" in str(refusal.value)
    assert f"{norm} has shape (31,), the model's is (32,)" in str(refusal.value)


def test_a_truncated_file_is_refused_before_a_step(tmp_path: Path) -> None:
    arch, shapes = saved(tmp_path)
    file = sorted(tmp_path.glob("model-*.safetensors"))[2]
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(WeightsError, match=f"{file.name}: is damaged or truncated"):
        huggingface.load(tmp_path, arch, shapes)
    file.unlink()
    with pytest.raises(WeightsError, match=f"{file.name}: can't be read"):
        huggingface.load(tmp_path, arch, shapes)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"config.json: can't be read"):
        huggingface.read_architecture(tmp_path)
    with pytest.raises(WeightsError, match=r"holds neither model.safetensors nor"):
        huggingface.Weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").symlink_to("/proc/self/mem")
    with pytest.raises(WeightsError, match=r"index.json: can't be read"):
        huggingface.Weights(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightsError, match="is not JSON"):
        huggingface.read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(WeightsError, match="holds no settings"):
        huggingface.read_architecture(tmp_path)


def test_another_kind_of_model_is_refused_with_every_reason() -> None:
    content = huggingface.config_json(MODELS["llama"], "bfloat16", GENERATION) | {
        "model_type": "gemma",
        "hidden_act": "gelu",
        "use_sliding_window": True,
        "rope_parameters": {"rope_type": "dynamic"},
        "hidden_size": None,
    }
    with pytest.raises(ConfigError) as refusal:
        huggingface.architecture(content, "config.json")
    assert {problem.path for problem in refusal.value.problems} == {
        "model_type",
        "hidden_act",
        "use_sliding_window",
        "rope_parameters.rope_type",
        "hidden_size",
    }


def test_the_older_spelling_of_rope_is_read() -> None:
    content = huggingface.config_json(MODELS["scaled"], "bfloat16", GENERATION)
    del content["rope_parameters"]
    assert huggingface.architecture(content, "config.json") == with_sizes(MODELS["scaled"])


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("yarn", {"truncate": False}),
        ("yarn", {"mscale": 0.7}),
        ("yarn", {"attention_factor": 1.2}),
        ("yarn", {"low_freq_factor": 1.0}),
        ("yarn", {"beta_fast": 1, "beta_slow": 32}),
        ("scaled", {"beta_fast": 32}),
        ("scaled", {"long_factor": [1.0]}),
    ],
)
def test_a_setting_of_rope_that_would_be_ignored_is_refused(name: str, more: dict[str, Any]) -> None:
    content = huggingface.config_json(MODELS[name], "bfloat16", GENERATION)
    huggingface.architecture(content, "config.json")
    content["rope_parameters"] |= more
    with pytest.raises(ConfigError) as refusal:
        huggingface.architecture(content, "config.json")
    (problem,) = refusal.value.problems
    assert problem.path == f"rope_parameters.{next(iter(more))}"


def test_a_setting_of_rope_that_is_null_is_none() -> None:
    content = huggingface.config_json(MODELS["yarn"], "bfloat16", GENERATION)
    content["rope_parameters"] |= {"truncate": None, "mscale": None}
    assert huggingface.architecture(content, "config.json") == with_sizes(MODELS["yarn"])
