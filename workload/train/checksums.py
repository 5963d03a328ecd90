"""Checksums of a checkpoint's arrays, written beside its marker and compared after each restore.

They are computed by the devices that hold the arrays, before a save copies them to the host and after a
restore has placed them, so that a fault of memory, disk, network or file format in between changes them.
A checksum is the sum, modulo 2^32, of the words of an array, each mixed with its position by a bijection
(MurmurHash3's finalizer): any change of a single word is found, any other one with a probability of
1 - 2^-32. A sum doesn't depend on the order of its parts, so that another mesh computes the same.
"""
# mypy: allow-untyped-calls

import hashlib
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from settings_schema import foreign
from settings_schema.foreign import ForeignError

NAME = "checksums.json"
_LAYERS = jax.tree_util.DictKey("layers")  # of stacked parameters: a checksum for each layer
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
_POSITION = 0x9E3779B9  # odd, so that no two positions have the same key

Compute = Callable[[Any], Array]


def compiled(state: Any) -> Compute:
    """Compile the checksums of arrays with the shapes, dtypes and shardings of `state`.

    All workers must call the result together. It returns at once; the value is on every worker.
    """
    sharding = getattr(jax.tree.leaves(state)[0], "sharding", None)
    place = NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else None
    compute: Compute = _program(place).lower(state).compile()
    return compute


@cache
def _program(place: NamedSharding | None) -> Any:
    return jax.jit(_sums, out_shardings=place)


def _sums(state: Any) -> Array:
    return jnp.concatenate(
        [_sum(leaf, _stacked(path, leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]
    )


def _stacked(path: tuple[Any, ...], leaf: Any) -> bool:
    return path[-2:-1] == (_LAYERS,) and leaf.ndim > 1


def _sum(array: Array, by_layer: bool) -> Array:
    array = array.astype(jnp.uint8) if array.dtype == bool else array
    words = jax.lax.bitcast_convert_type(array, _WORDS[array.dtype.itemsize]).astype(jnp.uint32)
    key, stride = jnp.full(array.shape, _POSITION, jnp.uint32), _POSITION
    for axis in reversed(range(array.ndim)):
        key += jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis) * jnp.uint32(stride)
        stride = stride * array.shape[axis] % 2**32
    mixed = words ^ key
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    mixed ^= mixed >> 16
    axes = tuple(range(int(by_layer), array.ndim))
    return jnp.sum(mixed, axis=axes, dtype=jnp.uint32).reshape(-1)


def digests(state: Any) -> dict[str, str]:
    """Return digests of parameters and of the optimizer's state: sha256 over names, dtypes, shapes and sums.

    All workers must call it. The devices read their own parts; no array leaves them.
    """
    named = {}
    for part in ("params", "opt_state"):
        tree = state[part]
        sha, sums = hashlib.sha256(), _by_array(tree, compiled(tree)(tree))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            name = jax.tree_util.keystr(path)
            sha.update(f"{name} {leaf.dtype} {leaf.shape} {' '.join(sums[name])}\n".encode())
        named[f"{part}_sums_sha256"] = sha.hexdigest()
    return named


def dump(step: int, state: Any, sums: Array) -> bytes:
    """Format the checksums of a step for storage."""
    return json.dumps({"step": step, "arrays": _by_array(state, sums)}).encode()


def problem(raw: str, step: int, state: Any, sums: Array) -> str:
    """Compare arrays with stored checksums; return the difference, or an empty string.

    Args:
        raw: content of the stored object.
        step: of the checkpoint.
        state: its arrays or some of them; a shorter first axis of layers selects the first ones.
        sums: checksums of `state`.
    """
    try:
        stored = foreign.parse(raw)
        if (written := foreign.count(stored, "step")) != step:
            raise ForeignError(f"is of step {written}")
        known = foreign.group(stored, "arrays")
    except ForeignError as error:
        return f"{NAME}: {error}"
    wrong = [
        name
        for name, layers in _by_array(state, sums).items()
        if not isinstance(known.get(name), list) or known[name][: len(layers)] != layers
    ]
    others = f" and {len(wrong) - 1} more arrays" if len(wrong) > 1 else ""
    return f"{wrong[0]}{others}: not the numbers that were saved, by {NAME}" if wrong else ""


def _by_array(state: Any, sums: Array) -> dict[str, list[str]]:
    values = [f"{value:08x}" for value in np.asarray(sums).tolist()]
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        count = leaf.shape[0] if _stacked(path, leaf) else 1
        named[jax.tree_util.keystr(path)], values = values[:count], values[count:]
    return named
