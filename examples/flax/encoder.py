"""An encoder that guesses hidden tokens from both sides: it has a loss of its own."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Model(nnx.Module):
    """Tokens to logits, without a causal mask."""

    def __init__(self, layers, width, heads, *, hidden=0.15, dropout=0.1, vocab_size, rngs):
        self.hidden, self.mask_id = hidden, vocab_size  # a token that no text has
        self.tokens = nnx.Embed(vocab_size + 1, width, rngs=rngs)
        self.layers = nnx.List(
            [nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs) for _ in range(layers)]
        )
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(layers)])
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.rngs = rngs

    def __call__(self, tokens, segments):
        mask, x = nnx.make_attention_mask(segments, segments, jnp.equal), self.tokens(tokens)
        for attention, norm in zip(self.layers, self.norms, strict=True):
            x = x + self.dropout(attention(norm(x), mask=mask))
        return self.tokens.attend(x)

    def loss(self, batch):
        """Return the sum of the hidden tokens' losses, and their number."""
        tokens = batch["tokens"]
        hidden = jax.random.uniform(self.rngs.masks(), tokens.shape) < self.hidden
        logits = self(jnp.where(hidden, self.mask_id, tokens), batch["segments"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
        return jnp.sum(losses * hidden), jnp.sum(hidden)
