"""The named points of a forward pass: one list for remat, offload, capture and tests.

A point is a place where the decoder hands a tensor to its tap. In training the tap names the
tensor for `jax.checkpoint`, which compiles to nothing; in extraction it keeps the tensor.
"""

# mypy: allow-untyped-calls

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

Tap = Callable[[str, Array], Array]

# In the order of the computation, one set a layer.
LAYER_POINTS = {
    "resid_pre": "BxLxD",  # the residual stream as the layer finds it
    "attn_in": "BxLxD",  # its norm
    "query": "BxLxHxK",  # after bias, norm and rotation
    "key": "BxLxJxK",
    "value": "BxLxJxK",
    "attn_z": "BxLxHxK",  # each head's mix of values, before the output matrix
    "attn_out": "BxLxD",  # what attention adds to the stream
    "resid_mid": "BxLxD",  # the stream between attention and MLP
    "mlp_in": "BxLxD",  # its norm
    "mlp_gate": "BxLxF",  # before its silu
    "mlp_up": "BxLxF",
    "mlp_act": "BxLxF",  # silu(gate) * up, before the down matrix
    "mlp_out": "BxLxD",  # what the MLP adds
    "resid_post": "BxLxD",  # the stream as the next layer finds it, before any final norm
}
END_POINTS = {"final_norm": "BxLxD"}  # after the last layer, normed: what the unembedding reads
POINTS = LAYER_POINTS | END_POINTS


GATHERED = "gathered"  # a parameter made whole, which is gathered again rather than kept


def named(point: str, value: Array) -> Array:
    """The value itself, under a name that a remat policy can refer to."""
    result: Array = checkpoint_name(value, point)
    return result


def training_tap(words: Sequence[str], named_already: Container[str] = ()) -> Tap:
    """The tap for some remat words: names what they speak of, and leaves the rest alone.

    Args:
        words: see `remat`.
        named_already: points that the attention's kernel names itself, in a layout of its own.

    A name that nothing refers to isn't free under a policy that keeps all it can: the value
    would be kept twice, before and after it was named.
    """
    spoken_of = {word.partition(":")[2] for word in words} | {GATHERED}
    to_name = {point for point in spoken_of if point not in named_already}
    return lambda point, value: named(point, value) if point in to_name else value


REMAT_WORDS = ("none", "full", "dots")


def remat_problem(words: Sequence[str]) -> str:
    """What is wrong with a `compute.remat` list; empty if nothing is."""
    if len(words) == 1 and words[0] in REMAT_WORDS:
        return ""
    for word in words:
        verb, _, point = word.partition(":")
        if verb not in ("save", "offload") or point not in LAYER_POINTS:
            known = ", ".join(LAYER_POINTS)
            return (
                f"{word!r} is none of {', '.join(REMAT_WORDS)} (alone), save:POINT, offload:POINT ({known})"
            )
    return "" if words else "is empty; say none, full, dots, or what to save"


def remat(layer: Callable[..., Any], words: Sequence[str]) -> Callable[..., Any]:
    """Wraps a layer so that its backward pass keeps what the words say and recomputes the rest.

    Args:
        layer: a function of arrays.
        words: `none` keeps all; `full` only the layer's input; `dots` every matrix product;
            `save:POINT` keeps a point on the chip, `offload:POINT` in the host's memory.
    """
    policies = jax.checkpoint_policies
    if list(words) == ["none"]:  # but for parameters, which are gathered again
        policy = policies.save_anything_except_these_names(GATHERED)
    elif list(words) == ["full"]:
        policy = policies.nothing_saveable
    elif list(words) == ["dots"]:
        policy = policies.dots_with_no_batch_dims_saveable
    else:
        kept: Mapping[str, list[str]] = {"save": [], "offload": []}
        for word in words:
            verb, _, point = word.partition(":")
            kept[verb].append(point)
        policy = policies.save_and_offload_only_these_names(
            names_which_can_be_saved=kept["save"],
            names_which_can_be_offloaded=kept["offload"],
            offload_src="device",
            offload_dst="pinned_host",
        )
    return jax.checkpoint(layer, policy=policy)
