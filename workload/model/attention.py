"""Causal attention within segments and a layer's window, by the platform's best implementation.

On TPU tokamax's splash kernel, or JAX's where that isn't installed; elsewhere, and for shapes that a kernel
doesn't support, plain einsums.
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

from workload.model.kernels import SPLASH, block_size, padded

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
    return partial(_splash, kind, max_logit) if kind in SPLASH else einsum


def einsum(
    q_BxLxHxK: Array,
    k_BxLxJxK: Array,
    v_BxLxJxK: Array,
    segments_BxL: Array,
    window: int = 0,
    scale: float = 0.0,
) -> Array:
    """Attend by einsums, with softmax in float32; see `Attend`."""
    B, L, H, K = q_BxLxHxK.shape
    J = k_BxLxJxK.shape[2]
    exact = {"preferred_element_type": jnp.float32}
    # The queries of a group are the rows of a single product.
    q_BxJxMxK = q_BxLxHxK.reshape(B, L, J, H // J, K).transpose(0, 2, 3, 1, 4).reshape(B, J, -1, K)
    scores = jnp.einsum("bjmk,bljk->bjml", q_BxJxMxK, k_BxLxJxK, **exact).reshape(B, J, -1, L, L)
    seen_Bx1x1xLxL = _seen(segments_BxL, window)[:, None, None]
    scores = jnp.where(seen_Bx1x1xLxL, scores * (scale or K**-0.5), jnp.finfo(jnp.float32).min)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    rows_BxJxMxL = weights.reshape(B, J, -1, L).astype(v_BxLxJxK.dtype)
    z_BxJxMxK = jnp.einsum("bjml,bljk->bjmk", rows_BxJxMxL, v_BxLxJxK, **exact)
    z_BxJxGxLxK = z_BxJxMxK.reshape(B, J, -1, L, K) / weights.sum(axis=-1, keepdims=True)
    return z_BxJxGxLxK.astype(v_BxLxJxK.dtype).transpose(0, 3, 1, 2, 4).reshape(B, L, H, K)


def _seen(segments_BxL: Array, window: int) -> Array:
    """Return the mask of positions (last axis) that positions (axis before) may attend to."""
    ones_LxL = jnp.ones((segments_BxL.shape[1],) * 2, bool)
    causal_LxL = jnp.tril(ones_LxL)
    if window:
        causal_LxL &= ~jnp.tril(ones_LxL, -window)
    return causal_LxL & (segments_BxL[:, :, None] == segments_BxL[:, None, :])


def _splash(
    kind: str,
    max_logit: float,
    q_BxLxHxK: Array,
    k_BxLxJxK: Array,
    v_BxLxJxK: Array,
    segments_BxL: Array,
    window: int = 0,
    scale: float = 0.0,
) -> Array:
    """Attend by a kernel for TPUs: blocks in VMEM; those outside the mask are skipped; see `Attend`.

    tokamax's has exponentials to base 2 and the division in the kernel. Given a bound of the scores, it looks
    for no row's maximum. Rows are padded to whole blocks with a segment of their own.
    """
    L, H, K = q_BxLxHxK.shape[1:]
    whole = padded(L, window)
    if kind == "tokamax":
        kernel, segment_ids = _tokamax_kernel(whole, window, max_logit), _tokamax("base").SegmentIds
    else:
        kernel, segment_ids = _splash_kernel(H, whole, window), splash_kernel.SegmentIds

    def lengthened(array: Array, axis: int, value: int = 0) -> Array:
        widths = [(0, (whole - L) * (n == axis)) for n in range(array.ndim)]
        return jnp.pad(array, widths, constant_values=value) if whole > L else array

    q_BxLxHxK = q_BxLxHxK * (scale or K**-0.5)
    q, k, v = (lengthened(jnp.swapaxes(x, 1, 2), 2) for x in (q_BxLxHxK, k_BxLxJxK, v_BxLxJxK))
    segments = lengthened(segments_BxL, 1, -1)
    z_BxHxLxK = jax.vmap(kernel)(q, k, v, segment_ids(q=segments, kv=segments))
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
