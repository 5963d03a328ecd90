"""Module of the user as functions: from its parameters, a tree of dicts, to sums of losses.

Parameters are the variables of type `nnx.Param`. Everything random in a step is drawn from a key, and what
else the module holds is constant: its arrays are computed where they are used.
"""
# mypy: allow-untyped-calls

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from flax import linen, nnx
from jax import Array
from jax.sharding import PartitionSpec

from settings_schema.parser import nearest, shown
from workload.errors import ConfigError, Problem
from workload.model import attention
from workload.modules import source
from workload.modules.config import ModuleConfig

Params = dict[str, Any]
Path_ = tuple[Any, ...]
_GIVEN = ("rngs", "vocab_size", "dtype")
"""Arguments of a constructor that the trainer gives, where it takes them."""
_TRAINS = {"train": True, "training": True, "deterministic": False}
"""Arguments of a linen module's call that select training."""


@dataclass(frozen=True)
class Inputs:
    """Arguments for a module that don't come from its settings."""

    batch_size: int
    length: int
    vocab_size: int
    dtype: Any
    seed: int


class UserModule:
    """Imported and checked module.

    Attributes:
        params: shapes and dtypes of its parameters.
        annotations: partition of each parameter as the module annotates it, by path; empty if it doesn't.
    """

    def __init__(self, config: ModuleConfig, inputs: Inputs):
        """Import the module, create it and call it, on shapes alone.

        Raises:
            ConfigError: lists why it can't be trained.
        """
        self._config, self._inputs = config, inputs
        self._sources = {str(path) for path in source.files(config.module).values()}
        self._make = self._imported()
        arguments = _parameters(self._make)
        self._takes_any = any(entry.kind is entry.VAR_KEYWORD for entry in arguments.values())
        self._takes = {name for name in _GIVEN if name in arguments}
        self._require_settings(arguments)
        self._linen = isinstance(self._make, type) and issubclass(self._make, linen.Module)
        model = self._tried("its constructor", lambda: nnx.eval_shape(self._construct))
        if not isinstance(model, nnx.Module):
            rule = f"must return a module of flax, not {type(model).__name__}"
            raise self._refusal([self._problem(rule, "name a class that extends flax.nnx.Module")])
        self._require_variables(model)
        state = nnx.state(model, nnx.Param)
        self._paths = [path for path, _ in nnx.to_flat_state(state)]
        self.params = _nested({path: _shape(variable) for path, variable in nnx.to_flat_state(state)})
        specs = nnx.to_flat_state(nnx.get_partition_spec(state))
        self.annotations: dict[tuple[str, ...], PartitionSpec] = {
            _names(path): variable.get_value() for path, variable in specs
        }
        self._require_result()

    @property
    def name(self) -> str:
        """Name in the settings."""
        return self._config.module

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))

    def first_params(self) -> Params:
        """Draw the initial parameters from the seed; to be compiled."""
        state = nnx.state(self._construct(), nnx.Param)
        return _nested({path: variable.get_value() for path, variable in nnx.to_flat_state(state)})

    def sums(
        self, params: Params, batch: Mapping[str, Array], key: Array, trains: bool
    ) -> tuple[Array, Array]:
        """Return the sum of the losses of a batch and the number of its counted targets.

        Args:
            params: values of `params`.
            batch: `tokens_BxL1` and `segments_BxL1`.
            key: source of everything random.
            trains: False for an evaluation, without dropout.
        """
        model = self._with(params, key)
        (model.train if trains else model.eval)()
        examples = _examples(batch)
        if self._has_loss(model):
            total, count = model.loss(examples)
            return jnp.asarray(total, jnp.float32), jnp.asarray(count, jnp.float32)
        logits_BxLxV = self._call(model, examples, trains).astype(jnp.float32)
        losses_BxL = optax.softmax_cross_entropy_with_integer_labels(logits_BxLxV, examples["targets"])
        return jnp.sum(losses_BxL * examples["counted"]), jnp.sum(examples["counted"])

    def _imported(self) -> Callable[..., Any]:
        name, _, attribute = self._config.module.partition(":")
        if (folder := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, folder)  # as for a script
        module = self._tried("its import", lambda: importlib.import_module(name))
        made = getattr(module, attribute, None)
        if callable(made):
            return made  # type: ignore[no-any-return]
        near = nearest(attribute, [entry for entry in vars(module) if callable(getattr(module, entry))])
        file = getattr(module, "__file__", None) or name  # a folder without __init__.py has none
        fix = f"did you mean {name}:{near}?" if near else f"name a class of {file}"
        raise self._refusal([self._problem(f"{name} has no class {attribute}", fix)])

    def _require_settings(self, arguments: Mapping[str, inspect.Parameter]) -> None:
        """Raise for settings that the constructor doesn't take, and for missing ones."""
        problems, given = [], self._config.settings
        for key, value in given.items():
            if key not in arguments and not self._takes_any:
                near = nearest(key, arguments)
                known = ", ".join(name for name in arguments if name != "rngs") or "nothing"
                fix = f"did you mean {near}?" if near else f"remove it; {self._config.module} takes {known}"
                rule = "the module's constructor doesn't take it"
                problems.append(Problem(f"model.settings.{key}", shown(value, texts=False), rule, fix))
        for key, entry in arguments.items():
            variable = entry.kind in (entry.VAR_KEYWORD, entry.VAR_POSITIONAL)
            if entry.default is entry.empty and not variable and key not in (*given, *_GIVEN):
                rule = f"required by the constructor of {self._config.module}"
                problems.append(Problem(f"model.settings.{key}", "nothing", rule, f"add {key} = …"))
        if "dtype" not in {*self._takes, *given} and self._inputs.dtype != jnp.float32:
            rule = "the module's constructor takes no dtype, so that its own dtypes apply"
            name = jnp.dtype(self._inputs.dtype).name
            problems.append(Problem("compute.dtype", name, rule, "let it take dtype, or set float32"))
        if problems:
            raise self._refusal(problems)

    def _construct(self) -> Any:
        inputs, given = self._inputs, dict(self._config.settings)
        for name in ("vocab_size", "dtype"):
            if name in self._takes:
                given.setdefault(name, getattr(inputs, name))
        with nnx.use_eager_sharding(False):  # the step places the arrays
            if not self._linen:
                return self._make(
                    **given, **({"rngs": nnx.Rngs(inputs.seed)} if "rngs" in self._takes else {})
                )
            rngs = nnx.Rngs(default=inputs.seed, params=inputs.seed, dropout=inputs.seed)
            model = nnx.bridge.ToNNX(self._make(**given), rngs=rngs)
            tokens = jnp.zeros((1, inputs.length + 1), jnp.int32)
            examples = _examples({"tokens_BxL1": tokens, "segments_BxL1": tokens})
            nnx.bridge.lazy_init(model, *_arguments(examples), **self._modes(trains=False))
            nnx.pop(model, nnx.Intermediate)
            return model

    def _with(self, params: Params, key: Array) -> Any:
        """Return the module with these parameters, its random streams begun anew from `key`."""
        model = self._construct()
        by_name = {_names(path): path for path in self._paths}
        state = nnx.state(model, nnx.Param)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            _at(state, by_name[tuple(part.key for part in path)]).set_value(leaf)
        streams = nnx.state(model, nnx.RngState)
        for number, (_, variable) in enumerate(nnx.to_flat_state(streams)):
            shape = variable.get_value().shape
            if isinstance(variable, nnx.RngKey):
                drawn = jax.random.fold_in(key, number)
                variable.set_value(jax.random.split(drawn, shape) if shape else drawn)
            else:
                variable.set_value(jnp.zeros(shape, jnp.uint32))
        nnx.update(model, state, streams)
        return model

    def _has_loss(self, model: Any) -> bool:
        return not self._linen and hasattr(model, "loss")

    def _call(self, model: Any, examples: Mapping[str, Array], trains: bool) -> Any:
        return model(*_arguments(examples), **self._modes(trains))

    def _modes(self, trains: bool) -> dict[str, bool]:
        """Return the arguments that switch a linen module between training and evaluation."""
        if not self._linen:
            return {}
        taken = inspect.signature(self._make.__call__).parameters  # type: ignore[operator]
        return {name: value is trains for name, value in _TRAINS.items() if name in taken}

    def _require_variables(self, model: Any) -> None:
        """Raise for variables that change otherwise than by gradients, and for a lack of parameters."""
        params, _, others = nnx.split_state(nnx.state(model), nnx.Param, nnx.RngState, ...)
        problems: list[Problem] = []
        kinds: dict[str, list[str]] = {}
        for path, variable in nnx.to_flat_state(others):
            if isinstance(variable, nnx.Variable) and type(variable) is not nnx.Variable:
                kinds.setdefault(type(variable).__name__, []).append(".".join(_names(path)))
        for kind, names in kinds.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            rule = f"holds {kind} ({names[0]}{more}), which changes beside the gradient; checkpoints lack it"
            fix = "e.g. nnx.LayerNorm in place of nnx.BatchNorm; decode=False without a cache"
            problems.append(self._problem(rule, fix))
        if not nnx.to_flat_state(params):
            problems.append(
                self._problem("holds no parameters (nnx.Param)", "create them in its constructor")
            )
        if problems:
            raise self._refusal(problems)

    def _require_result(self) -> None:
        """Raise unless the module returns logits, or its loss two numbers, and leaves its variables alone."""
        B, L = self._inputs.batch_size, self._inputs.length
        rows = jax.ShapeDtypeStruct((B, L + 1), jnp.int32)
        changed: list[str] = []

        def run(params: Params, tokens: Array, segments: Array) -> Any:
            model = self._with(params, jax.random.key(0))
            model.train()
            before = _values(model)
            examples = _examples({"tokens_BxL1": tokens, "segments_BxL1": segments})
            has_loss.append(self._has_loss(model))
            result = model.loss(examples) if has_loss[0] else self._call(model, examples, trains=True)
            after = _values(model)
            changed.extend(".".join(path) for path in before if after.get(path) is not before[path])
            return result

        has_loss: list[bool] = []
        result = self._tried("a call", lambda: jax.eval_shape(run, self.params, rows, rows))
        problems = []
        if changed:
            rule = f"its call changes {changed[0]}, which checkpoints lack"
            problems.append(self._problem(rule, "let only gradients change it"))
        described = jax.tree.map(lambda leaf: f"{leaf.dtype.name}{list(leaf.shape)}", result)
        if has_loss[0]:
            pair = isinstance(result, tuple) and len(result) == 2
            if not pair or any(getattr(part, "shape", None) != () for part in result):
                rule = f"loss(batch) must return two numbers, sum and count, not {described}"
                problems.append(self._problem(rule, "sum the losses, and count their targets"))
        elif not isinstance(result, jax.ShapeDtypeStruct) or (
            result.shape[:2] != (B, L) or len(result.shape) != 3 or result.shape[2] < self._inputs.vocab_size
        ):
            rule = f"must return logits [{B}, {L}, {self._inputs.vocab_size} or more], not {described}"
            problems.append(self._problem(rule, "see docs/guides/flax.md; or give it a method loss(batch)"))
        if problems:
            raise self._refusal(problems)

    def _tried(self, action: str, call: Callable[[], Any]) -> Any:
        """Return the result of the user's code; its exception becomes a ConfigError with file and line."""
        try:
            return call()
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            known = [frame for frame in frames if frame.filename in self._sources]
            place = f" at {Path(known[-1].filename).name}:{known[-1].lineno}" if known else ""
            text = (str(error).strip() or "no message").splitlines()[0]
            fix = "mend it; see docs/guides/flax.md"
            if isinstance(error, ModuleNotFoundError) and not self._sources:
                fix = "start in the folder that holds it, or install it; `tpu run` sends a folder"
            rule = f"{action} raises {type(error).__name__}{place}: {text}"
            raise self._refusal([self._problem(rule, fix)]) from error

    def _problem(self, rule: str, fix: str) -> Problem:
        return Problem("model.module", self._config.module, rule, fix)

    def _refusal(self, problems: list[Problem]) -> ConfigError:
        return ConfigError("config", problems)


def _examples(batch: Mapping[str, Array]) -> dict[str, Array]:
    """Return inputs and targets; a target counts if its document is that of the token before it."""
    segments, after = batch["segments_BxL1"][:, :-1], batch["segments_BxL1"][:, 1:]
    return {
        "tokens": batch["tokens_BxL1"][:, :-1],
        "segments": segments,
        "positions": attention.positions(segments),
        "targets": batch["tokens_BxL1"][:, 1:],
        "counted": (segments == after).astype(jnp.float32),
    }


def _arguments(examples: Mapping[str, Array]) -> tuple[Array, ...]:
    return examples["tokens"], examples["segments"], examples["positions"]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of a function, or of a class's constructor, by name."""
    try:
        if not isinstance(function, type):
            return inspect.signature(function).parameters
        parameters = dict(inspect.signature(function.__init__).parameters)  # type: ignore[misc]
    except (TypeError, ValueError):
        return {}
    for name in ("self", *(("parent", "name") if issubclass(function, linen.Module) else ())):
        parameters.pop(name, None)
    return parameters


def _names(path: Path_) -> tuple[str, ...]:
    """Return a path as texts: names of a checkpoint's folders have no numbers."""
    return tuple(map(str, path))


def _nested(flat: Mapping[Path_, Any]) -> Params:
    tree: Params = {}
    for path, value in flat.items():
        *parents, name = _names(path)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def _at(state: Any, path: Path_) -> Any:
    for part in path:
        state = state[part]
    return state


def _shape(variable: Any) -> jax.ShapeDtypeStruct:
    value = variable.get_value()
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _values(model: Any) -> dict[tuple[str, ...], Any]:
    """Return the arrays of a module's variables by path, without random streams and intermediates."""
    _, _, state = nnx.split_state(nnx.state(model), nnx.RngState, nnx.Intermediate, ...)
    return {
        _names(path): leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
        for path, leaf in nnx.to_flat_state(state)
    }
