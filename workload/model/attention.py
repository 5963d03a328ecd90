"""Causal attention within segments and a layer's window, by the platform's best implementation.

On TPU JAX's splash kernel; on GPU cuDNN's, through `jax.nn.dot_product_attention`; elsewhere, and for
shapes that a kernel doesn't support, plain einsums. Grouped keys and values are never repeated.
"""
# mypy: allow-untyped-calls

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

from workload.model.kernels import block_size, first_key, query_block


class Attend(Protocol):
    """Attention of a layer."""

    def __call__(
        self,
        q_BxLxHxK: Array,
        k_BxLxJxK: Array,
        v_BxLxJxK: Array,
        segments_BxL: Array,
        window: int = 0,
        scale: float = 0.0,
    ) -> Array:
        """Return z_BxLxHxK.

        Args:
            q_BxLxHxK: queries.
            k_BxLxJxK: keys.
            v_BxLxJxK: values.
            segments_BxL: each token's document.
            window: keys that a query attends to, up to its own; 0: all.
            scale: of the scores; 0: 1 / sqrt(K).
        """


def named_inside(kind: str) -> tuple[str, ...]:
    """Return the points that an implementation names for remat itself, for its backward pass."""
    return ("attn_z",) if kind == "splash" else ()


def attend(kind: str) -> Attend:
    """Return the implementation by its name; see `kernels.choose`."""
    return {"splash": splash, "cudnn": cudnn, "einsum": einsum}[kind]


def einsum(
    q_BxLxHxK: Array,
    k_BxLxJxK: Array,
    v_BxLxJxK: Array,
    segments_BxL: Array,
    window: int = 0,
    scale: float = 0.0,
) -> Array:
    """Attend by einsums, in blocks of queries with the keys that they may attend to; see `Attend`.

    Softmax is in float32. Most scores outside the mask are never computed, and a block's scores are
    recomputed in the backward pass. Heads are moved to the front once, not in every block.
    """
    B, L, H, K = q_BxLxHxK.shape
    J = k_BxLxJxK.shape[2]
    q_BxJxGxLxK = q_BxLxHxK.reshape(B, L, J, H // J, K).transpose(0, 2, 3, 1, 4)
    k_BxJxLxK, v_BxJxLxK = (x.swapaxes(1, 2) for x in (k_BxLxJxK, v_BxLxJxK))
    size = query_block(L)
    whole = partial(_rows, window, scale or K**-0.5)
    rows = jax.checkpoint(whole) if size < L else whole
    blocks = []
    for first in range(0, L, size):
        keys = slice(first_key("einsum", first, window, size), first + size)
        q_BxJxGxRxK = q_BxJxGxLxK[:, :, :, first : first + size]
        blocks.append(rows(q_BxJxGxRxK, k_BxJxLxK[:, :, keys], v_BxJxLxK[:, :, keys], segments_BxL[:, keys]))
    z_BxJxGxLxK = jnp.concatenate(blocks, axis=3)
    return z_BxJxGxLxK.transpose(0, 3, 1, 2, 4).reshape(B, L, H, K)


def _rows(
    window: int, scale: float, q_BxJxGxRxK: Array, k_BxJxSxK: Array, v_BxJxSxK: Array, segments_BxS: Array
) -> Array:
    """Attend from the last R of S positions; the queries of a group are the rows of a single product."""
    B, J, G, R, K = q_BxJxGxRxK.shape
    exact = {"preferred_element_type": jnp.float32}
    q_BxJxMxK = q_BxJxGxRxK.reshape(B, J, G * R, K)
    scores = jnp.einsum("bjmk,bjsk->bjms", q_BxJxMxK, k_BxJxSxK, **exact).reshape(B, J, G, R, -1)
    seen_Bx1x1xRxS = _seen(segments_BxS, R, window)[:, None, None]
    scores = jnp.where(seen_Bx1x1xRxS, scores * scale, jnp.finfo(jnp.float32).min)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    z_BxJxMxK = jnp.einsum(
        "bjms,bjsk->bjmk", weights.reshape(B, J, G * R, -1).astype(v_BxJxSxK.dtype), v_BxJxSxK, **exact
    )
    z_BxJxGxRxK = z_BxJxMxK.reshape(B, J, G, R, K) / weights.sum(axis=-1, keepdims=True)
    return z_BxJxGxRxK.astype(v_BxJxSxK.dtype)


def cudnn(
    q_BxLxHxK: Array,
    k_BxLxJxK: Array,
    v_BxLxJxK: Array,
    segments_BxL: Array,
    window: int = 0,
    scale: float = 0.0,
) -> Array:
    """Attend by cuDNN's fused kernel; the mask is a bias to it; see `Attend`."""
    mask_Bx1xLxL = _seen(segments_BxL, segments_BxL.shape[1], window)[:, None]
    return jax.nn.dot_product_attention(
        q_BxLxHxK, k_BxLxJxK, v_BxLxJxK, mask=mask_Bx1xLxL, scale=scale or None, implementation="cudnn"
    )


def _seen(segments_BxS: Array, rows: int, window: int) -> Array:
    """Return the mask of positions (last axis) that the last `rows` positions (axis before) may attend to."""
    S = segments_BxS.shape[1]
    causal_RxS = jnp.tril(jnp.ones((rows, S), bool), S - rows)
    if window:
        causal_RxS &= ~jnp.tril(jnp.ones((rows, S), bool), S - rows - window)
    return causal_RxS & (segments_BxS[:, S - rows :, None] == segments_BxS[:, None, :])


def splash(
    q_BxLxHxK: Array,
    k_BxLxJxK: Array,
    v_BxLxJxK: Array,
    segments_BxL: Array,
    window: int = 0,
    scale: float = 0.0,
) -> Array:
    """Attend by the TPU's kernel: blocks in VMEM; those outside the mask are skipped; see `Attend`."""
    _, L, H, K = q_BxLxHxK.shape
    kernel = _splash_kernel(H, L, window)
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q_BxLxHxK * (scale or K**-0.5), k_BxLxJxK, v_BxLxJxK))
    segments = splash_kernel.SegmentIds(q=segments_BxL, kv=segments_BxL)
    z_BxHxLxK = jax.vmap(kernel)(q, k, v, segments)
    return jnp.swapaxes(z_BxHxLxK, 1, 2)


_interpret = False


@contextmanager
def interpreted() -> Iterator[None]:
    """Run the TPU's kernel on any machine within the context, slowly: for tests."""
    global _interpret
    _interpret = True
    _splash_kernel.cache_clear()
    try:
        yield
    finally:
        _interpret = False
        _splash_kernel.cache_clear()


@cache
def _splash_kernel(heads: int, length: int, window: int) -> Callable[..., Array]:
    block = block_size(length, window)
    sizes = splash_kernel.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        use_fused_bwd_kernel=True,
    )
    square = (length, length)
    one_head = splash_mask.LocalMask(square, (window - 1, 0), 0) if window else splash_mask.CausalMask(square)
    mask = splash_mask.MultiHeadMask([one_head] * heads)
    with jax.ensure_compile_time_eval():
        kernel: Callable[..., Array] = splash_kernel.make_splash_mha_single_device(
            mask, block_sizes=sizes, residual_checkpoint_name="attn_z", interpret=_interpret
        )
    return kernel


def positions(segments_BxL: Array) -> Array:
    """Return each token's index in its segment, from 0."""
    index_L = jnp.arange(segments_BxL.shape[1])
    first_BxL = jnp.pad(segments_BxL[:, 1:] != segments_BxL[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    start_BxL: Array = jax.lax.cummax(jnp.where(first_BxL, index_L, 0), axis=1)
    return index_L - start_BxL
