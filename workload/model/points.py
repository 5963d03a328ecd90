"""Named points of a forward pass, for remat, offload and capture.

At a point the decoder passes a tensor to its tap. In training the tap names the tensor for
`jax.checkpoint`, which compiles to nothing (`remat.py`); in extraction it keeps the tensor.
"""

from collections.abc import Sequence

# In the order of the computation, one set a layer.
LAYER_POINTS = {
    "resid_pre": "BxLxD",  # the residual stream before the layer
    "attn_in": "BxLxD",  # its norm
    "query": "BxLxHxK",  # after bias, norm and rotation
    "key": "BxLxJxK",
    "value": "BxLxJxK",
    "attn_z": "BxLxHxK",  # each head's sum of values, before the output matrix
    "attn_out": "BxLxD",  # attention's addition to the stream
    "resid_mid": "BxLxD",  # the stream between attention and MLP
    "mlp_in": "BxLxD",  # its norm
    "mlp_gate": "BxLxF",  # before its silu
    "mlp_up": "BxLxF",
    "mlp_act": "BxLxF",  # silu(gate) * up, before the down matrix
    "mlp_out": "BxLxD",  # the MLP's addition
    "resid_post": "BxLxD",  # the stream after the layer, before any final norm
}
END_POINTS = {"final_norm": "BxLxD"}  # after the last layer, normed: input of the unembedding
POINTS = LAYER_POINTS | END_POINTS

# Names elsewhere, of layer N: TransformerLens's hook below `blocks.N`, the module below transformers'
# `model.layers.N`. "* w": before the norm's scale. Transformers' last hidden state is normed.
ELSEWHERE = {
    "resid_pre": ("hook_resid_pre", "hidden_states[N]"),
    "attn_in": ("ln1.hook_normalized * w", "output of input_layernorm"),
    "query": ("attn.hook_rot_q", ""),
    "key": ("attn.hook_rot_k", ""),
    "value": ("attn.hook_v", "output of self_attn.v_proj"),
    "attn_z": ("attn.hook_z", "input of self_attn.o_proj"),
    "attn_out": ("hook_attn_out", "output of self_attn"),
    "resid_mid": ("hook_resid_mid", "input of post_attention_layernorm"),
    "mlp_in": ("ln2.hook_normalized * w", "output of post_attention_layernorm"),
    "mlp_gate": ("mlp.hook_pre", "output of mlp.gate_proj"),
    "mlp_up": ("mlp.hook_pre_linear", "output of mlp.up_proj"),
    "mlp_act": ("mlp.hook_post", "input of mlp.down_proj"),
    "mlp_out": ("hook_mlp_out", "output of mlp"),
    "resid_post": ("hook_resid_post", "output of the layer"),
    "final_norm": ("ln_final.hook_normalized * w", "output of model.norm"),
}


GATHERED = "gathered"  # a gathered parameter; gathered again for the backward pass, unless kept


REMAT_WORDS = ("none", "full", "dots")


def remat_problem(words: Sequence[str]) -> str:
    """Return the problem of a `compute.remat` list; empty if it is valid."""
    if len(words) == 1 and words[0] in REMAT_WORDS:
        return ""
    for word in words:
        verb, _, point = word.partition(":")
        if verb not in ("save", "offload") or point not in LAYER_POINTS:
            known = ", ".join(LAYER_POINTS)
            return (
                f"{word!r} is none of {', '.join(REMAT_WORDS)} (alone), save:POINT, offload:POINT ({known})"
            )
    return "" if words else "is empty; set none, full, dots, or points to save"
