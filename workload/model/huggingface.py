"""Reading and writing of Hugging Face folders: config.json and safetensors, without torch.

    config.json                        architecture
    model.safetensors                  weights; or, in several files,
    model-00001-of-00004.safetensors…  with model.safetensors.index.json, the file of each tensor

Every host reads only its devices' parts: files are mapped, not loaded.
"""
# mypy: allow-untyped-calls

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from workload import command
from workload.errors import ConfigError, Problem, WeightsError
from workload.model.architecture import Architecture, RopeScaling
from workload.model.decoder import Params
from workload.model.generation import Generation

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9  # of Hugging Face's files
FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True)
class Tensor:
    """Hugging Face's name of a parameter, with {n} for the layer; transposed: stored as O x I, not I x O."""

    name: str
    transposed: bool = False


TENSORS = {
    "embed_VxD": Tensor("model.embed_tokens.weight"),
    "final_norm_D": Tensor("model.norm.weight"),
    "unembed_VxD": Tensor("lm_head.weight"),
    "attention_norm_NxD": Tensor("model.layers.{n}.input_layernorm.weight"),
    "query_NxDxQ": Tensor("model.layers.{n}.self_attn.q_proj.weight", transposed=True),
    "key_NxDxR": Tensor("model.layers.{n}.self_attn.k_proj.weight", transposed=True),
    "value_NxDxR": Tensor("model.layers.{n}.self_attn.v_proj.weight", transposed=True),
    "query_bias_NxQ": Tensor("model.layers.{n}.self_attn.q_proj.bias"),
    "key_bias_NxR": Tensor("model.layers.{n}.self_attn.k_proj.bias"),
    "value_bias_NxR": Tensor("model.layers.{n}.self_attn.v_proj.bias"),
    "query_norm_NxK": Tensor("model.layers.{n}.self_attn.q_norm.weight"),
    "key_norm_NxK": Tensor("model.layers.{n}.self_attn.k_norm.weight"),
    "out_NxQxD": Tensor("model.layers.{n}.self_attn.o_proj.weight", transposed=True),
    "mlp_norm_NxD": Tensor("model.layers.{n}.post_attention_layernorm.weight"),
    "gate_NxDxF": Tensor("model.layers.{n}.mlp.gate_proj.weight", transposed=True),
    "up_NxDxF": Tensor("model.layers.{n}.mlp.up_proj.weight", transposed=True),
    "down_NxFxD": Tensor("model.layers.{n}.mlp.down_proj.weight", transposed=True),
}


def read_architecture(folder: Path) -> Architecture:
    """Read the architecture in `config.json`.

    Raises:
        WeightsError: the file is missing or no JSON.
        ConfigError: the decoder doesn't support the model; lists every such setting.
    """
    path = folder / CONFIG
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        fix = "name a folder of Hugging Face weights: config.json, model.safetensors"
        if not folder.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder)):
            fix = f"download a model of the hub first: hf download {folder} --local-dir {folder}"
        raise WeightsError(f"{path}: can't be read: {error.strerror}\n    fix: {fix}") from None
    except ValueError as error:
        raise WeightsError(f"{path}: is not JSON: {error}\n    fix: get the file again") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path}: holds no settings\n    fix: get the file again")
    return architecture(content, str(path))


def architecture(content: Mapping[str, Any], source: str) -> Architecture:
    """Convert the content of a config.json; see `read_architecture`."""
    problems = []
    family = content.get("model_type")
    if family not in FAMILIES:
        rule = f"must be one of {', '.join(FAMILIES)}"
        problems.append(Problem("model_type", repr(family), rule, "use a model of these families"))
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    for key in needed:
        if not isinstance(content.get(key), int):
            problems.append(
                Problem(key, repr(content.get(key)), "must be a whole number", "get the file again")
            )
    only = {
        "hidden_act": "silu",
        "mlp_bias": False,
        "attention_bias": False,
        "use_sliding_window": False,
        "partial_rotary_factor": 1.0,
    }
    for key, value in only.items():
        if content.get(key, value) not in (value, None):
            rule = f"this decoder supports {json.dumps(value)} only"
            problems.append(Problem(key, json.dumps(content[key]), rule, "use a model without it"))
    theta, scaling = _rope(content, problems)
    if problems:
        raise ConfigError(source, problems)
    return Architecture(
        layers=content["num_hidden_layers"],
        d_model=content["hidden_size"],
        heads=content["num_attention_heads"],
        kv_heads=content.get("num_key_value_heads") or content["num_attention_heads"],
        head_dim=content.get("head_dim") or content["hidden_size"] // content["num_attention_heads"],
        d_ff=content["intermediate_size"],
        vocab_size=content["vocab_size"],
        norm_epsilon=float(content.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tie_embeddings=bool(content.get("tie_word_embeddings", False)),
    )


# Supported keys of each kind of RoPE; those of `default` hold for all. Other keys change the model, so they
# are refused.
_ROPE = {
    "default": {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings"},
    "linear": set(),
    "llama3": {"low_freq_factor", "high_freq_factor"},
    "yarn": {"beta_fast", "beta_slow"},
}


def _rope(content: Mapping[str, Any], problems: list[Problem]) -> tuple[float, RopeScaling]:
    """Read `rope_parameters`, or `rope_theta` and `rope_scaling` of transformers before 5."""
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or content.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, RopeScaling()
    if kind not in _ROPE:
        rule = f"must be one of {', '.join(_ROPE)}"
        problems.append(
            Problem("rope_parameters.rope_type", repr(kind), rule, "use a model with one of them")
        )
        return theta, RopeScaling()
    for key in sorted(rope.keys() - _ROPE["default"] - _ROPE[kind]):
        if rope[key] is not None:
            rule = f"isn't supported for {kind}"
            problems.append(Problem(f"rope_parameters.{key}", json.dumps(rope[key]), rule, "remove it"))
    fast, slow = float(rope.get("beta_fast") or 32.0), float(rope.get("beta_slow") or 1.0)
    if kind == "yarn" and fast <= slow:
        rule = f"must be more than beta_slow, {slow:g}"
        problems.append(Problem("rope_parameters.beta_fast", f"{fast:g}", rule, "32 and 1 are usual"))
    original = rope.get("original_max_position_embeddings") or content.get("max_position_embeddings") or 8192
    return theta, RopeScaling(
        kind=kind,
        factor=float(rope.get("factor", 1.0)),
        original_length=int(original),
        low_frequency_factor=float(rope.get("low_freq_factor", 1.0)),
        high_frequency_factor=float(rope.get("high_freq_factor", 4.0)),
        beta_fast=fast,
        beta_slow=slow,
    )


def config_json(arch: Architecture, dtype: str, generation: Generation) -> dict[str, Any]:
    """Create a config.json that transformers reads as the same model.

    Args:
        arch: the model.
        dtype: of the weights beside it.
        generation: settings of generation.
    """
    family = "qwen3" if arch.qk_norm else "qwen2" if arch.qkv_bias else "llama"
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": arch.rope_theta}
    scaling = arch.rope_scaling
    if scaling.kind != "none":
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        rope |= {
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
        }
    if scaling.kind == "yarn":
        rope |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
    if scaling.kind in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = scaling.original_length
    return {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "dtype": dtype,
        "hidden_size": arch.d_model,
        "num_hidden_layers": arch.layers,
        "num_attention_heads": arch.heads,
        "num_key_value_heads": arch.J,
        "head_dim": arch.K,
        "intermediate_size": arch.d_ff,
        "vocab_size": arch.vocab_size,
        "hidden_act": "silu",
        "rms_norm_eps": arch.norm_epsilon,
        "max_position_embeddings": generation.longest,
        "rope_parameters": rope,
        # For transformers before 5.
        "rope_theta": arch.rope_theta,
        "rope_scaling": None
        if scaling.kind == "none"
        else {k: v for k, v in rope.items() if k != "rope_theta"},
        "tie_word_embeddings": arch.tie_embeddings,
        # Null, not absent: transformers would use its family's defaults.
        "bos_token_id": None,
        "eos_token_id": None,
        **generation.ids(),
    }


class Weights:
    """Safetensors of a folder: the file of each tensor, and parts of tensors."""

    def __init__(self, folder: Path):
        """Open the files.

        Raises:
            WeightsError: there are none, or a file of the index is missing or truncated.
        """
        self.folder = folder
        self._open = ExitStack()
        self._files: dict[str, Any] = {}
        if not (folder / WHOLE).is_file() and not (folder / INDEX).is_file():
            fix = f"name a folder that holds safetensors; `{command('checkpoints', 'export')}` makes one"
            raise WeightsError(f"{folder}: holds neither {WHOLE} nor {INDEX}\n    fix: {fix}")
        for file in sorted(set(self.where.values())):
            self._files[file] = self._map(folder / file)

    @cached_property
    def where(self) -> dict[str, str]:
        """File of every tensor."""
        if (self.folder / INDEX).is_file():
            try:
                where = dict(json.loads((self.folder / INDEX).read_text())["weight_map"])
                if not all(isinstance(file, str) for file in where.values()):
                    raise ValueError("a tensor's file is no name")
                return where
            except OSError as error:
                message = f"{self.folder / INDEX}: can't be read: {error.strerror}"
                raise WeightsError(f"{message}\n    fix: let this user read it") from None
            except (ValueError, KeyError, TypeError) as error:
                message = f"{self.folder / INDEX}: is not an index: {error!r}\n    fix: get the file again"
                raise WeightsError(message) from None
        return dict.fromkeys(self._map(self.folder / WHOLE).keys(), WHOLE)

    def _map(self, path: Path) -> Any:
        try:
            return self._open.enter_context(safe_open(path, "numpy"))
        except OSError as error:
            raise WeightsError(f"{path}: can't be read: {error}\n    fix: get the file again") from None
        except SafetensorError as error:
            raise WeightsError(
                f"{path}: is damaged or truncated: {error}\n    fix: get the file again"
            ) from None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return a tensor's shape; None if it is missing."""
        if name not in self.where:
            return None
        try:
            return tuple(self._files[self.where[name]].get_slice(name).get_shape())
        except SafetensorError as error:
            path = self.folder / self.where[name]
            raise WeightsError(f"{path}: lacks {name}: {error}\n    fix: get the file again") from None

    def read(self, name: str, index: tuple[slice, ...]) -> NDArray[Any]:
        """Read a part of a tensor in its stored dtype."""
        part: NDArray[Any] = self._files[self.where[name]].get_slice(name)[index]
        return part


def load(folder: Path, arch: Architecture, abstract: Params) -> Params:
    """Load the parameters in a folder; only the parts of local devices are read, in whole rows of the files.

    A file's matrix is the transposed one: a matrix that is split along the columns of its file is read by
    rows, and exchanged among the devices.

    Args:
        folder: of Hugging Face weights.
        arch: expected model.
        abstract: shapes, dtypes and shardings of the parameters.

    Raises:
        WeightsError: see `check`.
    """
    weights = check(folder, arch)

    def leaf(path: tuple[Any, ...], shape: Any) -> jax.Array:
        tensor = TENSORS[path[-1].key]
        stacked = "{n}" in tensor.name

        def part(index: Any) -> NDArray[Any]:
            if not stacked:
                return _read_part(weights, tensor, tensor.name, index).astype(shape.dtype)
            layers = range(*index[0].indices(shape.shape[0]))
            parts = [_read_part(weights, tensor, tensor.name.format(n=n), index[1:]) for n in layers]
            return np.stack(parts).astype(shape.dtype)

        place = _by_rows(tensor, shape)
        read = jax.make_array_from_callback(shape.shape, place, part)
        return read if place is shape.sharding else jax.device_put(read, shape.sharding, donate=True)

    loaded: Params = jax.tree_util.tree_map_with_path(leaf, abstract)
    return loaded


def digest(folder: Path) -> str:
    """Return the sha256 over names and contents of config.json and the weights: 1 to 2 GB/s per core."""
    files = [CONFIG, *sorted(set(Weights(folder).where.values()))]

    def of(file: str) -> str:
        with (folder / file).open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()

    with ThreadPoolExecutor() as pool:
        lines = [f"{file} {sha256}\n" for file, sha256 in zip(files, pool.map(of, files), strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _by_rows(tensor: Tensor, shape: jax.ShapeDtypeStruct) -> Any:
    """Return the sharding by which a tensor is read in whole rows of its file, or the parameter's own."""
    kept = shape.sharding
    rank = len(shape.shape)
    if not tensor.transposed or not isinstance(kept, NamedSharding) or len(kept.spec) != rank - 1:
        return kept
    split = kept.spec[-1]
    if split is None or shape.shape[-1] % kept.mesh.shape[split]:
        return kept
    return NamedSharding(kept.mesh, PartitionSpec(*[None] * (rank - 1), split))


def _read_part(weights: Weights, tensor: Tensor, name: str, index: tuple[slice, ...]) -> NDArray[Any]:
    return weights.read(name, index[::-1]).T if tensor.transposed else weights.read(name, index)


def check(folder: Path, arch: Architecture) -> Weights:
    """Open the weights in a folder, if they fit this model.

    Raises:
        WeightsError: lists all tensors that are missing or have another shape.
    """
    weights = Weights(folder)
    problems = []
    for name, shape in _stored_tensors(arch):
        stored = weights.shape(name)
        if stored is None:
            problems.append(f"{name} is missing")
        elif stored != shape:
            problems.append(f"{name} has shape {stored}, the model's is {shape}")
    if problems:
        shown = "\n    ".join(problems[:8]) + (
            f"\n    and {len(problems) - 8} more" if len(problems) > 8 else ""
        )
        fix = "set [model] to the weights' architecture, or get the weights again"
        raise WeightsError(
            f"{weights.folder}: {len(problems)} tensors don't fit\n    {shown}\n    fix: {fix}"
        )
    return weights


def _stored_tensors(arch: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of Hugging Face's tensors, by layer."""
    groups = arch.shapes()
    for name, shape in groups["ends"].items():
        yield TENSORS[name].name, shape
    for n in range(arch.layers):
        for name, shape in groups["layers"].items():
            tensor = TENSORS[name]
            yield tensor.name.format(n=n), shape[:0:-1] if tensor.transposed else shape[1:]


def save(
    folder: Path,
    params: Params,
    arch: Architecture,
    dtype: str,
    generation: Generation,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Write parameters as a Hugging Face folder; return the files' names.

    Args:
        folder: created if missing.
        params: gathered on this host.
        arch: the model.
        dtype: `float32` or `bfloat16`.
        generation: see `config_json`.
        shard_bytes: most bytes of a file.
        progress: receives a line after each file.
    """
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(np.float32)
    by_stored_name = {tensor.name: (name, tensor) for name, tensor in TENSORS.items()}
    flat = {**{k: v for k, v in params.items() if k != "layers"}, **params["layers"]}

    def value(template: str, n: int | None) -> NDArray[Any]:
        name, tensor = by_stored_name[template]
        array = np.asarray(flat[name] if n is None else flat[name][n])
        return np.ascontiguousarray(array.T if tensor.transposed else array).astype(kind)

    groups = arch.shapes()
    desired: list[tuple[str, str, int | None, int]] = []  # stored name, template, layer, bytes
    for name, shape in groups["ends"].items():
        desired.append((TENSORS[name].name, TENSORS[name].name, None, int(np.prod(shape)) * kind.itemsize))
    for n in range(arch.layers):
        for name, shape in groups["layers"].items():
            template = TENSORS[name].name
            desired.append((template.format(n=n), template, n, int(np.prod(shape[1:])) * kind.itemsize))
    files: list[list[tuple[str, str, int | None, int]]] = [[]]
    for entry in desired:
        if files[-1] and sum(size for *_, size in files[-1]) + entry[3] > shard_bytes:
            files.append([])
        files[-1].append(entry)
    folder.mkdir(parents=True, exist_ok=True)
    names = (
        [WHOLE]
        if len(files) == 1
        else [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)]
    )
    for file, entries in zip(names, files, strict=True):
        save_file(
            {name: value(template, n) for name, template, n, _ in entries},
            folder / file,
            metadata={"format": "pt"},
        )
        progress(f"{file}: {len(entries)} tensors")
    if len(files) > 1:
        total = sum(size for *_, size in desired)
        where = {name: file for file, entries in zip(names, files, strict=True) for name, *_ in entries}
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    (folder / CONFIG).write_text(json.dumps(config_json(arch, dtype, generation), indent=2) + "\n")
    for file in names:  # safetensors denies other users access, such as the hosts' training user
        (folder / file).chmod((folder / CONFIG).stat().st_mode)
    return names
