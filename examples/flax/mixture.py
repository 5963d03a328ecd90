"""A decoder whose feed-forward layers are mixtures of experts; annotated where it cares how it is split."""

import jax
import jax.numpy as jnp
from flax import nnx


class Experts(nnx.Module):
    """Each token's two likeliest experts, weighted; a device holds a part of every expert's width."""

    def __init__(self, width, experts, *, rngs):
        init = nnx.initializers.lecun_normal()
        self.router = nnx.Linear(width, experts, use_bias=False, rngs=rngs)
        wide, back = (experts, width, 4 * width), (experts, 4 * width, width)
        self.up = nnx.Param(init(rngs.params(), wide), out_sharding=(None, None, "fsdp"))
        self.down = nnx.Param(init(rngs.params(), back), out_sharding=(None, "fsdp", None))

    def __call__(self, x):
        top, which = jax.lax.top_k(jax.nn.softmax(self.router(x)), 2)
        weights = jnp.sum(jax.nn.one_hot(which, self.router.out_features) * top[..., None], axis=-2)
        inside = nnx.silu(jnp.einsum("bld,edf->blef", x, self.up[...]))
        return jnp.einsum("blef,efd,ble->bld", inside, self.down[...], weights)


class Block(nnx.Module):
    """Attention and experts, each behind a norm."""

    def __init__(self, width, heads, experts, *, rngs):
        self.norm1, self.norm2 = nnx.RMSNorm(width, rngs=rngs), nnx.RMSNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.experts = Experts(width, experts, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.experts(self.norm2(x))


class Model(nnx.Module):
    """Its blocks are stacked on a leading axis and scanned."""

    def __init__(self, layers, width, heads, experts, *, vocab_size, rngs):
        @nnx.split_rngs(splits=layers)
        @nnx.vmap(in_axes=0, out_axes=0, transform_metadata={nnx.PARTITION_NAME: None})
        def stack(rngs):
            return Block(width, heads, experts, rngs=rngs)

        self.embed = nnx.Embed(vocab_size, width, rngs=rngs)
        self.blocks = stack(rngs)
        self.norm = nnx.RMSNorm(width, rngs=rngs)

    def __call__(self, tokens, segments, positions):
        mask = nnx.make_causal_mask(tokens) * nnx.make_attention_mask(segments, segments, jnp.equal)

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def through(x, block):
            return block(x, mask)

        return self.embed.attend(self.norm(through(self.embed(tokens), self.blocks)))
