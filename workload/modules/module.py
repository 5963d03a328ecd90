"""Module of the user as functions: from its parameters, a tree of dicts, to sums of losses.

Parameters are the variables of type `nnx.Param`. Everything random in a step is drawn from a key, and what
else the module holds is constant: its arrays are computed where they are used.
"""
# mypy: allow-untyped-calls

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from flax import nnx
from jax import Array
from jax.sharding import PartitionSpec

from workload.errors import Problem
from workload.model import attention, loss
from workload.model.adapters import LoraConfig
from workload.modules.config import ModuleConfig
from workload.modules.constructor import Constructor, refusal

Params = dict[str, Any]
Path_ = tuple[Any, ...]
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
        params: shapes and dtypes of its trained parameters: all, or the adapters alone.
        frozen: those of the parameters beside adapters.
        annotations: partition of each parameter as the module annotates it, by path; empty if it doesn't.
    """

    def __init__(self, config: ModuleConfig, inputs: Inputs, lora: LoraConfig):
        """Import the module, create it and call it, on shapes alone.

        Raises:
            ConfigError: lists why it can't be trained.
        """
        self._config, self._inputs, self._lora = config, inputs, lora
        self._adapted: list[str] | None = None  # layers; None: none has an adapter
        self._trained: Any = nnx.LoRAParam if lora.rank else nnx.Param
        self._made = Constructor(config, inputs.dtype)
        model = self._made.tried("its constructor", lambda: nnx.eval_shape(self._construct))
        if not isinstance(model, nnx.Module):
            rule = f"must return a module of flax, not {type(model).__name__}"
            raise refusal(self._made.problem(rule, "name a class that extends flax.nnx.Module"))
        self._require_variables(model)
        if lora.rank:
            self._adapted = self._layers()
            model = nnx.eval_shape(self._construct)
        state = nnx.state(model, nnx.Param)
        self._paths = [path for path, _ in nnx.to_flat_state(state)]
        trained, frozen = (nnx.to_flat_state(part) for part in nnx.split_state(state, self._trained, ...))
        self.params = _nested({path: _shape(variable) for path, variable in trained})
        self.frozen = _nested({path: _shape(variable) for path, variable in frozen})
        specs = nnx.to_flat_state(nnx.get_partition_spec(state))
        self.annotations: dict[tuple[str, ...], PartitionSpec] = {
            _names(path): variable.get_value() for path, variable in specs
        }
        self._require_floating()
        self._require_result()

    @property
    def name(self) -> str:
        """Name in the settings."""
        return self._config.module

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves((self.params, self.frozen)))

    def first_params(self) -> Params:
        """Draw the initial values of the trained parameters from the seed; to be compiled."""
        state = nnx.state(self._construct(), self._trained)
        return _nested({path: variable.get_value() for path, variable in nnx.to_flat_state(state)})

    def sums(
        self, frozen: Params, params: Params, batch: Mapping[str, Array], key: Array, trains: bool
    ) -> tuple[Array, Array]:
        """Return the sum of the losses of a batch and the number of its counted targets.

        Args:
            frozen: values of `frozen`.
            params: values of `params`.
            batch: `tokens_BxL1`, `segments_BxL1` and, for the loss on answers, `counted_BxL1`.
            key: source of everything random.
            trains: False for an evaluation, without dropout.
        """
        model = self._with(frozen, params, key)
        (model.train if trains else model.eval)()
        examples = _examples(batch)
        if self._has_loss(model):
            total, count = model.loss(examples)
            return jnp.asarray(total, jnp.float32), jnp.asarray(count, jnp.float32)
        logits_BxLxV = self._call(model, examples, trains).astype(jnp.float32)
        losses_BxL = optax.softmax_cross_entropy_with_integer_labels(logits_BxLxV, examples["targets"])
        return jnp.sum(losses_BxL * examples["counted"]), jnp.sum(examples["counted"])

    def differentiated(
        self, frozen: Params, params: Params, batch: Mapping[str, Array], key: Array
    ) -> tuple[tuple[Array, Array], Params]:
        """Return `sums` of training and their gradients by `params`, in float32."""
        differentiate = jax.value_and_grad(partial(self.sums, trains=True), argnums=1, has_aux=True)
        sums, gradients = differentiate(frozen, params, batch, key)
        return sums, jax.tree.map(lambda gradient: gradient.astype(jnp.float32), gradients)

    def _layers(self) -> list[str]:
        """Return the layers that get an adapter. Raises ConfigError for targets that match none."""
        from workload.modules import lora  # qwix takes seconds to import

        if self._made.linen:
            raise refusal(Problem("lora.rank", str(self._lora.rank), "is for modules of nnx alone", "0"))
        made = self._made.tried("qwix", lambda: nnx.eval_shape(lambda: self._changed(None)))
        known = lora.layers(made)
        adapted, unmatched = lora.chosen(known, self._lora.targets)
        shown_few = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
        fix = f"a regular expression of {shown_few}" if known else "remove [lora]: no layer takes an adapter"
        if unmatched:
            rule = f"matches no layer of {self.name}"
            raise refusal(*(Problem("lora.targets", repr(target), rule, fix) for target in unmatched))
        return adapted

    def _changed(self, adapted: list[str] | None) -> Any:
        """Return the module with adapters beside these layers; None: beside all."""
        from workload.modules import lora

        model = self._bare()
        model.eval()
        examples = self._blank()
        method, inputs = (
            ("loss", (examples,)) if hasattr(model, "loss") else ("__call__", _arguments(examples))
        )
        return lora.with_adapters(model, self._lora, adapted, method, inputs, self._inputs.seed)

    def _blank(self) -> dict[str, Array]:
        """Return an example of zeros."""
        zeros = jnp.zeros((1, self._inputs.length + 1), jnp.int32)
        return _examples({"tokens_BxL1": zeros, "segments_BxL1": zeros})

    def _construct(self) -> Any:
        return self._bare() if self._adapted is None else self._changed(self._adapted)

    def _bare(self) -> Any:
        inputs, given = self._inputs, dict(self._config.settings)
        for name in ("vocab_size", "dtype"):
            if name in self._made.takes:
                given.setdefault(name, getattr(inputs, name))
        with nnx.use_eager_sharding(False):  # the step places the arrays
            if not self._made.linen:
                return self._made.make(
                    **given, **({"rngs": nnx.Rngs(inputs.seed)} if "rngs" in self._made.takes else {})
                )
            rngs = nnx.Rngs(default=inputs.seed, params=inputs.seed, dropout=inputs.seed)
            model = nnx.bridge.ToNNX(self._made.make(**given), rngs=rngs)
            nnx.bridge.lazy_init(model, *_arguments(self._blank()), **self._modes(trains=False))
            nnx.pop(model, nnx.Intermediate)
            return model

    def _with(self, frozen: Params, params: Params, key: Array) -> Any:
        """Return the module with these parameters, its random streams begun anew from `key`."""
        model = self._construct()
        by_name = {_names(path): path for path in self._paths}
        state = nnx.state(model, nnx.Param)
        leaves = map(jax.tree_util.tree_leaves_with_path, (frozen, params))
        for path, leaf in chain.from_iterable(leaves):
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
        return not self._made.linen and hasattr(model, "loss")

    def _call(self, model: Any, examples: Mapping[str, Array], trains: bool) -> Any:
        return model(*_arguments(examples), **self._modes(trains))

    def _modes(self, trains: bool) -> dict[str, bool]:
        """Return the arguments that switch a linen module between training and evaluation."""
        if not self._made.linen:
            return {}
        taken = inspect.signature(self._made.make.__call__).parameters  # type: ignore[operator]
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
            problems.append(self._made.problem(rule, fix))
        if not nnx.to_flat_state(params):
            problems.append(
                self._made.problem("holds no parameters (nnx.Param)", "create them in its constructor")
            )
        if problems:
            raise refusal(*problems)

    def _require_floating(self) -> None:
        """Raise for trained parameters that have no gradient."""
        problems, fix = [], "create it in a floating dtype, or keep a constant as a plain array"
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.params):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                rule = f"its parameter {name} is {leaf.dtype.name}, which has no gradient"
                problems.append(self._made.problem(rule, fix))
        if problems:
            raise refusal(*problems)

    def _require_result(self) -> None:
        """Raise unless the module returns logits, or its loss two numbers, and leaves its variables alone.

        Its gradient must exist too: a callback of the host, for one, has none.
        """
        B, L = self._inputs.batch_size, self._inputs.length
        rows = jax.ShapeDtypeStruct((B, L + 1), jnp.int32)
        changed: list[str] = []

        def run(frozen: Params, params: Params, tokens: Array, segments: Array) -> Any:
            model = self._with(frozen, params, jax.random.key(0))
            model.train()
            before = _values(model)
            examples = _examples({"tokens_BxL1": tokens, "segments_BxL1": segments})
            has_loss.append(self._has_loss(model))
            result = model.loss(examples) if has_loss[0] else self._call(model, examples, trains=True)
            after = _values(model)
            changed.extend(".".join(path) for path in before if after.get(path) is not before[path])
            return result

        has_loss: list[bool] = []
        result = self._made.tried("a call", lambda: jax.eval_shape(run, self.frozen, self.params, rows, rows))
        problems = []
        if changed:
            rule = f"its call changes {changed[0]}, which checkpoints lack"
            problems.append(self._made.problem(rule, "let only gradients change it"))
        described = jax.tree.map(lambda leaf: f"{leaf.dtype.name}{list(leaf.shape)}", result)
        if has_loss[0]:
            pair = isinstance(result, tuple) and len(result) == 2
            if not pair or any(getattr(part, "shape", None) != () for part in result):
                rule = f"loss(batch) must return two numbers, sum and count, not {described}"
                problems.append(self._made.problem(rule, "sum the losses, and count their targets"))
        elif not isinstance(result, jax.ShapeDtypeStruct) or (
            result.shape[:2] != (B, L) or len(result.shape) != 3 or result.shape[2] < self._inputs.vocab_size
        ):
            rule = f"must return logits [{B}, {L}, {self._inputs.vocab_size} or more], not {described}"
            problems.append(
                self._made.problem(rule, "see docs/guides/flax.md; or give it a method loss(batch)")
            )
        if problems:
            raise refusal(*problems)
        batch = {"tokens_BxL1": rows, "segments_BxL1": rows}
        self._made.tried(
            "its gradient",
            lambda: jax.eval_shape(self.differentiated, self.frozen, self.params, batch, jax.random.key(0)),
        )


def _examples(batch: Mapping[str, Array]) -> dict[str, Array]:
    """Return inputs and targets."""
    segments = batch["segments_BxL1"][:, :-1]
    return {
        "tokens": batch["tokens_BxL1"][:, :-1],
        "segments": segments,
        "positions": attention.positions(segments),
        "targets": batch["tokens_BxL1"][:, 1:],
        "counted": loss.counted(batch),
    }


def _arguments(examples: Mapping[str, Array]) -> tuple[Array, ...]:
    return examples["tokens"], examples["segments"], examples["positions"]


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
