"""Update of a state by a batch, compiled for a mesh, whatever the model.

The state is {params, opt_state}; checkpoints, digests and logs know nothing else of a model.
"""
# mypy: allow-untyped-calls

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workload.data.tokens import PARTS
from workload.train import flags, optimizer, sharding
from workload.train.config import Config
from workload.train.sharding import BATCH

if TYPE_CHECKING:
    from workload.train.base import Checkpoint, Folder

Params = dict[str, Any]
State = dict[str, Any]
Batch = dict[str, Array]
"""`PARTS`, int32: L inputs and the last target; counted_BxL1 where `data.loss` is answers."""


class TrainStep(ABC):
    """Train step for a (config, mesh): state shapes, initial state, update, loss.

    Attributes:
        attention: the chosen kernel, or `module`.
        attention_reason: why.
        state: shapes and shardings.
        frozen: the same of parameters beside the trained ones, which checkpoints don't hold.
        placement: a note on arrays that aren't placed as wished, for the log.
    """

    attention: str
    attention_reason: str
    frozen: Params
    placement: dict[str, Any]

    def __init__(self, config: Config, mesh: Mesh, platform: str, slices: int, params: Params):
        self.config, self.mesh, self.platform, self.slices = config, mesh, platform, slices
        self.placement, self.frozen, self._values = {}, {}, Params()
        self._optimizer = optimizer.build(config)
        abstract = {"params": params, "opt_state": jax.eval_shape(self._optimizer.init, params)}
        places = self._places_of(params)
        moments = sharding.of_optimizer(abstract["opt_state"], params, places, mesh)
        self.shardings = {"params": places, "opt_state": moments}
        self.state = sharding.placed(abstract, self.shardings)
        self.by_example = NamedSharding(mesh, BATCH)
        shape = (config.train.batch_size, config.data.sequence_length + 1)
        self.batch = {
            name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self.by_example)
            for name in (PARTS if config.data.loss == "answers" else PARTS[:2])
        }

    @property
    def parameters(self) -> int:
        """Number of parameters, of frozen ones too."""
        return sum(leaf.size for leaf in jax.tree.leaves((self.state["params"], self.frozen)))

    @property
    def state_bytes(self) -> int:
        """Bytes of the state, on all devices: the size of a checkpoint."""
        return optimizer.size_bytes(self.state)

    @abstractmethod
    def first_params(self) -> Params:
        """Create the parameters before any update, from the seed."""

    @abstractmethod
    def _places_of(self, params: Params) -> Any:
        """Return the shardings of parameters."""

    @abstractmethod
    def _gradients(self, frozen: Params, state: State, batch: Batch) -> tuple[Array, Array, Params]:
        """Return the sums over the whole batch of losses, counted targets and gradients."""

    @abstractmethod
    def _sums(self, frozen: Params, params: Params, batch: Batch) -> tuple[Array, Array]:
        """Return the sums over the whole batch of losses and counted targets."""

    @cached_property
    def base(self) -> "Folder | Checkpoint":
        """Weights of `train.init_from`."""
        from workload.train import base  # orbax takes seconds to import

        return base.named(self.config.train.init_from)

    @property
    def given(self) -> Params:
        """Shapes and shardings of the parameters that `base` holds."""
        params: Params = self.state["params"]
        return params

    def read_given(self) -> Params:
        """Read the parameters of `base`, or beside its adapters, each worker its devices' parts."""
        return self.base.frozen.load(self.config.model, self.given)

    @property
    def begins_at(self) -> int:
        """Finished updates of the state before any of this run: 0, or those of the forked run."""
        return self._forked.step if self.config.train.init_with == "step" else 0

    def first_state(self) -> State:
        """Create the state before any update: drawn from the seed, or with what `base` gives it."""
        if self.config.train.init_with == "parameters":
            if self.config.lora.rank and self.base.beside:  # adapters of a run
                params = self._forked.state({"params": self.state["params"]})["params"]
            else:
                params = self.first_params()
            return {"params": params, "opt_state": self.first_optimizer_state(params)}
        state: State = self._forked.state(self.state)
        if self.config.train.init_with == "optimizer":
            where = self.shardings["opt_state"]
            anew = jax.jit(optimizer.restarted, out_shardings=where, donate_argnums=0)
            state["opt_state"] = anew(state["opt_state"])
        return state

    @property
    def _forked(self) -> "Checkpoint":
        return cast("Checkpoint", self.base)  # `config.py` requires a run

    def prepare(self) -> None:
        """Read the frozen parameters, each worker its devices' parts, before the step is compiled."""
        return

    def first_optimizer_state(self, params: Params) -> Any:
        """Create the sharded optimizer state before any update."""
        return jax.jit(self._optimizer.init, out_shardings=self.shardings["opt_state"])(params)

    def lower(self) -> Any:
        """Lower the update for the mesh: (frozen, state, batch) -> (state, metrics)."""
        update = jax.jit(
            self._update,
            in_shardings=self._inputs(self.shardings),
            out_shardings=(self.shardings, NamedSharding(self.mesh, PartitionSpec())),
            donate_argnums=1,
        )
        return update.lower(self.frozen, self.state, self.batch)

    def compile(self) -> Callable[[State, Batch], tuple[State, dict[str, Array]]]:
        """Compile the update for the local devices: (state, batch) -> (state, metrics)."""
        return partial(self.lower().compile(compiler_options=self._options()), self._values)

    def compile_loss(self) -> Callable[[Params, Batch], tuple[Array, Array]]:
        """Compile (params, batch) -> (sum of losses, number of targets)."""
        program = jax.jit(
            self._sums,
            in_shardings=self._inputs(self.shardings["params"]),
            out_shardings=NamedSharding(self.mesh, PartitionSpec()),
        )
        lowered: Any = program.lower(self.frozen, self.state["params"], self.batch)
        return partial(lowered.compile(compiler_options=self._options()), self._values)

    def _inputs(self, trained: Any) -> tuple[Any, Any, Any]:
        """Return the shardings of a program's inputs: frozen parameters, trained arrays, batch."""
        frozen = jax.tree.map(lambda leaf: leaf.sharding, self.frozen)
        return frozen, trained, dict.fromkeys(self.batch, self.by_example)

    def _options(self) -> dict[str, Any] | None:
        return flags.options(self.config.compute, self.platform, self.slices)

    def _update(self, frozen: Params, state: State, batch: Batch) -> tuple[State, dict[str, Array]]:
        params = state["params"]
        total, count, gradients = self._gradients(frozen, state, batch)
        gradients = jax.tree.map(lambda gradient: gradient / count, gradients)
        updates, opt_state = self._optimizer.update(gradients, state["opt_state"], params)
        metrics = {"loss": total / count, "tokens": count, "gradient_norm": optax.tree.norm(gradients)}
        return {"params": optax.apply_updates(params, updates), "opt_state": opt_state}, metrics


def summed(compute: Callable[[Any], Any], pieces: Any, parts: int) -> Any:
    """Return the sum of `compute` over the leading axis of some arrays, one piece after another."""
    first = jax.tree.map(lambda array: array[0], pieces)
    if parts == 1:
        return compute(first)
    begin = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(compute, first))
    total, _ = jax.lax.scan(
        lambda carry, piece: (jax.tree.map(jnp.add, carry, compute(piece)), None), begin, pieces
    )
    return total
