"""A decoder-only transformer as one pytree and one function.

Letters in tensor names: B batch, L sequence, D model width, H heads, K width of a head,
F feed-forward width, V vocabulary, N layers. Layers are stacked on a leading N and scanned.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from workload.config import ModelConfig

Params = dict[str, Any]


def shapes(config: ModelConfig, vocab_size: int) -> Params:
    """Shape of every parameter, all float32."""
    D, F, H, N, V = config.d_model, config.d_ff, config.heads, config.layers, vocab_size
    K = D // H
    shapes = {
        "embed_VxD": (V, D),
        "layers": {
            "attention_norm_NxD": (N, D),
            "query_NxDxHxK": (N, D, H, K),
            "key_NxDxHxK": (N, D, H, K),
            "value_NxDxHxK": (N, D, H, K),
            "out_NxHxKxD": (N, H, K, D),
            "mlp_norm_NxD": (N, D),
            "gate_NxDxF": (N, D, F),
            "up_NxDxF": (N, D, F),
            "down_NxFxD": (N, F, D),
        },
        "final_norm_D": (D,),
        "unembed_DxV": (D, V),
    }
    tree: Params = jax.tree.map(_float32, shapes, is_leaf=lambda node: isinstance(node, tuple))
    return tree


def _float32(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)  # type: ignore[no-untyped-call]


def draw(name: str, shape: tuple[int, ...], config: ModelConfig, seed: int) -> NDArray[np.float32]:
    """A parameter's first value, a function of the seed and its name alone.

    Norms begin at one. Matrices are normal with variance 1 / fan-in; the two of each layer
    that add to the residual stream share it among the 2N of them. NumPy draws: compiling a
    generator for every matrix would take longer than the steps of a small run.
    """
    if "norm" in name:
        return np.ones(shape, np.float32)
    residual = 2 * config.layers
    fan_in = {"down_NxFxD": config.d_ff * residual, "out_NxHxKxD": config.d_model * residual}
    generator = np.random.Generator(np.random.Philox([seed, *name.encode()]))
    values = generator.standard_normal(shape, np.float32)
    return values * np.float32(fan_in.get(name, config.d_model) ** -0.5)


def forward(params: Params, tokens_BxL: Array, config: ModelConfig) -> Array:
    """Predicts the next token at every position: float32 logits_BxLxV."""
    dtype = jnp.dtype(config.dtype)
    rope = _rope_angles(tokens_BxL.shape[1], config)

    def block(x_BxLxD: Array, layer: Params) -> tuple[Array, None]:
        layer = jax.tree.map(lambda weight: weight.astype(dtype), layer)
        x_BxLxD += _attention(_rms_norm(x_BxLxD, layer["attention_norm_NxD"]), layer, rope)
        x_BxLxD += _mlp(_rms_norm(x_BxLxD, layer["mlp_norm_NxD"]), layer)
        return x_BxLxD, None

    x_BxLxD = params["embed_VxD"].astype(dtype)[tokens_BxL]
    x_BxLxD, _ = jax.lax.scan(block, x_BxLxD, params["layers"])
    x_BxLxD = _rms_norm(x_BxLxD, params["final_norm_D"].astype(dtype))
    logits_BxLxV: Array = x_BxLxD @ params["unembed_DxV"].astype(dtype)
    return logits_BxLxV.astype(jnp.float32)


def loss(params: Params, tokens_BxL1: Array, config: ModelConfig) -> Array:
    """Mean cross-entropy in nats of tokens 1..L given those before them."""
    logits_BxLxV = forward(params, tokens_BxL1[:, :-1], config)
    targets_BxL = tokens_BxL1[:, 1:]
    log_probs_BxLxV = jax.nn.log_softmax(logits_BxLxV)
    # A comparison stays with the examples of its device; an index would gather them all.
    is_target_BxLxV = targets_BxL[..., None] == jnp.arange(log_probs_BxLxV.shape[-1])
    return -jnp.sum(jnp.where(is_target_BxLxV, log_probs_BxLxV, 0.0)) / targets_BxL.size


def _attention(x_BxLxD: Array, layer: Params, rope: tuple[Array, Array]) -> Array:
    q_BxLxHxK = _rotate(jnp.einsum("BLD,DHK->BLHK", x_BxLxD, layer["query_NxDxHxK"]), rope)
    k_BxLxHxK = _rotate(jnp.einsum("BLD,DHK->BLHK", x_BxLxD, layer["key_NxDxHxK"]), rope)
    v_BxLxHxK = jnp.einsum("BLD,DHK->BLHK", x_BxLxD, layer["value_NxDxHxK"])
    y_BxLxHxK = jax.nn.dot_product_attention(q_BxLxHxK, k_BxLxHxK, v_BxLxHxK, is_causal=True)
    return jnp.einsum("BLHK,HKD->BLD", y_BxLxHxK, layer["out_NxHxKxD"])


def _mlp(x_BxLxD: Array, layer: Params) -> Array:
    gate_BxLxF = jax.nn.silu(x_BxLxD @ layer["gate_NxDxF"])
    y_BxLxD: Array = (gate_BxLxF * (x_BxLxD @ layer["up_NxDxF"])) @ layer["down_NxFxD"]
    return y_BxLxD


def _rms_norm(x_BxLxD: Array, scale_D: Array) -> Array:
    """In float32 inside, whatever the activations are."""
    x32 = x_BxLxD.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + 1e-6)
    return x32.astype(x_BxLxD.dtype) * scale_D


def _rope_angles(length: int, config: ModelConfig) -> tuple[Array, Array]:
    """Cosine and sine, float32, of shape 1xLx1x(K/2)."""
    K = config.d_model // config.heads
    frequency = config.rope_theta ** (-jnp.arange(0, K, 2) / K)
    angle_LxK2 = jnp.arange(length)[:, None] * frequency[None, :]
    return jnp.cos(angle_LxK2)[None, :, None, :], jnp.sin(angle_LxK2)[None, :, None, :]


def _rotate(x_BxLxHxK: Array, rope: tuple[Array, Array]) -> Array:
    """Turns the pairs (i, i + K/2) of each head by the position's angle."""
    cos, sin = rope
    a, b = jnp.split(x_BxLxHxK.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x_BxLxHxK.dtype)
