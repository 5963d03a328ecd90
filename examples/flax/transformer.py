"""A decoder of flax's own layers, as its guides write it; it knows nothing of who trains it."""

import jax.numpy as jnp
from flax import nnx


class Block(nnx.Module):
    """Attention and a feed-forward layer, each behind a norm."""

    def __init__(self, width, heads, dropout, *, rngs):
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, dropout_rate=dropout, decode=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.dropout(self.attention(self.norm1(x), mask=mask))
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm2(x)))))


class Model(nnx.Module):
    """Logits of the next token; attention stays within a document."""

    def __init__(self, layers, width, heads, *, longest=2048, dropout=0.1, vocab_size, rngs):
        self.tokens = nnx.Embed(vocab_size, width, rngs=rngs)
        self.positions = nnx.Embed(longest, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, dropout, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, tokens, segments, positions):
        mask = nnx.make_causal_mask(tokens) * nnx.make_attention_mask(segments, segments, jnp.equal)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x, mask)
        return self.tokens.attend(self.norm(x))
