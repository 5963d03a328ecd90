"""Next-token cross-entropy in chunks, with the logits of a single chunk in memory.

The forward pass also computes the gradients, chunk by chunk, and the backward pass multiplies them by a
scalar: three matrix products per chunk, as many as with whole logits.
"""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array


def counted(batch: Mapping[str, Array]) -> Array:
    """Return 1.0 for each counted target of a batch, else 0.0.

    A target counts if it belongs to the same document as the token before it and, where the batch has
    counted_BxL1, is marked there.
    """
    segments_BxL1 = batch["segments_BxL1"]
    counted_BxL = (segments_BxL1[:, :-1] == segments_BxL1[:, 1:]).astype(jnp.float32)
    if "counted_BxL1" in batch:
        counted_BxL *= batch["counted_BxL1"][:, 1:].astype(jnp.float32)
    return counted_BxL


def chunks(tokens: int, largest: int) -> int:
    """Return the least number of chunks of at most `largest` tokens; the last may be padded."""
    return -(-tokens // largest)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def cross_entropy(
    x_TxD: Array, unembed_VxD: Array, targets_T: Array, counted_T: Array, largest_chunk: int
) -> Array:
    """Return the sum over counted tokens of -log p(target), in nats, float32.

    Args:
        x_TxD: final activations.
        unembed_VxD: a row per token of the vocabulary.
        targets_T: the token after each.
        counted_T: 1.0 if a target counts, else 0.0.
        largest_chunk: tokens with logits in memory, 2·4·V bytes each.
    """
    count = chunks(x_TxD.shape[0], largest_chunk)

    def chunk(total: Array, piece: tuple[Array, Array, Array]) -> tuple[Array, None]:
        loss, _, _ = _chunk_loss(*piece, unembed_VxD)
        return total + loss, None

    total: Array
    total, _ = jax.lax.scan(chunk, jnp.zeros((), jnp.float32), _split(count, x_TxD, targets_T, counted_T))
    return total


def _split(count: int, x_TxD: Array, targets_T: Array, counted_T: Array) -> tuple[Array, Array, Array]:
    """Split into equal chunks; padding of the last isn't counted."""
    if padding := -x_TxD.shape[0] % count:
        x_TxD = jnp.pad(x_TxD, ((0, padding), (0, 0)))
        targets_T, counted_T = jnp.pad(targets_T, (0, padding)), jnp.pad(counted_T, (0, padding))
    x, targets, counted = (
        array.reshape(count, -1, *array.shape[1:]) for array in (x_TxD, targets_T, counted_T)
    )
    return x, targets, counted


def _chunk_loss(
    x_CxD: Array, targets_C: Array, counted_C: Array, unembed_VxD: Array
) -> tuple[Array, Array, Array]:
    """Return a chunk's loss, logits and log-normalizers, all float32."""
    logits_CxV = jnp.einsum("cd,vd->cv", x_CxD, unembed_VxD, preferred_element_type=jnp.float32)
    normalizer_C = jax.nn.logsumexp(logits_CxV, axis=-1)
    at_target_C = jnp.take_along_axis(logits_CxV, targets_C[:, None], axis=1)[:, 0]
    return jnp.sum((normalizer_C - at_target_C) * counted_C), logits_CxV, normalizer_C


def _forward(
    x_TxD: Array, unembed_VxD: Array, targets_T: Array, counted_T: Array, largest_chunk: int
) -> tuple[Array, tuple[Array, Array]]:
    count = chunks(x_TxD.shape[0], largest_chunk)

    def chunk(
        carry: tuple[Array, Array], piece: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        total, d_unembed_VxD = carry
        x_CxD, targets_C, counted_C = piece
        loss, logits_CxV, normalizer_C = _chunk_loss(*piece, unembed_VxD)
        p_CxV = jnp.exp(logits_CxV - normalizer_C[:, None])
        is_target_CxV = targets_C[:, None] == jnp.arange(unembed_VxD.shape[0])
        d_logits_CxV = ((p_CxV - is_target_CxV) * counted_C[:, None]).astype(x_TxD.dtype)
        d_x_CxD = jnp.einsum("cv,vd->cd", d_logits_CxV, unembed_VxD)
        d_unembed_VxD += jnp.einsum("cv,cd->vd", d_logits_CxV, x_CxD, preferred_element_type=jnp.float32)
        return (total + loss, d_unembed_VxD), d_x_CxD

    begin = (jnp.zeros((), jnp.float32), jnp.zeros(unembed_VxD.shape, jnp.float32))
    (total, d_unembed_VxD), d_x = jax.lax.scan(chunk, begin, _split(count, x_TxD, targets_T, counted_T))
    d_x_TxD = d_x.reshape(-1, x_TxD.shape[1])[: x_TxD.shape[0]]
    return total, (d_x_TxD, d_unembed_VxD.astype(unembed_VxD.dtype))


def _backward(
    largest_chunk: int, gradients: tuple[Array, Array], scale: Array
) -> tuple[Array, Array, None, None]:
    d_x_TxD, d_unembed_VxD = gradients
    return (
        (d_x_TxD * scale).astype(d_x_TxD.dtype),
        (d_unembed_VxD * scale).astype(d_unembed_VxD.dtype),
        None,
        None,
    )


cross_entropy.defvjp(_forward, _backward)
