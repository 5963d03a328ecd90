"""Optimizers of optax by name: lookup, the options that a file can give, and a trial on small shapes."""
# mypy: allow-untyped-calls

import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from optax import contrib

from settings_schema.parser import NOUNS, choice, nearest, shown
from workload.errors import Problem
from workload.train.optimizer_config import DTYPES, OptimizerConfig

RATE = "learning_rate"
ADAMW = {
    "b1": "beta1",
    "b2": "beta2",
    "eps": "epsilon",
    "mu_dtype": "moment_dtype",
    "weight_decay": "weight_decay",
}
"""Settings of their own for arguments of AdamW."""
_MASKS = ("mask", "weight_decay_mask")
_MATRICES = "muon_weight_dimension_numbers"
_DTYPE = "dtype"  # in names of arguments
_TRIAL = {"layers": {"up_NxDxF": (2, 4, 8), "norm_NxD": (2, 4)}, "embed_VxD": (8, 4), "final_norm_D": (4,)}
_KEPT = ("float32", "bfloat16", "int32", "uint32", "bool")  # dtypes of a state in checkpoints

Factory = Callable[..., optax.GradientTransformation]


def factory(name: str) -> Factory | None:
    """Return the function of optax or optax.contrib that makes the optimizer `name`."""
    for module in (optax, contrib):
        made: Any = vars(module).get(name)  # without deprecated ones
        if inspect.isfunction(made) and RATE in _arguments(made) and not name.startswith(("_", "scale_by_")):
            known: Factory = made
            return known
    return None


def create(
    settings: OptimizerConfig, rate: Any, decayed: Callable[[Any], Any]
) -> optax.GradientTransformation:
    """Create the optimizer that the settings name.

    Args:
        settings: checked by `problems`.
        rate: schedule of the learning rate.
        decayed: from a tree of parameters to the weight decay's mask.
    """
    made = factory(settings.name)
    assert made is not None
    known = _arguments(made)
    given = {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings.options.items()
    }
    if settings.name == "adamw":
        given |= {argument: getattr(settings, field) for argument, field in ADAMW.items()}
    given |= {name: decayed for name in _MASKS if name in known}
    if _MATRICES in known:
        given[_MATRICES] = _matrices
    return made(rate, **given)


def _matrices(params: Any) -> Any:
    """Return Muon's axes: of the layers' matrices, stacked or not; None for arrays that Adam updates."""

    def axes(path: tuple[Any, ...], leaf: Any) -> Any:
        name = str(getattr(path[-1], "key", path[-1]))
        stacked = path[-2:-1] == (jax.tree_util.DictKey("layers"),)
        if leaf.ndim != 2 + stacked or "embed" in name:
            return None
        return contrib.MuonDimensionNumbers(reduction_axis=leaf.ndim - 2, output_axis=leaf.ndim - 1)

    return jax.tree_util.tree_map_with_path(axes, params)


def _arguments(made: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(made, eval_str=True).parameters
    except NameError:
        return inspect.signature(made).parameters


def problems(settings: OptimizerConfig) -> list[Problem]:
    """Return violations: a name that is no optimizer's, options that it doesn't take, a failed trial."""
    made = factory(settings.name)
    if made is None:
        return [_unknown(settings.name)]
    known, violations = _arguments(made), []
    free = {key: item for key, item in known.items() if _kind(key, item) is not None}
    own = {RATE: RATE, **(ADAMW if settings.name == "adamw" else {})}
    for key, value in settings.options.items():
        path = f"optimizer.options.{key}"
        if key in own:
            fix = f"set optimizer.{own[key]} instead"
            violations.append(Problem(path, shown(value, False), "has a setting of its own", fix))
        elif key in free:
            violations += _of_value(path, key, free[key], value)
        elif key in known:
            rule = "isn't a number, a truth value or a text: a file can't set it"
            violations.append(Problem(path, shown(value, False), rule, "remove it"))
        else:
            near = nearest(key, free)
            listed = textwrap.shorten(
                f"remove it; {settings.name} takes {', '.join(free) or 'none'}", 160, placeholder=" …"
            )
            fix = f"did you mean optimizer.options.{near}?" if near else listed
            violations.append(Problem(path, shown(value, False), f"is no option of {settings.name}", fix))
    violations += [
        Problem(f"optimizer.options.{key}", "(not set)", f"is required by {settings.name}", f"add {key} = …")
        for key, item in free.items()
        if item.default is item.empty and key not in settings.options
    ]
    if settings.name != "adamw":
        violations += _of_adamw(settings, free)
    return violations or _trial(settings)


def names() -> list[str]:
    """Return all names that `factory` knows."""
    return [key for module in (optax, contrib) for key in vars(module) if factory(key)]


def _unknown(name: str) -> Problem:
    exists = any(name in vars(module) for module in (optax, contrib))
    rule = f"must be an optimizer of optax: a function that takes {RATE}"
    fix = choice("" if exists else name, names())
    return Problem("optimizer.name", shown(name, False), rule, fix)


def _of_adamw(settings: OptimizerConfig, free: Mapping[str, Any]) -> list[Problem]:
    """Return settings of AdamW that another optimizer would ignore."""
    default = OptimizerConfig()
    return [
        Problem(
            f"optimizer.{field}",
            shown(value, False),
            f"is AdamW's; {settings.name} has optax's defaults",
            f"remove it, and set optimizer.options.{argument}" if argument in free else "remove it",
        )
        for argument, field in ADAMW.items()
        if (value := getattr(settings, field)) != getattr(default, field)
    ]


def _kind(name: str, item: inspect.Parameter) -> Any:
    """Return the type of an argument as a file can give it; None if it can't."""
    accepted = get_args(item.annotation) or (item.annotation,)
    if name == RATE or name in (*_MASKS, _MATRICES):
        return None
    if _DTYPE in name:
        return _DTYPE
    if get_origin(item.annotation) is Literal:
        return accepted
    if isinstance(item.default, tuple) and all(type(part) in (int, float) for part in item.default):
        return tuple
    if item.annotation is bool or isinstance(item.default, bool):
        return bool
    return next((kind for kind in (float, int, str) if kind in accepted), None)


def _of_value(path: str, name: str, item: inspect.Parameter, value: Any) -> list[Problem]:
    """Return the problem of an option's value."""
    kind, default = _kind(name, item), item.default
    numbers = [
        type(part) in (int, float) and math.isfinite(part)
        for part in (value if isinstance(value, list) else [value])
    ]
    if kind == _DTYPE:
        rule, right = f"one of {', '.join(DTYPES)}", value in DTYPES
    elif isinstance(kind, tuple):
        rule, right = f"one of {', '.join(map(str, kind))}", value in kind
    elif kind is tuple:
        rule = f"a list of {len(default)} numbers"
        right = isinstance(value, list) and len(value) == len(default) and all(numbers)
    elif kind is float:
        rule, right = "a finite number", all(numbers) and not isinstance(value, list)
    else:
        rule, right = NOUNS[kind], type(value) is kind
    if right:
        return []
    fix = "write such a value" if default in (None, item.empty) else f"optax's default is {default}"
    return [Problem(path, shown(value, False), f"must be {rule}", fix)]


def _trial(settings: OptimizerConfig) -> list[Problem]:
    """Return the problem of an update of small arrays, on shapes alone."""
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        _TRIAL,
        is_leaf=lambda node: isinstance(node, tuple),
    )
    path, value = "optimizer.name", shown(settings.name, False)
    try:
        made = create(settings, lambda _: 0.1, lambda tree: jax.tree.map(lambda _: True, tree))
        state = jax.eval_shape(made.init, params)
        updates, after = jax.eval_shape(made.update, params, state, params)
    except Exception as error:  # optax raises any type
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        rule = f"can't update parameters from their gradients and a schedule alone: {line}"
        return [
            Problem(path, value, rule, "correct optimizer.options, or name another optimizer, e.g. adafactor")
        ]
    shapes, expected = (
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
        for tree in ((updates, after), (params, state))
    )
    kept = all(str(leaf.dtype) in _KEPT for leaf in jax.tree.leaves(state))
    elsewhere = any(type(node).__name__ == "ScheduleFreeState" for node in nodes(state))
    rule = (
        "evaluates other parameters than it updates"
        if elsewhere
        else "has a state that a checkpoint can't hold"
        if not kept or shapes != expected
        else ""
    )
    return [Problem(path, value, rule, "name another optimizer, e.g. adafactor")] if rule else []


def nodes(state: Any) -> list[Any]:
    """Return all named tuples within a state."""
    if not isinstance(state, tuple | list | dict):
        return []
    inner = state.values() if isinstance(state, dict) else state
    own = [state] if hasattr(state, "_fields") else []
    return [*own, *(node for part in inner for node in nodes(part))]
