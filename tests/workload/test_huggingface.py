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
from workload.model import decoder, huggingface, rope
from workload.model.architecture import Architecture, RopeScaling
from workload.model.generation import Generation
from workload.model.transformers_config import architecture, read_architecture
from workload.model.transformers_export import config_json
from workload.train import base, sharding
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
    "mistral": Architecture(layers=2, d_model=32, heads=4, kv_heads=2, d_ff=48, vocab_size=61, window=7),
    "gemma3": Architecture(
        layers=3, d_model=32, heads=4, kv_heads=2, head_dim=16, d_ff=40, vocab_size=61,
        rope_theta=1e6, rope_scaling=RopeScaling("linear", 8.0), local_rope_theta=1e4,
        window=5, global_every=2, query_pre_attn_scalar=12.0, activation="gelu_tanh", qk_norm=True,
        post_norms=True,
        zero_centered_norms=True, scale_embeddings=True, tie_embeddings=True,
    ),
}  # fmt: skip


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
    assert read_architecture(tmp_path / "one") == with_sizes(arch)
    loaded = huggingface.load(tmp_path / "one", arch, abstract(arch))
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    huggingface.save(tmp_path / "two", loaded, arch, dtype, GENERATION, shard_bytes)
    for path in (tmp_path / "one").iterdir():
        assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("shard_bytes", [4000, 10**9], ids=["sharded", "whole"])
def test_a_decoder_alone_is_read_by_its_shorter_names(shard_bytes: int, tmp_path: Path) -> None:
    arch = MODELS["qwen2"]
    params = random_params(arch)
    for file in huggingface.save(tmp_path, params, arch, "float32", GENERATION, shard_bytes):
        stored = load_file(tmp_path / file)
        save_file({name.removeprefix("model."): stored[name] for name in stored}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    if index.exists():
        index.write_text(index.read_text().replace('"model.', '"'))
    loaded = huggingface.load(tmp_path, arch, abstract(arch))
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


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


@pytest.mark.parametrize("vocab_size", [64, 61, 5])
def test_hosts_read_the_rows_that_they_need_and_the_devices_exchange_the_rest(
    vocab_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first to the last byte that a device reads of a tensor: over all devices the file's, once."""
    arch = replace(MODELS["llama"], vocab_size=vocab_size)
    params = random_params(arch)
    huggingface.save(tmp_path, params, arch, "float32", GENERATION)
    extents: list[int] = []
    read = huggingface.Weights.read

    def watched(self: Any, name: str, index: tuple[slice, ...]) -> Any:
        shape = self._files[self.where[name]].get_slice(name).get_shape()
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


UP = "model.layers.2.mlp.up_proj.weight"


def test_weights_of_another_kind_and_quantized_ones_are_named(tmp_path: Path) -> None:
    qwen, llama = MODELS["qwen3"], replace(MODELS["qwen3"], qk_norm=False, layers=1)
    huggingface.save(tmp_path, random_params(qwen), qwen, "bfloat16", GENERATION)
    with pytest.raises(WeightsError) as refusal:
        huggingface.check(tmp_path, llama)
    assert "model.layers.0.self_attn.q_norm.weight is of another kind of model" in str(refusal.value)
    assert "model.layers.1.mlp.up_proj.weight is of a model with more than 1 layers" in str(refusal.value)
    huggingface.load(tmp_path, replace(qwen, layers=1), abstract(replace(qwen, layers=1)))

    stored = load_file(tmp_path / "model.safetensors")
    up, down = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
    stored[up], stored[down] = stored[up].astype(ml_dtypes.float8_e4m3fn), stored[down].astype(np.int8)
    save_file({**stored, f"{up}_scale_inv": np.ones((1, 1), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as refusal:
        huggingface.load(tmp_path, qwen, abstract(qwen))
    assert f"{up} is quantized: F8_E4M3" in str(refusal.value)
    assert f"{down} is quantized: I8" in str(refusal.value)
    assert f"{up}_scale_inv belongs to quantized weights" in str(refusal.value)


def test_a_whole_file_counts_more_than_an_index_beside_it(tmp_path: Path) -> None:
    arch, shapes = saved(tmp_path)
    params = jax.tree.map(lambda x: x + 1, random_params(arch))
    huggingface.save(tmp_path, params, arch, "float32", GENERATION)
    jax.tree.map(np.testing.assert_array_equal, huggingface.load(tmp_path, arch, shapes), params)


def test_missing_and_misshapen_tensors_are_all_named(tmp_path: Path) -> None:
    arch, shapes = saved(tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    del index["weight_map"]["lm_head.weight"]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    norm = "model.layers.0.input_layernorm.weight"
    index["weight_map"][UP] = index["weight_map"][norm]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    file = tmp_path / index["weight_map"][norm]
    save_file({**load_file(file), norm: np.ones(31, np.float32)}, file)
    with pytest.raises(WeightsError) as refusal:
        huggingface.load(tmp_path, arch, shapes)
    assert "3 tensors don't fit" in str(refusal.value)
    assert f"{UP} isn't in {index['weight_map'][norm]}" in str(refusal.value)
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
        read_architecture(tmp_path)
    with pytest.raises(WeightsError, match=r"holds neither model.safetensors nor"):
        huggingface.Weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").symlink_to("/proc/self/mem")
    with pytest.raises(WeightsError, match=r"index.json: can't be read"):
        huggingface.Weights(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightsError, match="is not JSON"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(WeightsError, match="holds no settings"):
        read_architecture(tmp_path)


def test_an_id_of_the_hub_is_downloaded_to_the_folder_that_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    with pytest.raises(WeightsError, match=f"hf download some/model --local-dir {tmp_path}/some/model$"):
        _ = base.named("some/model").arch
    monkeypatch.setenv("TPU_NAME", "a-host")  # which has neither internet nor a place for a model
    monkeypatch.setenv("CHECKPOINT_BUCKET", "my-checkpoints")
    with pytest.raises(
        WeightsError, match=r"tpu data put ENV FOLDER, and name gs://my-checkpoints/data/model$"
    ):
        _ = base.named("some/model").arch


def test_another_kind_of_model_is_refused_with_every_reason() -> None:
    content = config_json(MODELS["llama"], "bfloat16", GENERATION) | {
        "model_type": "gemma",
        "hidden_act": "gelu",
        "partial_rotary_factor": 0.5,
        "quantization_config": {"quant_method": "fp8"},
        "rope_parameters": {"rope_type": "dynamic"},
        "hidden_size": None,
    }
    del content["rope_scaling"]
    assert set(refused(content)) == {
        "model_type",
        "hidden_act",
        "partial_rotary_factor",
        "quantization_config",
        "rope_parameters.rope_type",
        "hidden_size",
    }


def refused(content: dict[str, Any]) -> dict[str, str]:
    """The problems of a config.json: rules by key."""
    with pytest.raises(ConfigError) as refusal:
        architecture(content, "config.json")
    assert all(problem.value != "nothing" and problem.fix for problem in refusal.value.problems)
    return {problem.path: problem.rule for problem in refusal.value.problems}


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("llama", {"rms_norm_eps": None}, "rms_norm_eps", "must be a number"),
    ("llama", {"num_attention_heads": [4]}, "num_attention_heads", "must be a whole number"),
    ("llama", {"hidden_size": True}, "hidden_size", "must be a whole number"),
    ("llama", {"hidden_size": -64}, "hidden_size", "must be at least 2"),
    (
        "llama",
        {"hidden_size": 33, "head_dim": None},
        "hidden_size",
        "must be a multiple of num_attention_heads, 4",
    ),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers", "must be at least 1"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads", "must divide num_attention_heads, 4"),
    ("llama", {"num_key_value_heads": "2"}, "num_key_value_heads", "must be a whole number"),
    ("llama", {"num_key_value_heads": 0}, "num_key_value_heads", "must be at least 1"),
    ("llama", {"head_dim": 15}, "head_dim", "must be even"),
    ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings", "must be true or false"),
    ("llama", {"vocab_size": 1e3}, "vocab_size", "must be a whole number"),
    ("llama", {"rope_theta": None, "rope_parameters": None}, "rope_theta", "must be a number"),
    ("llama", {"rope_parameters": [1]}, "rope_parameters", "must be an object"),
    ("llama", {"rope_scaling": "yarn"}, "rope_scaling", "must be an object"),
    (
        "llama",
        {"rope_scaling": {"type": ["yarn"]}},
        "rope_scaling.rope_type",
        "must be one of default, linear",
    ),
    ("llama", {"rope_scaling": {"type": "yarn"}}, "rope_scaling.factor", "is required by yarn"),
    (
        "llama",
        {"rope_scaling": {"type": "linear", "factor": None}},
        "rope_scaling.factor",
        "must be a number",
    ),
    (
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 0}},
        "rope_scaling.factor",
        "must be greater than 0",
    ),
    ("llama", {"model_type": ["llama"]}, "model_type", "must be one of"),
    ("qwen3", {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types", "full_attention only"),
    ("mistral", {"sliding_window": -1}, "sliding_window", "must be at least 0"),
    ("gemma3", {"sliding_window": None}, "sliding_window", "is required by sliding_attention"),
    ("gemma3", {"layer_types": ["full_attention", 3, None]}, "layer_types", "must be 3 times"),
    ("gemma3", {"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern", "at least 1"),
    ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping", "supports null only"),
    (
        "gemma3",
        {"rope_parameters": {"rope_theta": 1e6}},
        "rope_parameters",
        "must hold the settings of sliding",
    ),
    *[
        (
            "llama",
            {"max_position_embeddings": length},
            "max_position_embeddings",
            "must be a whole number, at",
        )
        for length in ([8192], "long", -3, 0, True)
    ],
    ("gemma3", {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar", "must be at least 0"),
]


@pytest.mark.parametrize(("name", "change", "key", "rule"), WRONG)
def test_a_config_json_passes_the_rules_of_settings(
    name: str, change: dict[str, Any], key: str, rule: str
) -> None:
    content = config_json(MODELS[name], "bfloat16", GENERATION)
    (entry,) = refused(content | change).items()
    assert entry[0] == key
    assert rule in entry[1]


def test_what_is_absent_is_what_transformers_makes_of_it() -> None:
    content = config_json(MODELS["qwen3"], "bfloat16", GENERATION)
    del content["head_dim"]
    assert architecture(content, "").K == 128
    content = config_json(MODELS["gemma3"], "bfloat16", GENERATION)
    for key in ("layer_types", "rope_parameters", "rope_scaling", "rope_theta", "tie_word_embeddings"):
        del content[key]
    read = architecture(content | {"num_hidden_layers": 12}, "")
    assert (read.global_every, read.rope_theta, read.tie_embeddings) == (6, 1e6, True)
    assert [n for n, local in enumerate(read.local()) if not local] == [5, 11]
    content = config_json(MODELS["llama"], "bfloat16", GENERATION) | {"model_type": "mistral"}
    assert architecture(content, "").window == 4096
    assert architecture(content | {"sliding_window": None}, "") == with_sizes(MODELS["llama"])


def test_rope_scaling_beside_rope_parameters_counts() -> None:
    content = config_json(MODELS["llama"], "bfloat16", GENERATION)
    content["rope_scaling"] = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert architecture(content, "").rope_scaling == RopeScaling("yarn", 4.0, 512)
    content["rope_scaling"]["factor"] = None
    assert architecture(content | {"max_position_embeddings": 1024}, "").rope_scaling.factor == 2.0
    content["rope_scaling"]["factor"] = 0.5
    _, attention = rope.frequencies(architecture(content, ""))
    assert attention == 1.0


def test_the_older_spelling_of_rope_is_read() -> None:
    content = config_json(MODELS["scaled"], "bfloat16", GENERATION)
    del content["rope_parameters"]
    assert architecture(content, "config.json") == with_sizes(MODELS["scaled"])


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("yarn", {"truncate": False}),
        ("yarn", {"truncate": None}),
        ("yarn", {"mscale": 0.7}),
        ("yarn", {"attention_factor": 1.2}),
        ("yarn", {"low_freq_factor": 1.0}),
        ("yarn", {"beta_fast": 1, "beta_slow": 32}),
        ("scaled", {"beta_fast": 32}),
        ("scaled", {"long_factor": [1.0]}),
    ],
)
def test_a_setting_of_rope_that_would_be_ignored_is_refused(name: str, more: dict[str, Any]) -> None:
    content = config_json(MODELS[name], "bfloat16", GENERATION)
    architecture(content, "config.json")
    content["rope_scaling"] |= more
    with pytest.raises(ConfigError) as refusal:
        architecture(content, "config.json")
    (problem,) = refusal.value.problems
    assert problem.path == f"rope_scaling.{next(iter(more))}"


def test_a_setting_of_rope_that_is_null_is_none() -> None:
    content = config_json(MODELS["yarn"], "bfloat16", GENERATION)
    content["rope_scaling"] |= {"attention_factor": None, "mscale": None, "beta_fast": None}
    assert architecture(content, "config.json") == with_sizes(MODELS["yarn"])
