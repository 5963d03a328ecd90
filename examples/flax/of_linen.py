"""A module of flax's older interface: the same settings, `dropout` from the trainer's keys."""

from flax import linen as nn


class Model(nn.Module):
    """Logits from the last few tokens, by a causal convolution."""

    width: int
    vocab_size: int
    dropout: float = 0.1

    @nn.compact
    def __call__(self, tokens, segments, positions, deterministic):
        x = nn.Embed(self.vocab_size, self.width)(tokens)
        x = x + nn.Conv(self.width, kernel_size=(4,), padding="CAUSAL")(nn.LayerNorm()(x))
        x = nn.Dropout(self.dropout, deterministic=deterministic)(nn.gelu(x))
        return nn.Dense(self.vocab_size)(x)
