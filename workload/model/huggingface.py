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
from workload.errors import WeightsError
from workload.model.architecture import Architecture
from workload.model.decoder import Params
from workload.model.generation import Generation
from workload.model.transformers_config import CONFIG
from workload.model.transformers_config import architecture as architecture
from workload.model.transformers_config import read_architecture as read_architecture
from workload.model.transformers_export import config_json

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9  # of Hugging Face's files
_DTYPES = ("F32", "F16", "BF16")
_QUANTIZED = re.compile(
    r".*(_scale|_scale_inv|_zero_point|SCB|qweight|qzeros|scales|g_idx|absmax|quant_map|_packed)"
)
_OF_LAYER = re.compile(r"model\.layers\.(\d+)\..*(?<!rotary_emb\.inv_freq)")


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
_POST_NORMS = {
    "attention_post_norm_NxD": Tensor("model.layers.{n}.post_attention_layernorm.weight"),
    "mlp_norm_NxD": Tensor("model.layers.{n}.pre_feedforward_layernorm.weight"),
    "mlp_post_norm_NxD": Tensor("model.layers.{n}.post_feedforward_layernorm.weight"),
}


def tensors(arch: Architecture) -> Mapping[str, Tensor]:
    """Return the tensor of each parameter; transformers names the second norm by the place of the others."""
    return TENSORS | _POST_NORMS if arch.post_norms else TENSORS


_OF_DECODER = "model."


class Weights:
    """Safetensors of a folder: the file of each tensor, and parts of tensors.

    Files of a decoder alone, such as transformers saves of an AutoModel, name its tensors without `model.`.
    """

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
        return {(_OF_DECODER if self._alone else "") + name: file for name, file in self._stored.items()}

    @cached_property
    def _alone(self) -> bool:
        embed = TENSORS["embed_VxD"].name
        return embed not in self._stored and embed.removeprefix(_OF_DECODER) in self._stored

    def _slice(self, name: str) -> Any:
        stored = name.removeprefix(_OF_DECODER) if self._alone else name
        return self._files[self.where[name]].get_slice(stored)

    @cached_property
    def _stored(self) -> dict[str, str]:
        """File of each name in it; as in transformers, an index counts only without a whole file."""
        if not (self.folder / WHOLE).is_file():
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

    def problem(self, name: str, shape: tuple[int, ...]) -> str:
        """Return the reason why a tensor isn't a parameter of this shape; empty if it is."""
        if name not in self.where:
            return f"{name} is missing"
        try:
            stored = self._slice(name)
        except SafetensorError:
            return f"{name} isn't in {self.where[name]}, which {INDEX} names: the index is of other files"
        if stored.get_dtype() not in _DTYPES:
            return f"{name} is quantized: {stored.get_dtype()}, where one of {', '.join(_DTYPES)} is needed"
        has = tuple(stored.get_shape())
        return "" if has == shape else f"{name} has shape {has}, the model's is {shape}"

    def read(self, name: str, index: tuple[slice, ...]) -> NDArray[Any]:
        """Read a part of a tensor in its stored dtype."""
        part: NDArray[Any] = self._slice(name)[index]
        return part


def load(folder: Path, arch: Architecture, abstract: Params) -> Params:
    """Load the parameters in a folder; only the parts of local devices are read, in whole rows of the files.

    A matrix that is split along the columns of its file is read by rows, and exchanged among the devices;
    zeros follow its rows where their number doesn't divide.

    Args:
        folder: of Hugging Face weights.
        arch: expected model.
        abstract: shapes, dtypes and shardings of the parameters.

    Raises:
        WeightsError: see `check`.
    """
    weights = _opened(folder, arch, whole=False)
    names = tensors(arch)

    def leaf(path: tuple[Any, ...], shape: Any) -> jax.Array:
        tensor = names[path[-1].key]
        stacked = "{n}" in tensor.name

        def part(index: Any) -> NDArray[Any]:
            if not stacked:
                return _read_part(weights, tensor, tensor.name, index).astype(shape.dtype)
            layers = range(*index[0].indices(shape.shape[0]))
            parts = [_read_part(weights, tensor, tensor.name.format(n=n), index[1:]) for n in layers]
            return np.stack(parts).astype(shape.dtype)

        kept, rank, axis = shape.sharding, len(shape.shape), _cut_across(tensor, shape)
        if axis is None:
            return jax.make_array_from_callback(shape.shape, kept, part)
        length, split = shape.shape[axis], kept.spec[-1]
        more = -length % kept.mesh.shape[split]

        def rows(index: Any) -> NDArray[Any]:
            begin, end, _ = index[axis].indices(length + more)
            held = slice(begin, min(end, length)) if begin < length else slice(0)
            values = part((*index[:axis], held, *index[axis + 1 :]))
            lacking = end - begin - values.shape[axis]
            return np.pad(values, [(0, lacking * (n == axis)) for n in range(rank)]) if lacking else values

        place = NamedSharding(kept.mesh, PartitionSpec(*[None] * axis, split))
        padded = (*shape.shape[:axis], length + more, *shape.shape[axis + 1 :])
        read = jax.make_array_from_callback(padded, place, rows)
        exchanged: jax.Array = jax.device_put(read, kept, donate=True)
        if more:
            cut = jax.jit(jax.lax.slice_in_dim, static_argnums=(1, 2, 3, 4), out_shardings=kept)
            exchanged = cut(exchanged, 0, length, 1, axis)
        return exchanged

    loaded: Params = jax.tree_util.tree_map_with_path(leaf, abstract)
    return loaded


def _files(folder: Path) -> list[str]:
    return [CONFIG, *sorted(set(Weights(folder).where.values()))]


def versions(folder: Path) -> dict[str, list[int]]:
    """Return size and time of change of each file that `digest` reads."""
    stats = {file: (folder / file).stat() for file in _files(folder)}
    return {file: [about.st_size, about.st_mtime_ns] for file, about in stats.items()}


def digest(folder: Path) -> str:
    """Return the sha256 over names and contents of config.json and the weights: 1 to 2 GB/s per core."""
    files = _files(folder)

    def of(file: str) -> str:
        with (folder / file).open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()

    with ThreadPoolExecutor() as pool:
        lines = [f"{file} {sha256}\n" for file, sha256 in zip(files, pool.map(of, files), strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _cut_across(tensor: Tensor, shape: jax.ShapeDtypeStruct) -> int | None:
    """Return the axis of a file's rows if the parameter is split along the file's columns."""
    rows, columns = (-1, -2) if tensor.transposed else (-2, -1)
    rank, kept = len(shape.shape), shape.sharding
    split = isinstance(kept, NamedSharding) and rank > 1 and len(kept.spec) == rank + columns + 1
    return rank + rows if split and kept.spec[-1] else None


def _read_part(weights: Weights, tensor: Tensor, name: str, index: tuple[slice, ...]) -> NDArray[Any]:
    return weights.read(name, index[::-1]).T if tensor.transposed else weights.read(name, index)


def check(folder: Path, arch: Architecture) -> Weights:
    """Open the weights in a folder, if they are this model's.

    Raises:
        WeightsError: lists all tensors that are missing, quantized, of another shape, or of another model.
    """
    return _opened(folder, arch, whole=True)


def _opened(folder: Path, arch: Architecture, whole: bool) -> Weights:
    """Open the weights; `whole`: of a model with no further layers."""
    weights = Weights(folder)
    expected = dict(_stored_tensors(arch))
    problems = [problem for name, shape in expected.items() if (problem := weights.problem(name, shape))]
    for name in sorted(weights.where.keys() - expected.keys()):
        of_layer = _OF_LAYER.fullmatch(name)
        if _QUANTIZED.fullmatch(name):
            problems.append(f"{name} belongs to quantized weights")
        elif whole and of_layer and int(of_layer[1]) >= arch.layers:
            problems.append(f"{name} is of a model with more than {arch.layers} layers")
        elif whole and of_layer:
            problems.append(f"{name} is of another kind of model")
    if problems:
        shown = "\n    ".join(problems[:8]) + (
            f"\n    and {len(problems) - 8} more" if len(problems) > 8 else ""
        )
        fix = "get config.json and weights of one model, unquantized, or set [model] to their architecture"
        raise WeightsError(f"{folder}: {len(problems)} tensors don't fit\n    {shown}\n    fix: {fix}")
    return weights


def _stored_tensors(arch: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of Hugging Face's tensors, by layer."""
    groups, names = arch.shapes(), tensors(arch)
    for name, shape in groups["ends"].items():
        yield names[name].name, shape
    for n in range(arch.layers):
        for name, shape in groups["layers"].items():
            tensor = names[name]
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
    flat = {**{k: v for k, v in params.items() if k != "layers"}, **params["layers"]}

    names_of = tensors(arch)

    def value(name: str, n: int | None) -> NDArray[Any]:
        array = np.asarray(flat[name] if n is None else flat[name][n])
        return np.ascontiguousarray(array.T if names_of[name].transposed else array).astype(kind)

    groups = arch.shapes()
    desired: list[tuple[str, str, int | None, int]] = []  # stored name, parameter, layer, bytes
    for name, shape in groups["ends"].items():
        desired.append((names_of[name].name, name, None, int(np.prod(shape)) * kind.itemsize))
    for n in range(arch.layers):
        for name, shape in groups["layers"].items():
            size = int(np.prod(shape[1:])) * kind.itemsize
            desired.append((names_of[name].name.format(n=n), name, n, size))
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
            {stored: value(name, n) for stored, name, n, _ in entries},
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
