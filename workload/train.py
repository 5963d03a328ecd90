"""Trains a decoder on token files, on all workers, as a pure function of (seed, step).

    workload train tiny.toml --name first --dir /tmp/runs

Killed at any moment and started again, on the same number of devices, a run ends with the
same losses, parameters and optimizer state, to the last bit: the data's order comes from the
seed and the step, the arithmetic from one program on one mesh, and what was computed after the
newest complete checkpoint is computed again.
"""
# mypy: allow-untyped-calls

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax import Array

from workload import model, optimizer
from workload.checkpoints import Checkpoints, Restored
from workload.cluster import Cluster, whole
from workload.config import Config
from workload.data.order import Order
from workload.data.tokens import Dataset
from workload.errors import ConfigError, Problem, RunError
from workload.journal import Journal, read_losses
from workload.preemption import Preemption
from workload.store import MissingObjectError, Store

State = dict[str, Any]
IDENTITY = "config.json"
# Without chips a start is mostly compiling: these cut it to a fifth, for somewhat slower steps.
_CPU_OPTIONS: dict[str, bool | int] = {"xla_backend_optimization_level": 0}
if jax.__version_info__ < (0, 11):  # Python 3.11's lock has 0.10.2; 0.12 refuses the option
    _CPU_OPTIONS["xla_cpu_use_fusion_emitters"] = False


@dataclass(frozen=True)
class Outcome:
    """How a start of a run ended: `done` or `preempted`, after which step, with which loss."""

    state: str
    step: int
    loss: float | None


class Run:
    """One start of a run, on this worker."""

    def __init__(
        self, config: Config, cluster: Cluster, dataset: Dataset, store: Store, journal: Journal | None
    ):
        self._config, self._cluster, self._dataset, self._store = config, cluster, dataset, store
        self._journal = journal  # worker 0's
        self._order = Order(len(dataset), config.train.seed)
        self._optimizer = optimizer.build(config)
        params = model.shapes(config.model, dataset.manifest.vocab_size)
        abstract = {"params": params, "opt_state": jax.eval_shape(self._optimizer.init, params)}
        self._shardings = cluster.shardings(abstract)
        self._abstract = jax.tree.map(_placed, abstract, self._shardings)
        self._checkpoints = Checkpoints(store, cluster, config.checkpoint)
        self._losses: dict[int, Array] = {}  # on the devices, not fetched yet
        self._last_loss: float | None = None

    def go(self) -> Outcome:
        """Restores or begins, trains to the end or to a preemption, leaves a checkpoint.

        Raises:
            ConfigError: the batch doesn't divide over the devices.
            RunError: storage holds another run of this name, or no readable checkpoint of this one.
        """
        config, cluster = self._config, self._cluster
        self._check_batch()
        cluster.agree(self._check_identity)
        self._event("start", workers=cluster.membership.workers, devices=cluster.mesh.size)
        restored = self._checkpoints.restore(self._abstract)
        self._begin(restored)
        state = restored.state or self._first_state()
        update = self._compiled_update()
        preemption = Preemption(cluster.membership.workers)
        step, stop = restored.step, False
        while step < config.train.steps and not stop:
            step += 1
            state, self._losses[step] = update(state, self._batch(step))
            self._report(step - 1)  # the step before, so that the devices never wait for us
            stop = preemption.reached(step)
            if stop or step == config.train.steps or step % config.checkpoint.every_steps == 0:
                self._save(step, state)
        self._checkpoints.wait()
        if step < config.train.steps:
            self._event("preempted", step=step)
            return Outcome("preempted", step, self._last_loss)
        self._finish(step, state)
        return Outcome("done", step, self._last_loss)

    def _check_batch(self) -> None:
        batch, devices = self._config.train.batch_size, self._cluster.mesh.size
        if batch % devices:
            rule = f"must be a multiple of the number of devices, {devices}"
            fix = f"--set train.batch_size={-(-batch // devices) * devices}"
            raise ConfigError("config", [Problem("train.batch_size", str(batch), rule, fix)])

    def _check_identity(self) -> None:
        """The first start of a run writes down what its losses depend on; later ones compare."""
        mine = {
            **self._config.identity(),
            "tokens": self._dataset.manifest.sha256,
            "devices": self._cluster.mesh.size,
        }
        try:
            theirs = json.loads(self._store.read(IDENTITY))
        except MissingObjectError:
            self._store.write(IDENTITY, (json.dumps(mine, indent=2) + "\n").encode())
            return
        changed = [
            f"{key} was {_flat(theirs).get(key)}, is {_flat(mine).get(key)}"
            for key in sorted(_flat(theirs).keys() | _flat(mine).keys())
            if _flat(theirs).get(key) != _flat(mine).get(key)
        ]
        if changed:
            fix = "give the new run another --name, or put the old settings back"
            raise RunError(
                f"{self._store.url}: begun with other settings: {'; '.join(changed)}\n    fix: {fix}"
            )

    def _first_state(self) -> State:
        """Before any update; each worker makes the parts that its devices hold."""
        seed = self._config.train.seed

        def first(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Array:
            values = model.draw(path[-1].key, leaf.shape, self._config.model, seed)
            return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: values[index])

        params = jax.tree_util.tree_map_with_path(first, self._abstract["params"])
        begin = jax.jit(self._optimizer.init, out_shardings=self._shardings["opt_state"])
        return {"params": params, "opt_state": begin(params)}

    def _begin(self, restored: Restored) -> None:
        for step, reason in restored.passed_over:
            self._event("passed-over", step=step, reason=reason)
        if restored.step:
            self._event("restore", step=restored.step)
        if self._journal:
            self._journal.begin(restored.step)

    def _compiled_update(self) -> Callable[[State, Array], tuple[State, Array]]:
        return jax.jit(
            partial(_update, self._config, self._optimizer, self._cluster),
            in_shardings=(self._shardings, self._cluster.by_example),
            out_shardings=(self._shardings, self._cluster.replicated),
            donate_argnums=0,
            compiler_options=_CPU_OPTIONS if jax.default_backend() == "cpu" else None,
        )

    def _batch(self, step: int) -> Array:
        """The examples of a step, tokens_BxL1; each worker reads the rows of its own devices."""
        B, L1 = self._config.train.batch_size, self._config.data.sequence_length + 1
        first = (step - 1) * B

        def rows(index: Any) -> np.ndarray[Any, Any]:
            low, high, _ = index[0].indices(B)
            return self._dataset.read(self._order.at(range(first + low, first + high)))

        return jax.make_array_from_callback((B, L1), self._cluster.by_example, rows)

    def _report(self, step: int) -> None:
        """Fetches the loss of a step, once, and hands it to the journal."""
        if step in self._losses:
            self._last_loss = float(self._losses.pop(step))
            if self._journal:
                self._journal.loss(step, self._last_loss)

    def _save(self, step: int, state: State) -> None:
        """The losses first: a complete checkpoint never stands without those before it."""
        self._report(step)
        if self._journal:
            self._journal.flush(step)
        if self._checkpoints.save(step, state):
            self._event("save", step=step)

    def _finish(self, step: int, state: State) -> None:
        digests = {f"{name}_sha256": digest(state[name]) for name in ("params", "opt_state")}
        if self._cluster.leader:
            self._last_loss = read_losses(self._store)[step]
            final = {"step": step, "loss_hex": self._last_loss.hex(), **digests}
            self._store.write("final.json", (json.dumps(final) + "\n").encode())
        self._event("done", step=step)

    def _event(self, kind: str, **details: Any) -> None:
        if self._journal:
            self._journal.event(kind, **details)


def _placed(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _update(
    config: Config,
    optimizer: optax.GradientTransformation,
    cluster: Cluster,
    state: State,
    tokens_BxL1: Array,
) -> tuple[State, Array]:
    """One step: the new state, and the loss before it.

    The state lives split over the devices. Its parameters are gathered for the step, each
    device computes on its own examples, and the gradients are split again before the optimizer.
    """
    params = state["params"]
    gathered = jax.lax.with_sharding_constraint(params, cluster.replicated)
    loss, gradients = jax.value_and_grad(model.loss)(gathered, tokens_BxL1, config.model)
    gradients = jax.lax.with_sharding_constraint(gradients, cluster.shardings(gradients))
    updates, opt_state = optimizer.update(gradients, state["opt_state"], params)
    return {"params": optax.apply_updates(params, updates), "opt_state": opt_state}, loss.astype(jnp.float32)


def digest(tree: Any) -> str:
    """sha256 over each leaf's path, dtype, shape and bytes, in the tree's order. All workers call it."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        value = whole(leaf)
        sha.update(f"{jax.tree_util.keystr(path)} {value.dtype} {value.shape}\n".encode())
        sha.update(np.ascontiguousarray(value).tobytes())
    return sha.hexdigest()


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def open_dataset(config: Config, data_dir: str | None) -> Dataset:
    """The token files that the config names, below `data_dir` where that is given."""
    return Dataset(Path(data_dir or ".") / config.data.path, config.data.sequence_length)
