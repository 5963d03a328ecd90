"""Families of models as transformers configures them: defaults, and what the decoder supports.

Their variants are in `architecture.FAMILIES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """Family of models in transformers.

    Attributes:
        causal_lm: class of its language models.
        defaults: of settings that are absent.
        only: further settings, with the one value that the decoder supports, also where they are absent.
    """

    causal_lm: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)


_SILU = {"hidden_act": "silu"}
_NO_WINDOW = _SILU | {"use_sliding_window": False}
IN_TRANSFORMERS = {
    "llama": Family("LlamaForCausalLM", only=_SILU | {"mlp_bias": False}),
    "mistral": Family("MistralForCausalLM", {"num_key_value_heads": 8, "sliding_window": 4096}, _SILU),
    "qwen2": Family("Qwen2ForCausalLM", {"num_key_value_heads": 32}, _NO_WINDOW),
    "qwen3": Family("Qwen3ForCausalLM", {"num_key_value_heads": 32, "head_dim": 128}, _NO_WINDOW),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        {
            "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096, "query_pre_attn_scalar": 256,
            "tie_word_embeddings": True,
        },
        {
            "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": None,
            "attn_logit_softcapping": None, "use_bidirectional_attention": False,
        },
    ),
}  # fmt: skip
