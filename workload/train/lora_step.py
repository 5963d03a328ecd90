"""Training step of adapters beside the decoder's frozen parameters, which aren't part of the state."""
# mypy: allow-untyped-calls

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from workload.model import adapters, decoder
from workload.model.products import quantized
from workload.train import sharding
from workload.train.config import Config
from workload.train.step import Step
from workload.train.update import Params


class LoraStep(Step):
    """Train step of adapters."""

    def __init__(self, config: Config, mesh: Mesh, platform: str, slices: int = 1):
        super().__init__(config, mesh, platform, slices)
        dtype = jnp.dtype(config.compute.dtype)
        self._given = self._placed(decoder.shapes(config.decoder, dtype))
        self.frozen = self._placed(jax.eval_shape(self._quantized, self._given))
        self.frozen_where = sharding.specs(self.frozen, mesh)

    @property
    def given(self) -> Params:
        """See `TrainStep.given`: the frozen ones, before they are quantized."""
        return self._given

    def prepare(self) -> None:
        """Read the frozen parameters, each worker its devices' parts."""
        given = self.read_given()
        if self.config.lora.quantize != "none":
            where = jax.tree.map(lambda leaf: leaf.sharding, self.frozen)
            given = jax.jit(self._quantized, out_shardings=where)(given)
        self._values = given

    def first_params(self) -> Params:
        """Draw the adapters."""

        def first(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Array:
            values = adapters.draw(path[-1].key, leaf.shape, self.config.train.seed)
            return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: values[index])

        params: Params = jax.tree_util.tree_map_with_path(first, self.state["params"])
        return params

    def _quantized(self, params: Params) -> Params:
        qtype = self.config.lora.quantize
        return params if qtype == "none" else {**params, "layers": quantized(params["layers"], qtype)}

    def _placed(self, abstract: Params) -> Params:
        """Return shapes with the shardings of their parameters."""
        shapes: Params = sharding.placed(abstract, sharding.shardings(abstract, self.mesh))
        return shapes
