"""The trainer's decoder as a module of flax, for notebooks and as a base of models with heads of their own.

from workload.model import Decoder

model = Decoder.from_pretrained("llama-3.1-8b/", dtype=jnp.bfloat16)
logits_BxLxV = model(tokens_BxL)
tensors = model.capture(tokens_BxL, {"resid_post": [3, 11]})
"""
# mypy: allow-untyped-calls

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.sharding import Mesh, SingleDeviceSharding

from workload import pretrained
from workload.model import attention, decoder, huggingface, kernels
from workload.model import loss as losses
from workload.model.architecture import Architecture
from workload.model.decoder import Params
from workload.model.generation import Generation
from workload.train import sharding


class Decoder(nnx.Module):
    """Decoder of the trainer's families: the functions of `workload.model` over variables.

    Its parameters have the names of a run's checkpoints; those of all layers are stacked.

    Attributes:
        architecture: sizes and variants.
        dtype: of the computation; the parameters keep theirs.
        remat: values kept for the backward pass, as `compute.remat`.
        generation: begin and end tokens, for exports.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        params: Params | None = None,
        dtype: Any = jnp.float32,
        remat: Sequence[str] = ("none",),
        generation: Generation | None = None,
        seed: int = 0,
        rngs: nnx.Rngs | None = None,
    ):
        """Create the decoder.

        Args:
            architecture: sizes and variants.
            params: values; by default initial ones.
            dtype: of the computation.
            remat: see the class.
            generation: see the class.
            seed: of initial values, the same as a run's of this seed.
            rngs: source of initial values in place of `seed`, to be drawn by compiled programs.
        """
        self.architecture, self.dtype, self.remat = architecture, jnp.dtype(dtype), tuple(remat)
        self.generation = generation or Generation()

        def first(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Array:
            name = path[-1].key
            if rngs is None or len(leaf.shape) < 2 or "norm" in name or "bias" in name:
                return jnp.asarray(decoder.draw(name, leaf.shape, architecture, seed))
            values: Array = rngs.params.normal(leaf.shape) * decoder.deviation(name, architecture)
            return values

        if params is None:
            params = jax.tree_util.tree_map_with_path(first, decoder.shapes(architecture))
        for name, value in params.items():
            if name != "layers":
                setattr(self, name, nnx.Param(value))
        self.layers = nnx.Dict({name: nnx.Param(value) for name, value in params["layers"].items()})

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        *,
        step: int | None = None,
        dtype: Any = jnp.float32,
        mesh: Mesh | None = None,
        **more: Any,
    ) -> Self:
        """Load weights.

        Args:
            name: a folder, an id of the hub, gs://BUCKET/FOLDER, or a run; see `workload.pretrained`.
            step: of a run's checkpoint; by default the newest.
            dtype: of the parameters and the computation.
            mesh: to spread the parameters over, with an axis `fsdp`; by default the first device.
            more: arguments of a subclass's constructor.

        Raises:
            WorkloadError: there are no such weights, or they don't fit the decoder.
        """
        weights = pretrained.locate(name, step)
        weights.check()
        shapes = decoder.shapes(weights.arch, dtype)
        device = SingleDeviceSharding(jax.devices()[0])
        places = sharding.shardings(shapes, mesh) if mesh else jax.tree.map(lambda _: device, shapes)
        params = weights.load(weights.arch, sharding.placed(shapes, places))
        return cls(weights.arch, params=params, dtype=dtype, generation=weights.generation, **more)

    @property
    def params(self) -> Params:
        """Parameters as the functions of `workload.model.decoder` take them."""
        names = decoder.shapes(self.architecture)
        ends = {name: getattr(self, name)[...] for name in names if name != "layers"}
        return {**ends, "layers": {name: self.layers[name][...] for name in names["layers"]}}

    def hidden(self, tokens_BxL: Array, segments_BxL: Array | None = None) -> Array:
        """Compute the normalized output of the last layer.

        Args:
            tokens_BxL: token ids.
            segments_BxL: each token's document; by default a row is a single one.
        """
        params, arch = self.params, self.architecture
        read = self._read()
        x_BxLxD = decoder.run_layers(
            decoder.embedded(read("embed_VxD", params["embed_VxD"])[tokens_BxL], arch),
            params["layers"],
            _segments(tokens_BxL, segments_BxL),
            arch,
            self._attend(tokens_BxL),
            read,
            self.remat,
        )
        return decoder.final_norm(x_BxLxD, read("final_norm_D", params["final_norm_D"]), arch)

    def __call__(
        self, tokens_BxL: Array, segments_BxL: Array | None = None, positions_BxL: Array | None = None
    ) -> Array:
        """Compute logits; positions follow from the segments."""
        return self.hidden(tokens_BxL, segments_BxL) @ self._unembedding().T

    def loss(self, batch: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return the sum of a batch's losses and the number of its targets, without whole logits."""
        x_BxLxD = self.hidden(batch["tokens"], batch["segments"])
        x_TxD, counted_T = x_BxLxD.reshape(-1, x_BxLxD.shape[-1]), batch["counted"].reshape(-1)
        targets_T = batch["targets"].reshape(-1)
        total = losses.cross_entropy(x_TxD, self._unembedding(), targets_T, counted_T, 2048)
        return total, jnp.sum(counted_T)

    def capture(
        self,
        tokens_BxL: Array,
        wanted: Mapping[str, Sequence[int]],
        segments_BxL: Array | None = None,
    ) -> dict[str, Array]:
        """Compute the tensors at some points of some layers; see `decoder.capture`."""
        segments, attend = _segments(tokens_BxL, segments_BxL), self._attend(tokens_BxL)
        return decoder.capture(
            self.params, tokens_BxL, segments, self.architecture, wanted, attend, self.dtype
        )

    def export(self, folder: str | Path, dtype: str = "bfloat16") -> list[str]:
        """Write a folder of Hugging Face weights; return the files' names."""
        return huggingface.save(Path(folder), self.params, self.architecture, dtype, self.generation)

    def _unembedding(self) -> Array:
        name = decoder.unembedding(self.params, self.architecture)
        return self._read()(name, self.params[name])

    def _read(self) -> Callable[[str, Array], Array]:
        return lambda _, kept: kept.astype(self.dtype)

    def _attend(self, tokens_BxL: Array) -> attention.Attend:
        length = tokens_BxL.shape[1]
        kind, _ = kernels.choose("auto", jax.default_backend(), length)
        return attention.attend(kind)


def _segments(tokens_BxL: Array, segments_BxL: Array | None) -> Array:
    return jnp.zeros_like(tokens_BxL) if segments_BxL is None else segments_BxL
