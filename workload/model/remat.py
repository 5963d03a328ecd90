"""Rematerialization: values that the backward pass keeps or recomputes, by points."""
# mypy: allow-untyped-calls

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from workload.model.points import GATHERED

Tap = Callable[[str, Array], Array]


def named(point: str, value: Array) -> Array:
    """Name a value for remat policies."""
    result: Array = checkpoint_name(value, point)
    return result


def training_tap(words: Sequence[str], named_already: Container[str] = ()) -> Tap:
    """Return a tap that names the points in some remat words, and no others.

    An unused name isn't free: a policy that keeps all values would keep it twice, before and after naming.

    Args:
        words: see `remat_layer`.
        named_already: points that the attention's kernel names itself, in its own layout.
    """
    mentioned = {word.partition(":")[2] for word in words} | {GATHERED}
    to_name = {point for point in mentioned if point not in named_already}
    return lambda point, value: named(point, value) if point in to_name else value


def remat_layer(
    layer: Callable[..., Any], words: Sequence[str], keep_gathered: bool = False
) -> Callable[..., Any]:
    """Wrap a layer so that its backward pass keeps the values in `words` and recomputes the rest.

    Args:
        layer: a function of arrays.
        words: `none` keeps all; `full` only the layer's input; `dots` every matrix product;
            `save:POINT` keeps a point on the chip, `offload:POINT` in the host's memory.
        keep_gathered: also keep gathered parameters; else they are gathered again.
    """
    policies = jax.checkpoint_policies
    if list(words) == ["none"]:
        policy = policies.everything_saveable if keep_gathered else _all_but_gathered
    elif list(words) == ["dots"]:
        policy = policies.dots_with_no_batch_dims_saveable
        if keep_gathered:
            gathered = policies.save_only_these_names(GATHERED)
            policy = policies.save_from_both_policies(policy, gathered)
    else:
        stored: Mapping[str, list[str]] = {"save": [GATHERED] if keep_gathered else [], "offload": []}
        for word in words:
            verb, _, point = word.partition(":")
            if point:  # `full` names none
                stored[verb].append(point)
        policy = policies.save_and_offload_only_these_names(
            names_which_can_be_saved=stored["save"],
            names_which_can_be_offloaded=stored["offload"],
            offload_src="device",
            offload_dst="pinned_host",
        )
    return jax.checkpoint(layer, policy=policy)


def _all_but_gathered(primitive: Any, *_: Any, **settings: Any) -> bool:
    """Policy that keeps all but gathered parameters: both the collective's result and its named copy."""
    return primitive.name != "all_gather" and settings.get("name") != GATHERED
