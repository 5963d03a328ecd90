"""Architecture of a model: the sizes and variants that determine parameters and arithmetic."""

from dataclasses import dataclass

from settings_schema.rules import above, at_least, between, one_of
from workload.settings import ruled


@dataclass(frozen=True)
class RopeScaling:
    """Stretching of rotary frequencies beyond the length of a model's training.

    `llama3` keeps short wavelengths, divides long ones by `factor` and blends between
    (Llama 3.1's `rope_type`); `yarn` ramps over dimensions and scales attention (Peng et al.,
    2023, section 3); `linear` divides every frequency.
    """

    kind: str = ruled("none", one_of("none", "linear", "llama3", "yarn"))
    factor: float = ruled(1.0, at_least(1))
    original_length: int = ruled(8192, at_least(1))  # tokens, before stretching
    low_frequency_factor: float = ruled(1.0, above(0))  # llama3
    high_frequency_factor: float = ruled(4.0, above(0))  # llama3
    beta_fast: float = ruled(32.0, above(0))  # yarn: rotations above which nothing is stretched
    beta_slow: float = ruled(1.0, above(0))  # yarn: rotations below which all are stretched


@dataclass(frozen=True)
class Architecture:
    """Decoder: RMSNorm before each block, RoPE, grouped heads, SwiGLU.

    The default has the variants of Llama 3. Qwen 2 and 2.5 add `qkv_bias`, Qwen 3 `qk_norm`.
    """

    layers: int = ruled(2, at_least(1), most=10_000)
    d_model: int = ruled(128, at_least(2), most=2**20)  # width of the residual stream
    heads: int = ruled(4, at_least(1), most=2**16)  # of queries
    kv_heads: int = ruled(0, at_least(0), most=2**16)  # of keys and values; 0: as many as heads
    head_dim: int = ruled(0, at_least(0), most=2**16)  # 0: d_model / heads
    d_ff: int = ruled(384, at_least(1), most=2**22)  # width inside the feed-forward block
    vocab_size: int = ruled(0, at_least(0), most=2**24)  # 0: of the tokens
    norm_epsilon: float = ruled(1e-6, between(0, 1))
    rope_theta: float = ruled(10_000.0, above(0))
    rope_scaling: RopeScaling = RopeScaling()
    qkv_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False  # the unembedding is the embedding

    @property
    def J(self) -> int:  # noqa: N802  the letter of tensor names
        """Key/value heads."""
        return self.kv_heads or self.heads

    @property
    def K(self) -> int:  # noqa: N802
        """Width of a head."""
        return self.head_dim or self.d_model // self.heads

    def shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Return every parameter's shape, by group and name.

        `layers` holds each layer's parameters stacked on a leading N.
        """
        D, F, N, V = self.d_model, self.d_ff, self.layers, self.vocab_size
        K, Q, R = self.K, self.heads * self.K, self.J * self.K
        layers = {
            "attention_norm_NxD": (N, D),
            "query_NxDxQ": (N, D, Q),
            "key_NxDxR": (N, D, R),
            "value_NxDxR": (N, D, R),
            "out_NxQxD": (N, Q, D),
            "mlp_norm_NxD": (N, D),
            "gate_NxDxF": (N, D, F),
            "up_NxDxF": (N, D, F),
            "down_NxFxD": (N, F, D),
        }
        if self.qkv_bias:
            layers |= {"query_bias_NxQ": (N, Q), "key_bias_NxR": (N, R), "value_bias_NxR": (N, R)}
        if self.qk_norm:
            layers |= {"query_norm_NxK": (N, K), "key_norm_NxK": (N, K)}
        ends = {"embed_VxD": (V, D), "final_norm_D": (D,)}
        if not self.tie_embeddings:
            ends["unembed_VxD"] = (V, D)
        return {"ends": ends, "layers": layers}

    def parameters(self) -> int:
        """Count the parameters; a tied embedding counts once."""
        count = 0
        for group in self.shapes().values():
            for shape in group.values():
                size = 1
                for length in shape:
                    size *= length
                count += size
        return count
