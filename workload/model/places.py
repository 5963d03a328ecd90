"""Rows of documents as a layer's attention sees them, with a window or without."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from workload.model import attention as attentions
from workload.model import rope
from workload.model.architecture import Architecture
from workload.model.attention import Attend


@dataclass(frozen=True)
class Place:
    """Rows of documents as a layer's attention sees them.

    Attributes:
        turn: cosine and sine of the positions' angles; see `rope.turns`.
        attend: (q, k, v) -> z.
    """

    turn: tuple[Array, Array]
    attend: Callable[[Array, Array, Array], Array]


Turns = Mapping[bool, tuple[Array, Array]]
"""Angles of the layers with a window (True) and of those without, as far as a model has both."""


def turns(segments_BxL: Array, arch: Architecture) -> Turns:
    """Return the angles of the tokens, whose positions begin anew in each segment."""
    at_BxL = attentions.positions(segments_BxL)
    return {local: rope.turns(at_BxL, arch, local) for local in set(arch.local())}


def place(
    segments_BxL: Array, turns: Turns, arch: Architecture, attend: Attend, local: Array | None
) -> Place:
    """Return a layer's place; `local`, whether it has a window, is None where all layers are alike."""
    scale = {"scale": arch.score_scale} if arch.query_pre_attn_scalar else {}

    def kind(local: bool) -> Callable[[Array, Array, Array], Array]:
        settings: dict[str, Any] = scale | ({"window": arch.window} if local else {})
        return lambda q, k, v: attend(q, k, v, segments_BxL, **settings)

    if local is None:
        ((alike, turn),) = turns.items()
        return Place(turn, kind(alike))
    turn = jax.tree.map(partial(jnp.where, local), turns[True], turns[False])
    return Place(turn, lambda q, k, v: jax.lax.cond(local, kind(True), kind(False), q, k, v))


def mixed(arch: Architecture) -> NDArray[np.bool_] | None:
    """Return the layers with a window; None if all layers are alike."""
    return np.array(arch.local()) if len(set(arch.local())) > 1 else None
