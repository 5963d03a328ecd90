"""Decoder: a layer function, scanned, that passes its named tensors to a tap.

    x_BxLxD = decoder.run_layers(embedded_BxLxD, params["layers"], ...)    # in training
    tensors = decoder.capture(params, tokens_BxL, segments_BxL, arch, {"resid_post": [3, 11]})

Weights are read through a function from name to array, so that a trainer with sharded parameters
gathers each one where it is used.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from workload.model import adapters, places, points, rope
from workload.model import attention as attentions
from workload.model.adapters import LoraConfig
from workload.model.architecture import Architecture
from workload.model.attention import Attend
from workload.model.places import Place, Turns
from workload.model.remat import Tap, remat_layer, training_tap

Params = dict[str, Any]
Weights = Callable[[str], Array]
"""Gathered parameter in the dtype of the computation, by its name without the layers' axis."""
Multiply = Callable[[Array, Weights, str], Array]
"""Product of activations and a named matrix: `product`, or one with adapters."""


def product(x: Array, w: Weights, name: str) -> Array:
    """Multiply by a matrix."""
    return x @ w(name)


def shapes(arch: Architecture, dtype: Any = jnp.float32) -> Params:
    """Return the tree of parameters as shapes."""
    groups = arch.shapes()
    return {**_shaped(groups["ends"], dtype), "layers": _shaped(groups["layers"], dtype)}


def trained(arch: Architecture, lora: LoraConfig) -> Params:
    """Return the tree of parameters that a run trains as shapes: all of them, or its adapters."""
    return {"layers": _shaped(adapters.shapes(arch, lora))} if lora.rank else shapes(arch)


def _shaped(group: Mapping[str, tuple[int, ...]], dtype: Any = jnp.float32) -> Params:
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in group.items()}  # type: ignore[no-untyped-call]


def first(arch: Architecture, seed: int, shardings: Any = None) -> Params:
    """Draw all parameters' initial values on the devices, the same on any mesh.

    Args:
        arch: of the model.
        seed: of the run.
        shardings: of the parameters; by default they are on one device.
    """

    def values() -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: draw(path[-1].key, leaf.shape, arch, seed), shapes(arch)
        )

    params: Params = jax.jit(values, out_shardings=shardings)()
    return params


def draw(name: str, shape: tuple[int, ...], arch: Architecture, seed: int) -> Array:
    """Draw a parameter's initial value, a function of the seed and its name alone.

    Norms begin at a scale of one, biases at zero. Matrices are normal with variance 1 / fan-in, or
    1 / (2N · fan-in) for the two of each layer that add to the residual stream.
    """
    if "norm" in name:
        return jnp.full(shape, 0.0 if arch.zero_centered_norms else 1.0, jnp.float32)
    if "bias" in name:
        return jnp.zeros(shape, jnp.float32)
    key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
    drawn: Array = jax.random.normal(key, shape, jnp.float32) * deviation(name, arch)
    return drawn


def deviation(name: str, arch: Architecture) -> float:
    """Return the standard deviation of a matrix's initial values."""
    residual = 2 * arch.layers
    fan_in = {"down_NxFxD": arch.d_ff * residual, "out_NxQxD": arch.heads * arch.K * residual}
    return float(fan_in.get(name, arch.d_model) ** -0.5)


def layer(
    x_BxLxD: Array, w: Weights, arch: Architecture, place: Place, tap: Tap, multiply: Multiply = product
) -> Array:
    """Compute a layer.

    Args:
        x_BxLxD: the residual stream.
        w: the layer's parameters.
        arch: the model.
        place: its attention and the positions' angles.
        tap: sees every point.
        multiply: (x, w, name) -> the product with a matrix.
    """
    B, L, _ = x_BxLxD.shape
    H, J, K = arch.heads, arch.J, arch.K

    def normed(x: Array, name: str) -> Array:
        return rms_norm(x, w(name), arch)

    def heads(kind: str, count: int, width: str) -> Array:
        y = multiply(attn_in, w, f"{kind}_Dx{width}")
        if arch.qkv_bias:
            y += w(f"{kind}_bias_{width}")
        y = y.reshape(B, L, count, K)
        if kind == "value":
            return y
        if arch.qk_norm:
            y = normed(y, f"{kind}_norm_K")
        return rope.rotate(y, place.turn)

    x_BxLxD = tap("resid_pre", x_BxLxD)
    attn_in = tap("attn_in", normed(x_BxLxD, "attention_norm_D"))
    q_BxLxHxK = tap("query", heads("query", H, "Q"))
    k_BxLxJxK = tap("key", heads("key", J, "R"))
    v_BxLxJxK = tap("value", heads("value", J, "R"))
    z_BxLxHxK = tap("attn_z", place.attend(q_BxLxHxK, k_BxLxJxK, v_BxLxJxK))
    attn_out_BxLxD = multiply(z_BxLxHxK.reshape(B, L, H * K), w, "out_QxD")
    if arch.post_norms:
        attn_out_BxLxD = normed(attn_out_BxLxD, "attention_post_norm_D")
    x_BxLxD += tap("attn_out", attn_out_BxLxD)
    x_BxLxD = tap("resid_mid", x_BxLxD)
    mlp_in = tap("mlp_in", normed(x_BxLxD, "mlp_norm_D"))
    gate_BxLxF = tap("mlp_gate", multiply(mlp_in, w, "gate_DxF"))
    up_BxLxF = tap("mlp_up", multiply(mlp_in, w, "up_DxF"))
    act_BxLxF = tap("mlp_act", _ACTIVATIONS[arch.activation](gate_BxLxF) * up_BxLxF)
    mlp_out_BxLxD = multiply(act_BxLxF, w, "down_FxD")
    if arch.post_norms:
        mlp_out_BxLxD = normed(mlp_out_BxLxD, "mlp_post_norm_D")
    x_BxLxD += tap("mlp_out", mlp_out_BxLxD)
    return tap("resid_post", x_BxLxD)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
}


def run_layers(
    x_BxLxD: Array,
    layers: Mapping[str, Array],
    segments_BxL: Array,
    arch: Architecture,
    attend: Attend,
    read: Callable[[str, Array], Array],
    remat: Sequence[str] = ("none",),
    examples_at_once: int = 0,
    keep_gathered: int = 0,
    tap: Tap | None = None,
    multiply: Multiply = product,
) -> Array:
    """Scan all layers, for training.

    A layer's parameters are read in the forward pass and again in the backward pass, except those of the
    last `keep_gathered` layers, which wait the shortest time. If `examples_at_once` is less than the batch,
    a layer processes the batch in pieces, to save memory.

    Args:
        x_BxLxD: the embedded tokens.
        layers: stored parameters, stacked on N.
        segments_BxL: each token's document; attention stays within it.
        arch: the model.
        attend: the attention to use.
        read: makes a kept parameter, named without N, whole and ready to compute with.
        remat: see `remat.remat_layer`.
        examples_at_once: divides the batch; 0 for all.
        keep_gathered: layers, counted from the last, whose parameters stay whole for the backward pass.
        tap: sees every point; `remat.training_tap`, unless given.
        multiply: see `layer`.
    """
    tap = tap or training_tap(remat)
    B = x_BxLxD.shape[0]
    at_once = examples_at_once or B
    turns, local_N = places.turns(segments_BxL, arch), places.mixed(arch)

    def body(x_BxLxD: Array, kept: Mapping[str, Array], local: Array | None) -> Array:
        by_name = {_short(name): weight for name, weight in kept.items()}
        weights = {name: tap(points.GATHERED, read(name, weight)) for name, weight in by_name.items()}

        def run(x: Array, segments: Array, turns: Turns) -> Array:
            place = places.place(segments, turns, arch, attend, local)
            return layer(x, weights.__getitem__, arch, place, tap, multiply)

        if at_once == B:
            return run(x_BxLxD, segments_BxL, turns)
        split = partial(jax.tree.map, lambda x: x.reshape(-1, at_once, *x.shape[1:]))
        rematerialized = remat_layer(run, remat)
        y: Array = jax.lax.map(lambda piece: rematerialized(*piece), split((x_BxLxD, segments_BxL, turns)))
        return y.reshape(x_BxLxD.shape)

    def through(x_BxLxD: Array, stretch: slice, keep_gathered: bool) -> Array:
        step = remat_layer(body, remat, keep_gathered)
        stored = {name: weight[stretch] for name, weight in layers.items()}
        kinds = None if local_N is None else local_N[stretch]
        x_BxLxD, _ = jax.lax.scan(lambda x, layer: (step(x, *layer), None), x_BxLxD, (stored, kinds))
        return x_BxLxD

    first = max(0, arch.layers - keep_gathered)
    if first:
        x_BxLxD = through(x_BxLxD, slice(first), keep_gathered=False)
    if keep_gathered:
        x_BxLxD = through(x_BxLxD, slice(first, arch.layers), keep_gathered=True)
    return x_BxLxD


def capture(
    params: Params,
    tokens_BxL: Array,
    segments_BxL: Array,
    arch: Architecture,
    wanted: Mapping[str, Sequence[int]],
    attend: Attend = attentions.einsum,
    dtype: Any = jnp.float32,
    read: Callable[[str, Array], Array] | None = None,
) -> dict[str, Array]:
    """Compute the tensors at some points of some layers, and nothing after the last of them.

    Args:
        params: as stored; layers after the last wanted one may be absent.
        tokens_BxL: token ids.
        segments_BxL: each token's document.
        arch: the model.
        wanted: layers by point, e.g. `{"resid_post": [3, 11]}`; for `final_norm` any list.
        attend: the attention.
        dtype: of the computation and of the result.
        read: gathers and casts a stored parameter, named without N (default: a cast).

    Returns:
        By point, the tensors of its layers stacked in the order of `wanted`; `final_norm` alone.
    """
    read = read or (lambda _, weight: weight.astype(dtype))
    turns, local_N = places.turns(segments_BxL, arch), places.mixed(arch)
    last = arch.layers - 1 if "final_norm" in wanted else max(n for layers in wanted.values() for n in layers)
    of_layers = {point: layers for point, layers in wanted.items() if point in points.LAYER_POINTS}

    def run(names: frozenset[str], x_BxLxD: Array, n: Array) -> tuple[Array, dict[str, Array]]:
        by_name = {_short(name): weight[n] for name, weight in params["layers"].items()}
        weights = {name: read(name, weight) for name, weight in by_name.items()}

        seen: dict[str, Array] = {}

        def keep(point: str, value: Array) -> Array:
            if point in names:
                seen[point] = value
            return value

        local = None if local_N is None else jnp.asarray(local_N)[n]
        place = places.place(segments_BxL, turns, arch, attend, local)
        return layer(x_BxLxD, weights.__getitem__, arch, place, keep), seen

    x_BxLxD = embedded(read("embed_VxD", params["embed_VxD"])[tokens_BxL], arch)
    kept: dict[tuple[str, int], Array] = {}
    for first, end, names in _stretches(of_layers, last):
        # Scan over layer numbers: a slice of the weights would be a copy.
        x_BxLxD, seen = jax.lax.scan(partial(run, names), x_BxLxD, np.arange(first, end))
        kept |= {(point, first + i): seen[point][i] for point in names for i in range(end - first)}
    result = {point: jnp.stack([kept[point, n] for n in layers]) for point, layers in of_layers.items()}
    if "final_norm" in wanted:
        result["final_norm"] = final_norm(x_BxLxD, params["final_norm_D"].astype(dtype), arch)
    return result


def _stretches(wanted: Mapping[str, Sequence[int]], last: int) -> list[tuple[int, int, frozenset[str]]]:
    """Group layers up to `last` into ranges with the same wanted points: (first, end, points)."""
    stretches: list[tuple[int, int, frozenset[str]]] = []
    for n in range(last + 1):
        names = frozenset(point for point, layers in wanted.items() if n in layers)
        if stretches and stretches[-1][2] == names:
            stretches[-1] = (stretches[-1][0], n + 1, names)
        else:
            stretches.append((n, n + 1, names))
    return stretches


def _short(name: str) -> str:
    """Remove the axis of layers from a parameter's name."""
    return name.replace("_Nx", "_")


def embedded(rows_BxLxD: Array, arch: Architecture) -> Array:
    """Return the first layer's input, given the tokens' rows of the embedding."""
    if not arch.scale_embeddings:
        return rows_BxLxD
    return rows_BxLxD * jnp.asarray(arch.d_model**0.5, rows_BxLxD.dtype)


def final_norm(x_BxLxD: Array, scale_D: Array, arch: Architecture) -> Array:
    """Normalize the last layer's output, for the unembedding."""
    return rms_norm(x_BxLxD, scale_D, arch)


def unembedding(params: Mapping[str, Array], arch: Architecture) -> str:
    """Return the name of the unembedding parameter."""
    return "embed_VxD" if arch.tie_embeddings else "unembed_VxD"


def rms_norm(x: Array, scale: Array, arch: Architecture) -> Array:
    """Normalize over the last axis, computed in float32, as are zero-centered scales."""
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + arch.norm_epsilon)
    if arch.zero_centered_norms:
        return (x32 * (1.0 + scale.astype(jnp.float32))).astype(x.dtype)
    return x32.astype(x.dtype) * scale
