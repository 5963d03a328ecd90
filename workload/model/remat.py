"""What the backward pass keeps and what it computes again, by the names of points."""
# mypy: allow-untyped-calls

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from workload.model.points import GATHERED

Tap = Callable[[str, Array], Array]


def named(point: str, value: Array) -> Array:
    """The value itself, under a name that a remat policy can refer to."""
    result: Array = checkpoint_name(value, point)
    return result


def training_tap(words: Sequence[str], named_already: Container[str] = ()) -> Tap:
    """The tap for some remat words: names what they speak of, and leaves the rest alone.

    Args:
        words: see `remat_layer`.
        named_already: points that the attention's kernel names itself, in a layout of its own.

    A name that nothing refers to isn't free under a policy that keeps all it can: the value
    would be kept twice, before and after it was named.
    """
    spoken_of = {word.partition(":")[2] for word in words} | {GATHERED}
    to_name = {point for point in spoken_of if point not in named_already}
    return lambda point, value: named(point, value) if point in to_name else value


def remat_layer(layer: Callable[..., Any], words: Sequence[str]) -> Callable[..., Any]:
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
