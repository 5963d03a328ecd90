"""Products with a layer's matrices by qwix: adapters, quantized matrices, int8 arithmetic.

qwix changes the products of `flax` modules. A matrix becomes such a module where it is multiplied, so that
the decoder's parameters remain plain arrays.
"""
# mypy: allow-untyped-calls

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import qwix  # type: ignore[import-untyped]
from flax import nnx
from jax import Array

from workload.model.adapters import LoraConfig, adapted, pair
from workload.model.decoder import Weights, product


class _Matrix(nnx.Module):
    """A matrix as a module."""

    def __init__(self, kernel: Array):
        self.kernel = nnx.Param(kernel)

    def __call__(self, x: Array) -> Array:
        return jax.lax.dot_general(x, self.kernel[...], (((x.ndim - 1,), (0,)), ((), ())))


class _Kind:
    """Matrices that a provider of qwix treats alike."""

    def __init__(self, provider: Any):
        # qwix runs a module once to change it, here one of 2 x 2; the arrays are replaced.
        made = qwix.quantize_model(_Matrix(jnp.zeros((2, 2))), provider, jnp.zeros((1, 2)), rngs=nnx.Rngs(0))
        self._graph, state = nnx.split(made)
        self._leaves = dict(nnx.to_flat_state(state))

    def multiply(self, x: Array, arrays: Mapping[tuple[Any, ...], Array]) -> Array:
        leaves = [(path, leaf.replace(arrays[path])) for path, leaf in self._leaves.items()]
        result: Array = nnx.merge(self._graph, nnx.from_flat_state(leaves))(x)
        return result


class Products:
    """Products of a decoder; see `decoder.layer`."""

    def __init__(self, lora: LoraConfig, int8: bool):
        """Prepare the kinds of products.

        Args:
            lora: adapters, and how the frozen matrices are quantized.
            int8: round activations and matrices to int8 in the forward pass.
        """
        qtype = "int8" if lora.rank and lora.quantize == "int8" else None
        activations = "int8" if int8 else None
        self._quantized = qtype is not None
        self._adapted = {matrix.replace("_Nx", "_") for matrix in adapted(lora).values()}
        self._kinds: dict[str, _Kind] = {}
        if self._adapted:
            settings = {"weight_qtype": qtype, "act_qtype": activations}
            self._kinds["adapted"] = _Kind(qwix.LoraProvider(rank=lora.rank, alpha=lora.alpha, **settings))
        if qtype:
            rule = qwix.QuantizationRule(weight_qtype=qtype, act_qtype=activations)
            self._kinds["frozen"] = _Kind(qwix.PtqProvider([rule]))
        elif int8:
            self._kinds["frozen"] = _Kind(
                qwix.QtProvider([qwix.QtRule(weight_qtype="int8", act_qtype="int8")])
            )

    def __call__(self, x: Array, w: Weights, name: str) -> Array:
        """Multiply by a matrix as the settings say."""
        kind = self._kinds.get("adapted" if name in self._adapted else "frozen")
        if kind is None:
            return product(x, w, name)
        arrays: dict[tuple[Any, ...], Array] = {("kernel",): w(name)}
        if self._quantized:
            arrays = {("kernel", "array", "qvalue"): w(name), ("kernel", "array", "scale"): w(scale(name))}
        if name in self._adapted:
            a, b = pair(name)
            arrays |= {("kernel_lora_a",): w(a), ("kernel_lora_b",): w(b)}
        return kind.multiply(x, arrays)


def scale(matrix: str) -> str:
    """Return the name of a quantized matrix's scales, one for each column."""
    kind, _, letters = matrix.rpartition("_")
    *layer, _, after = letters.split("x")
    return f"{kind}_scale_{'x'.join([*layer, '1', after])}"


def quantized(layers: Mapping[str, Array], qtype: str) -> dict[str, Array]:
    """Quantize the matrices of stacked layers; other parameters stay as they are."""
    result: dict[str, Array] = {}
    for name, value in layers.items():
        if value.ndim == 3:
            whole = qwix.quantize(value, qtype, channelwise_axes=(0, 2))
            result |= {name: whole.qvalue, scale(name): whole.scale}
        else:
            result[name] = value
    return result
