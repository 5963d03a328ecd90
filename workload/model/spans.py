"""A layer on a CPU, where nobody asks for gradients: some tokens at once, through all of it.

    blocks = spans.Blocks(segments_BxL, turn)
    x_BxLxD, seen = blocks.run(some, x_BxLxD, arch)

Rows lie end to end. A block of tokens goes through the whole layer before the next one does, so that what
is between its products stays in the cache; of the blocks before, only keys and values are kept. Its queries
meet the keys from where the first of their documents begins: a row of short documents costs what they do.
"""
# mypy: allow-untyped-calls

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from workload.model.architecture import Architecture
from workload.model.kernels import SPAN_BLOCK, SPAN_TOKENS

Turn = tuple[Array, Array]
Some = Callable[[Array, Turn, Callable[..., Array]], tuple[Array, dict[str, Array]]]
"""A layer of (x_1xTxD, their turn, (q, k, v) -> z) with what is kept of it, by name."""


class _Keys(NamedTuple):
    """Of all tokens so far; those of later ones are zeros."""

    k_JxKxS: Array  # products on a CPU read what is summed over first
    v_JxSxK: Array


class Blocks:
    """The tokens of a batch, all B x L of them end to end, in N blocks of T."""

    def __init__(self, segments_BxL: Array, turn: Turn):
        """Cuts.

        Args:
            segments_BxL: the document that each token belongs to, numbered in its row.
            turn: cosine and sine of every position's angles; see `rope.turns`.
        """
        self._B, self._L = B, L = segments_BxL.shape
        self._T = _at_once(B * L)
        # A segment of its own for each row's; what fills the last block has one too.
        unlike_BxL = segments_BxL * B + jnp.arange(B)[:, None]
        missing = -(B * L) % self._T
        self._segments_S = jnp.pad(
            unlike_BxL.reshape(-1), (0, missing), constant_values=jnp.iinfo(jnp.int32).min
        )
        self._start_S = starts(self._segments_S[None])[0]
        self._turn_Nx1xTx1xK = (self._cut(turn[0]), self._cut(turn[1]))

    def run(self, some: Some, x_BxLxD: Array, arch: Architecture) -> tuple[Array, dict[str, Array]]:
        """A layer over all blocks: its output, and what was kept, B x L x the point's own axes."""
        S, J, K, dtype = len(self._segments_S), arch.J, arch.K, x_BxLxD.dtype

        def block(
            keys: _Keys, piece: tuple[Array, Turn, Array]
        ) -> tuple[_Keys, tuple[Array, dict[str, Array]]]:
            x_1xTxD, turn, first = piece

            def attended(q_1xTxHxK: Array, k_1xTxJxK: Array, v_1xTxJxK: Array) -> Array:
                nonlocal keys
                keys = _Keys(
                    jax.lax.dynamic_update_slice(
                        keys.k_JxKxS, k_1xTxJxK[0].transpose(1, 2, 0), (0, 0, first)
                    ),
                    jax.lax.dynamic_update_slice(keys.v_JxSxK, v_1xTxJxK[0].swapaxes(0, 1), (0, first, 0)),
                )
                return _attend(q_1xTxHxK[0], keys, self._segments_S, self._start_S, first)[None]

            y_1xTxD, seen = some(x_1xTxD, turn, attended)
            return keys, (y_1xTxD, seen)

        none = _Keys(jnp.zeros((J, K, S), dtype), jnp.zeros((J, S, K), dtype))
        pieces = self._cut(x_BxLxD), self._turn_Nx1xTx1xK, jnp.arange(0, S, self._T)
        _, (y_Nx1xTxD, seen) = jax.lax.scan(block, none, pieces)
        return self._joined(y_Nx1xTxD), {name: self._joined(value) for name, value in seen.items()}

    def _cut(self, x_BxL: Array) -> Array:
        """From B x L x others to N x 1 x T x others."""
        x_S = x_BxL.reshape(-1, *x_BxL.shape[2:])
        x_S = jnp.pad(x_S, ((0, -len(x_S) % self._T), *[(0, 0)] * (x_S.ndim - 1)))
        return x_S.reshape(-1, 1, self._T, *x_S.shape[1:])

    def _joined(self, x_Nx1xT: Array) -> Array:
        """The way back."""
        x_S = x_Nx1xT.reshape(-1, *x_Nx1xT.shape[3:])
        return x_S[: self._B * self._L].reshape(self._B, self._L, *x_S.shape[1:])


def starts(segments_BxL: Array) -> Array:
    """Where in its row each token's segment begins."""
    index_L = jnp.arange(segments_BxL.shape[1])
    first = jnp.concatenate(
        [jnp.ones_like(segments_BxL[:, :1], bool), segments_BxL[:, 1:] != segments_BxL[:, :-1]], axis=1
    )
    start_BxL: Array = jax.lax.cummax(jnp.where(first, index_L, 0), axis=1)
    return start_BxL


def _at_once(tokens: int) -> int:
    """The tokens of a block: about as many as the caches take, and few that fill the last block up."""
    if tokens <= SPAN_TOKENS:
        return -(-tokens // SPAN_BLOCK) * SPAN_BLOCK
    near = (SPAN_TOKENS, SPAN_TOKENS - SPAN_BLOCK, SPAN_TOKENS + SPAN_BLOCK)
    return min(near, key=lambda size: -tokens % size)


def _attend(q_TxHxK: Array, keys: _Keys, segments_S: Array, start_S: Array, first: Array) -> Array:
    """Attention of T tokens from `first` on, whose own keys are there.

    The softmax is taken along (Milakov and Gimelshein, 2018): scores are of R queries and R keys at a time.
    """
    T, H, K = q_TxHxK.shape
    J, R = len(keys.v_JxSxK), SPAN_BLOCK
    G = H // J
    lowest, exact = jnp.finfo(jnp.float32).min, {"preferred_element_type": jnp.float32}
    # Queries of a group are one product's rows: block, J, then G x R.
    q_NxJxMxK = q_TxHxK.reshape(-1, R, J, G, K).transpose(0, 2, 3, 1, 4).reshape(-1, J, G * R, K)

    def block(piece: tuple[Array, Array]) -> Array:
        q_JxMxK, at = piece
        mine_R, place_R = jax.lax.dynamic_slice(segments_S, (at,), (R,)), at + jnp.arange(R)

        def meet(m: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            most_JxMx1, sum_JxMx1, z_JxMxK = state
            k_JxKxR = jax.lax.dynamic_slice(keys.k_JxKxS, (0, 0, m * R), (J, K, R))
            v_JxRxK = jax.lax.dynamic_slice(keys.v_JxSxK, (0, m * R, 0), (J, R, K))
            theirs_R = jax.lax.dynamic_slice(segments_S, (m * R,), (R,))
            scores_JxMxR = jnp.einsum("jmk,jkr->jmr", q_JxMxK, k_JxKxR, **exact) * K**-0.5
            seen_RxR = (mine_R[:, None] == theirs_R) & (place_R[:, None] >= m * R + jnp.arange(R))
            scores_JxMxR = jnp.where(jnp.tile(seen_RxR, (G, 1)), scores_JxMxR, lowest)
            now_JxMx1 = jnp.maximum(most_JxMx1, scores_JxMxR.max(axis=-1, keepdims=True))
            weights_JxMxR, before_JxMx1 = jnp.exp(scores_JxMxR - now_JxMx1), jnp.exp(most_JxMx1 - now_JxMx1)
            added = jnp.einsum("jmr,jrk->jmk", weights_JxMxR.astype(v_JxRxK.dtype), v_JxRxK, **exact)
            total = sum_JxMx1 * before_JxMx1 + weights_JxMxR.sum(axis=-1, keepdims=True)
            return now_JxMx1, total, z_JxMxK * before_JxMx1 + added

        # Each query meets itself last: what it counted before it met a key of its own is forgotten then.
        none = jnp.full((J, G * R, 1), lowest), jnp.zeros((J, G * R, 1)), jnp.zeros((J, G * R, K))
        z_JxMxK: Array
        _, sum_JxMx1, z_JxMxK = jax.lax.fori_loop(start_S[at] // R, at // R + 1, meet, none)
        z_JxMxK = (z_JxMxK / sum_JxMx1).astype(q_TxHxK.dtype)
        return z_JxMxK

    z_NxJxMxK: Array = jax.lax.map(block, (q_NxJxMxK, first + jnp.arange(0, T, R)))
    return z_NxJxMxK.reshape(-1, J, G, R, K).transpose(0, 3, 1, 2, 4).reshape(T, H, K)
