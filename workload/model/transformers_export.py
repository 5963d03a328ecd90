"""Writing of a `config.json` that transformers reads as the same model."""

from typing import Any

from workload.model.architecture import Architecture, RopeScaling, family
from workload.model.generation import Generation
from workload.model.transformers_config import GLOBAL, KINDS, LOCAL, ROPE_KEYS
from workload.model.transformers_families import IN_TRANSFORMERS


def config_json(arch: Architecture, dtype: str, generation: Generation) -> dict[str, Any]:
    """Create a config.json that transformers reads as the same model.

    Args:
        arch: the model.
        dtype: of the weights beside it.
        generation: settings of generation.
    """
    name = family(arch) or "llama"
    scaling = _rope_scaling(arch.rope_scaling)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": arch.rope_theta} | scaling
    content = {
        "architectures": [IN_TRANSFORMERS[name].causal_lm],
        "model_type": name,
        "dtype": dtype,
        "hidden_size": arch.d_model,
        "num_hidden_layers": arch.layers,
        "num_attention_heads": arch.heads,
        "num_key_value_heads": arch.J,
        "head_dim": arch.K,
        "intermediate_size": arch.d_ff,
        "vocab_size": arch.vocab_size,
        "hidden_act": "silu",
        "rms_norm_eps": arch.norm_epsilon,
        **({"max_position_embeddings": generation.longest} if generation.longest else {}),
        "rope_parameters": rope,
        # For transformers before 5.
        "rope_theta": arch.rope_theta,
        "rope_scaling": scaling or None,
        "tie_word_embeddings": arch.tie_embeddings,
        # Null, not absent: transformers would use its family's defaults.
        "bos_token_id": None,
        "eos_token_id": None,
        **generation.ids(),
    }
    if name == "mistral":
        content["sliding_window"] = arch.window
    if name == "gemma3_text":
        del content["hidden_act"]
        local_theta = arch.local_rope_theta or arch.rope_theta
        content |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": arch.query_pre_attn_scalar or arch.K,
            "sliding_window": arch.window
            or 4096,  # without a layer that uses it, transformers needs one, too
            "layer_types": [LOCAL if local else GLOBAL for local in arch.local()],
            "rope_local_base_freq": local_theta,
            "rope_parameters": {LOCAL: {"rope_type": "default", "rope_theta": local_theta}, GLOBAL: rope},
            "pad_token_id": None,
        }
    return content


def _rope_scaling(scaling: RopeScaling) -> dict[str, Any]:
    keys = {"linear": ("factor",), "none": ()}.get(scaling.kind)
    if keys is None:
        keys = tuple(key for key in ROPE_KEYS if key in KINDS[scaling.kind])
    settings = {key: getattr(scaling, ROPE_KEYS[key]) for key in keys}
    return {"rope_type": scaling.kind, **settings} if settings else {}
