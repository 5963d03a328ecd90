"""Causal attention within segments and a layer's window, by the platform's best implementation.

On TPU tokamax's splash kernel, or JAX's where that isn't installed; on GPU cuDNN's, through
`jax.nn.dot_product_attention`; elsewhere, and for shapes that a kernel doesn't support, plain einsums.
Grouped keys and values are never repeated.
"""
# mypy: allow-untyped-calls

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash_kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask

from workload.model.kernels import SPLASH, block_size, first_key, padded, query_block

_SHORT = 2048  # tokens up to which positions lie in lanes


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
    return ("attn_z",) if kind in SPLASH else ()


def attend(kind: str, max_logit: float = 0.0) -> Attend:
    """Return the implementation by its name; see `kernels.choose` and `compute.max_logit`."""
    known: dict[str, Attend] = {"splash": splash, "cudnn": cudnn, "einsum": einsum}
    return partial(tokamax, max_logit=max_logit) if kind == "tokamax" else known[kind]


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
    """Attend by JAX's kernel for TPUs: blocks in VMEM; those outside the mask are skipped; see `Attend`."""
    _, L, H, K = q_BxLxHxK.shape
    kernel = partial(_run, _splash_kernel(H, padded(L, window), window), splash_kernel.SegmentIds)
    q_BxLxHxK = q_BxLxHxK * (scale or K**-0.5)
    return _blockwise(kernel, padded(L, window), q_BxLxHxK, k_BxLxJxK, v_BxLxJxK, segments_BxL)


def tokamax(
    q_BxLxHxK: Array,
    k_BxLxJxK: Array,
    v_BxLxJxK: Array,
    segments_BxL: Array,
    window: int = 0,
    scale: float = 0.0,
    max_logit: float = 0.0,
) -> Array:
    """Attend by tokamax's kernel: as `splash`, with exponentials to base 2 and the division in the kernel.

    Given a bound of the scores, it doesn't look for each row's maximum.
    """
    _, L, _, K = q_BxLxHxK.shape
    made = _tokamax_kernel(padded(L, window), window, max_logit)
    kernel = partial(_run, made, _tokamax("base").SegmentIds)
    q_BxLxHxK = q_BxLxHxK * (scale or K**-0.5)
    return _blockwise(kernel, padded(L, window), q_BxLxHxK, k_BxLxJxK, v_BxLxJxK, segments_BxL)


def _run(
    kernel: Callable[..., Array], segment_ids: Any, q: Array, k: Array, v: Array, segments: Array
) -> Array:
    return jax.vmap(kernel)(q, k, v, segment_ids(q=segments, kv=segments))


def _blockwise(
    kernel: Callable[..., Array],
    whole: int,
    q_BxLxHxK: Array,
    k_BxLxJxK: Array,
    v_BxLxJxK: Array,
    segments_BxL: Array,
) -> Array:
    """Run a kernel on heads before positions, padded to `whole` with a segment of its own."""
    L = q_BxLxHxK.shape[1]
    more = whole - L
    heads_first = (jnp.swapaxes(x, 1, 2) for x in (q_BxLxHxK, k_BxLxJxK, v_BxLxJxK))
    q, k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, more), (0, 0))) if more else x for x in heads_first)
    if more:
        segments_BxL = jnp.pad(segments_BxL, ((0, 0), (0, more)), constant_values=-1)
    z_BxHxLxK = kernel(q, k, v, segments_BxL)
    return jnp.swapaxes(z_BxHxLxK[:, :, :L], 1, 2)


_interpret = False


@contextmanager
def interpreted() -> Iterator[None]:
    """Run the TPU's kernel on any machine within the context, slowly: for tests."""
    global _interpret
    _interpret = True
    _forget_kernels()
    try:
        yield
    finally:
        _interpret = False
        _forget_kernels()


def _forget_kernels() -> None:
    _splash_kernel.cache_clear()
    _tokamax_kernel.cache_clear()


def _blocks(length: int, window: int) -> dict[str, Any]:
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute")
    return {f"block_{name}": block_size(length, window) for name in names}


def _mask(masks: Any, length: int, window: int) -> Any:
    """Return the mask of one head, of JAX's classes or of tokamax's."""
    square = (length, length)
    return masks.LocalMask(square, (window - 1, 0), 0) if window else masks.CausalMask(square)


def _layouts(layouts: Any, length: int) -> dict[str, Any]:
    """Return the layouts of queries, keys and values: positions in lanes measured best at 2048 tokens."""
    return {} if length > _SHORT else dict.fromkeys(("q_layout", "k_layout", "v_layout"), layouts.SEQ_MINOR)


@cache
def _splash_kernel(heads: int, length: int, window: int) -> Callable[..., Array]:
    layouts = _layouts(splash_kernel.QKVLayout, length)
    sizes = splash_kernel.BlockSizes(**_blocks(length, window), **layouts, use_fused_bwd_kernel=True)
    mask = splash_mask.MultiHeadMask([_mask(splash_mask, length, window)] * heads)
    with jax.ensure_compile_time_eval():
        kernel: Callable[..., Array] = splash_kernel.make_splash_mha_single_device(
            mask, block_sizes=sizes, residual_checkpoint_name="attn_z", interpret=_interpret
        )
    return kernel


def _tokamax(module: str) -> Any:
    """Import a module of the kernel, which only TPU hosts and preflight need."""
    return import_module(f"tokamax._src.ops.experimental.tpu.splash_attention.{module}")


@cache
def _tokamax_kernel(length: int, window: int, max_logit: float) -> Callable[..., Array]:
    module = _tokamax("splash_attention_kernel")
    config = module.SplashConfig(
        **_blocks(length, window),
        **_layouts(module.QKVLayout, length),
        use_base2_exp=True,
        fuse_reciprocal=True,
        max_logit_const=max_logit or None,
        residual_checkpoint_name="attn_z",
        interpret=_interpret,
    )
    mask = _mask(_tokamax("splash_attention_mask"), length, window)
    with jax.ensure_compile_time_eval():
        kernel: Callable[..., Array] = module.make_splash_mha_single_device(mask, config=config)
    return kernel


def positions(segments_BxL: Array) -> Array:
    """Return each token's index in its segment, from 0."""
    index_L = jnp.arange(segments_BxL.shape[1])
    first_BxL = jnp.pad(segments_BxL[:, 1:] != segments_BxL[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    start_BxL: Array = jax.lax.cummax(jnp.where(first_BxL, index_L, 0), axis=1)
    return index_L - start_BxL
