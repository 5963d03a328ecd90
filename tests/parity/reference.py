"""Small random models of transformers: their weights, and the values that they compute at every point.

    PYTHON_WITH_TORCH tests/parity/reference.py OUT

Run in an environment of its own (`tools/setup.sh parity`). For every case it writes OUT/CASE/: config.json
and safetensors as `save_pretrained` makes them, and reference.npz with the inputs, each point and the logits.
tests/parity/reference has them as recorded, for `make test`; `make prove` makes them again.
"""

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}

GEMMA = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 12,
    "num_hidden_layers": 3,
    "sliding_window": 5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

# Odd on purpose: 7 query heads to a key head, heads wider than D/H, a vocabulary of no round number.
CASES: dict[str, tuple[str, dict[str, Any], list[int], str]] = {
    # name: (family, config, lengths of the batch's sequences, side that is padded)
    "llama-gqa": (
        "llama",
        {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2},
        [9, 9],
        "",
    ),
    "llama3-rope": (
        "llama",
        {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 4, "rope_parameters": LLAMA3},
        [18],
        "",
    ),
    "llama-linear-tied": (
        "llama",
        {
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_parameters": LINEAR,
            "tie_word_embeddings": True,
        },
        [1],
        "",
    ),
    "llama-wide-heads": (
        "llama",
        {"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24},
        [6, 3, 4],
        "right",
    ),
    "qwen2-7to1": (
        "qwen2",
        {"hidden_size": 56, "num_attention_heads": 7, "num_key_value_heads": 1, "tie_word_embeddings": True},
        [8, 4],
        "left",
    ),
    "qwen2-yarn": (
        "qwen2",
        {
            "hidden_size": 64,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "rope_parameters": YARN,
            "max_position_embeddings": 64,
        },
        [18],
        "",
    ),
    "qwen3": (
        "qwen3",
        {
            "hidden_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "tie_word_embeddings": True,
        },
        [8, 5],
        "right",
    ),
    "mistral": (
        "mistral",
        {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": None},
        [7, 5],
        "right",
    ),
    "mistral-window": (
        "mistral",
        {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 1, "sliding_window": 4},
        [11, 6],
        "left",
    ),
    # Layers with a window and without, which have rotary frequencies of their own.
    "gemma3": (
        "gemma3_text",
        {
            **GEMMA,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": DEFAULT,
                "full_attention": {**LINEAR, "rope_theta": 1e6, "factor": 8.0},
            },
        },
        [13, 6],
        "right",
    ),
    "gemma3-windows-alone": ("gemma3_text", {**GEMMA, "rope_parameters": None}, [9], ""),
}
MODULES = {
    "llama": modeling_llama,
    "mistral": modeling_mistral,
    "qwen2": modeling_qwen2,
    "qwen3": modeling_qwen3,
    "gemma3_text": modeling_gemma3,
}
KINDS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "gemma3_text": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
}


def main(out: Path) -> None:
    for number, (name, (family, settings, lengths, side)) in enumerate(CASES.items()):
        torch.manual_seed(number)
        make_config, make_model = KINDS[family]
        defaults = {
            "num_hidden_layers": 2,
            "intermediate_size": 28,
            "vocab_size": 37,
            "rope_parameters": DEFAULT,
        }
        config = make_config(**{**defaults, "attn_implementation": "eager", **settings})
        model = make_model(config).to(torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # norms and biases too: ones and zeros would hide them
                parameter.add_(torch.randn_like(parameter) * 0.1)
                parameter.copy_(parameter.bfloat16().float())
        folder = out / name
        # bfloat16 holds these weights exactly in half the space; values are computed in float32.
        stored = copy.deepcopy(model).to(torch.bfloat16)
        stored.save_pretrained(folder, max_shard_size="30KB" if number % 2 else "5GB")
        (folder / "generation_config.json").unlink()
        np.savez_compressed(folder / "reference.npz", **run(model, family, lengths, side, number))


def run(model: Any, family: str, lengths: list[int], side: str, seed: int) -> dict[str, Any]:
    """Return inputs, logits, and each point's tensors stacked over the layers."""
    longest = max(lengths)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, model.config.vocab_size, (len(lengths), longest), generator=generator)
    mask = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        mask[row, longest - length :] = 1 if side == "left" else mask[row, longest - length :]
        mask[row, :length] = mask[row, :length] if side == "left" else 1
    seen: dict[str, list[Any]] = {}

    def keep(point: str, value: Any) -> None:
        seen.setdefault(point, []).append(value.detach().float().numpy())

    def hook(point: str, what: str) -> Any:
        def before(_: Any, inputs: Any, named: Any) -> None:
            keep(point, inputs[0] if inputs else named["hidden_states"])

        def after(_: Any, __: Any, output: Any) -> None:
            keep(point, output[0] if isinstance(output, tuple) else output)

        return before if what == "in" else after

    for layer in model.model.layers:
        post_norms = family == "gemma3_text"
        middle = layer.pre_feedforward_layernorm if post_norms else layer.post_attention_layernorm
        for module, point, what in (
            (layer, "resid_pre", "in"),
            (layer.input_layernorm, "attn_in", "out"),
            (layer.self_attn.v_proj, "value", "out"),
            (layer.self_attn.o_proj, "attn_z", "in"),
            (layer.post_attention_layernorm if post_norms else layer.self_attn, "attn_out", "out"),
            (middle, "resid_mid", "in"),
            (middle, "mlp_in", "out"),
            (layer.mlp.gate_proj, "mlp_gate", "out"),
            (layer.mlp.up_proj, "mlp_up", "out"),
            (layer.mlp.down_proj, "mlp_act", "in"),
            (layer.post_feedforward_layernorm if post_norms else layer.mlp, "mlp_out", "out"),
            (layer, "resid_post", "out"),
        ):
            if what == "in":
                module.register_forward_pre_hook(hook(point, "in"), with_kwargs=True)
            else:
                module.register_forward_hook(hook(point, "out"))
    model.model.norm.register_forward_hook(hook("final_norm", "out"))
    module = MODULES[family]
    rotate = module.apply_rotary_pos_emb

    def watched(*arguments: Any, **named: Any) -> Any:
        query, key = rotate(*arguments, **named)
        keep("query", query.transpose(1, 2))
        keep("key", key.transpose(1, 2))
        return query, key

    module.apply_rotary_pos_emb = watched
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False).logits
    module.apply_rotary_pos_emb = rotate
    return {
        "tokens": tokens.numpy(),
        "mask": mask.numpy(),
        "logits": logits.numpy(),
        **{f"point:{point}": np.stack(values) for point, values in seen.items()},
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
