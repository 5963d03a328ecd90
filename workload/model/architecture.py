"""Architecture of a model: the sizes and variants that determine parameters and arithmetic."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from settings_schema.rules import above, at_least, between, one_of
from workload.errors import Problem
from workload.settings import ruled


@dataclass(frozen=True)
class RopeScaling:
    """Stretching of rotary frequencies beyond the length of a model's training.

    `llama3` keeps short wavelengths, divides long ones by `factor` and blends between
    (Llama 3.1's `rope_type`); `yarn` ramps over dimensions and scales attention (Peng et al.,
    2023, section 3); `linear` divides every frequency.
    """

    kind: str = ruled("none", one_of("none", "linear", "llama3", "yarn"))  # method
    factor: float = ruled(1.0, above(0))  # factor by which the context is extended
    original_length: int = ruled(8192, at_least(1))  # context's length before scaling, in tokens
    low_frequency_factor: float = ruled(1.0, above(0))  # llama3
    high_frequency_factor: float = ruled(4.0, above(0))  # llama3
    beta_fast: float = ruled(32.0, above(0))  # yarn: no scaling above as many rotations
    beta_slow: float = ruled(1.0, above(0))  # yarn: full scaling below as many rotations


@dataclass(frozen=True)
class Architecture:
    """Decoder: RMSNorm before each block, RoPE, grouped heads, a gated feed-forward block.

    The default has the variants of Llama 3; `FAMILIES` names those of others.
    """

    layers: int = ruled(2, at_least(1), most=10_000)  # number of layers
    d_model: int = ruled(128, at_least(2), most=2**20)  # width of the residual stream
    heads: int = ruled(4, at_least(1), most=2**16)  # query heads
    kv_heads: int = ruled(0, at_least(0), most=2**16)  # key-value heads; 0: as many as query heads
    head_dim: int = ruled(0, at_least(0), most=2**16)  # width of a head; 0: d_model / heads
    d_ff: int = ruled(384, at_least(1), most=2**22)  # width inside the feed-forward block
    vocab_size: int = ruled(0, at_least(0), most=2**24)  # vocabulary; 0: that of the token files
    norm_epsilon: float = ruled(1e-6, between(0, 1))  # epsilon of RMSNorm
    rope_theta: float = ruled(10_000.0, above(0))  # base of the rotary frequencies
    rope_scaling: RopeScaling = RopeScaling()
    # attention window of local layers, in tokens, itself included; 0: no layer is local
    window: int = ruled(0, at_least(0))
    global_every: int = ruled(0, at_least(0))  # n: every n-th layer ignores the window; 0: none does
    local_rope_theta: float = ruled(0.0, at_least(0))  # rope_theta of local layers, unscaled; 0: as global
    # attention scores are divided by the square root of this value; 0: head_dim
    query_pre_attn_scalar: float = ruled(0.0, at_least(0))
    activation: str = ruled("silu", one_of("silu", "gelu_tanh"))  # activation of the feed-forward gate
    qkv_bias: bool = False  # biases in the q, k and v projections
    qk_norm: bool = False  # RMSNorm of queries and keys
    post_norms: bool = False  # a norm also after each block
    zero_centered_norms: bool = False  # norms multiply by 1 + their parameter
    scale_embeddings: bool = False  # multiply embeddings by the square root of d_model
    tie_embeddings: bool = False  # unembed with the embedding matrix

    @property
    def J(self) -> int:  # noqa: N802  the letter of tensor names
        """Key/value heads."""
        return self.kv_heads or self.heads

    @property
    def K(self) -> int:  # noqa: N802
        """Width of a head."""
        return self.head_dim or self.d_model // self.heads

    @property
    def score_scale(self) -> float:
        """Factor of the products of queries and keys."""
        return float((self.query_pre_attn_scalar or self.K) ** -0.5)

    def local(self) -> tuple[bool, ...]:
        """Return True for each layer that attends within the window."""
        every = self.global_every
        return tuple(self.window > 0 and not (every and (n + 1) % every == 0) for n in range(self.layers))

    def keys_per_token(self, length: int) -> float:
        """Return the mean number of keys that a token attends to, summed over layers; of all keys, half."""
        near = min(self.window, length)
        local = sum(self.local())
        return (self.layers - local) * length / 2 + local * (near - near**2 / (2 * length))

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
        if self.post_norms:
            layers |= {"attention_post_norm_NxD": (N, D), "mlp_post_norm_NxD": (N, D)}
        ends = {"embed_VxD": (V, D), "final_norm_D": (D,)}
        if not self.tie_embeddings:
            ends["unembed_VxD"] = (V, D)
        return {"ends": ends, "layers": layers}

    def parameters(self) -> int:
        """Count the parameters; a tied embedding counts once."""
        return sum(math.prod(shape) for group in self.shapes().values() for shape in group.values())


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "gemma3_text": {
        "activation": "gelu_tanh",
        "qk_norm": True,
        "post_norms": True,
        "zero_centered_norms": True,
        "scale_embeddings": True,
    },
}
"""Variants of each family of models, by transformers' `model_type`; others have their default."""
_OF_WINDOWS = {"window", "global_every", "local_rope_theta", "query_pre_attn_scalar"}  # Gemma may have them
_VARIANTS = tuple(sorted(_OF_WINDOWS.union(*FAMILIES.values())))


def _own(arch: Architecture) -> dict[str, Any]:
    """Return an architecture's variants that aren't the default."""
    default = Architecture()
    given = {name: getattr(arch, name) for name in _VARIANTS}
    return {name: value for name, value in given.items() if value != getattr(default, name)}


def family(arch: Architecture) -> str | None:
    """Return the family that has an architecture's variants; None if none has them all."""
    own = _own(arch)
    windows = own.keys() & _OF_WINDOWS
    variants = {name: value for name, value in own.items() if name not in windows}
    nearest = next((name for name, of_family in FAMILIES.items() if of_family == variants), None)
    if nearest == "llama" and windows == {"window"}:
        return "mistral"
    return nearest if not windows or nearest == "gemma3_text" else None


def violations(arch: Architecture, key: Callable[[str], str] = "model.{}".format) -> list[Problem]:
    """Return the broken rules between an architecture's fields.

    Args:
        arch: whose fields obey their own rules.
        key: the user's key of a field.
    """
    problems = []

    def report(field: str, value: object, rule: str, fix: str) -> None:
        problems.append(Problem(key(field), str(value), rule, fix))

    if not arch.head_dim and arch.d_model % arch.heads:
        rule = f"must be a multiple of {key('heads')}, {arch.heads}, unless {key('head_dim')} is set"
        report(
            "d_model", arch.d_model, rule, f"{arch.d_model // arch.heads * arch.heads or arch.heads} would do"
        )
    elif arch.head_dim % 2:
        report("head_dim", arch.head_dim, "must be even: RoPE turns pairs", f"{arch.head_dim + 1}")
    elif arch.K % 2 or not arch.K:
        rule = f"leaves heads of {arch.K}; RoPE turns pairs, so it must be even"
        report("heads", arch.heads, rule, f"{arch.d_model // 2} or a divisor")
    if arch.heads % arch.J:
        rule = f"must divide {key('heads')}, {arch.heads}: each serves equally many query heads"
        report("kv_heads", arch.kv_heads, rule, "a divisor, or 0 for all heads")
    scaling = arch.rope_scaling
    if scaling.kind == "llama3" and scaling.low_frequency_factor >= scaling.high_frequency_factor:
        rule = f"must be less than high_frequency_factor, {scaling.high_frequency_factor:g}"
        value = f"{scaling.low_frequency_factor:g}"
        report("rope_scaling.low_frequency_factor", value, rule, "1 and 4 are Llama 3.1's")
    if scaling.kind == "yarn" and scaling.beta_fast <= scaling.beta_slow:
        rule = f"must be more than beta_slow, {scaling.beta_slow:g}"
        report("rope_scaling.beta_fast", f"{scaling.beta_fast:g}", rule, "32 and 1 are usual")
    if any(arch.local()) and arch.global_every and scaling.kind != "none" and not arch.local_rope_theta:
        rule = f"must be set: {key('rope_scaling.kind')} is for layers without a window"
        report("local_rope_theta", "0", rule, "10000 is Gemma 3's")
    if arch.qk_norm and arch.qkv_bias:
        rule = f"excludes {key('qk_norm')}: no model family has both"
        report("qkv_bias", "true", rule, f"remove it or {key('qk_norm')}")
    elif family(arch) is None:
        own = _own(arch)
        known = "; ".join(f"{name}: {list(fields)}" for name, fields in FAMILIES.items())
        rule = f"no model family has {', '.join(own)} and no other variant"
        first = next(iter(own))
        report(first, own[first], rule, f"the variants of a family ({known})")
    return problems
