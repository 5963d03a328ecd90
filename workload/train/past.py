"""Begun run, read from outside: its settings, and the parameters of its checkpoints."""
# mypy: allow-untyped-calls

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import jax
import orbax.checkpoint as ocp  # type: ignore[import-untyped]
from etils import epath  # type: ignore[import-untyped]

from settings_schema import foreign
from workload import command, settings
from workload.errors import Problem, RunError
from workload.model import decoder
from workload.model.adapters import LoraConfig
from workload.model.architecture import Architecture
from workload.model.decoder import Params
from workload.model.generation import Generation
from workload.modules.config import ModuleConfig
from workload.runs import location
from workload.runs.store import Store
from workload.train import best, checksums
from workload.train.checkpoints import quiet_failures
from workload.train.cluster import first_line
from workload.train.config import Config
from workload.train.optimizer import build
from workload.train.optimizer_config import OptimizerConfig
from workload.train.stored_steps import FOLDER, list_steps, read_checksums


@dataclass(frozen=True)
class Past:
    """Begun run: its model and the settings that its checkpoints depend on."""

    store: Store
    exact: dict[str, Any]  # settings that determine the losses, by section
    model: Architecture | ModuleConfig
    optimizer: OptimizerConfig
    generation: Generation
    lora: LoraConfig
    base: str  # weights that the run began with, or that its adapters stand beside; empty: none
    base_sha256: str  # of those that its adapters stand beside

    @classmethod
    def read(cls, store: Store) -> "Past":
        """Read the run's config.json; see `open_run`.

        Raises:
            RunError: another version of the trainer wrote it.
        """
        try:
            written = foreign.parse(store.read(location.RECORD))
            exact = written["exact"]
        except (ValueError, KeyError):
            fix = "use the version of the trainer that began the run"
            where = f"{store.url}/{location.RECORD}"
            raise RunError(f"{where}: not written by this version\n    fix: {fix}") from None
        problems: list[Problem] = []
        kind = ModuleConfig if "module" in exact["model"] else Architecture
        model = settings.build(kind, exact["model"], "model.", problems)
        optimizer = settings.build(OptimizerConfig, exact["optimizer"], "optimizer.", problems)
        lora = settings.build(LoraConfig, exact.get("lora", {}), "lora.", problems)
        if problems:
            listed = "\n  ".join(map(str, problems))
            raise RunError(f"{store.url}/{location.RECORD}: not written by this version\n  {listed}")
        length = {"longest": exact["data"]["sequence_length"]}
        generation = Generation.read(length | written.get("generation", {}))
        base = written.get("base") or exact.get("train", {}).get("init_from", "")
        return cls(store, exact, model, optimizer, generation, lora, base, exact.get("base_sha256", ""))

    @property
    def sha256(self) -> str:
        """Digest of the settings that determine the losses."""
        return hashlib.sha256(json.dumps(self.exact, sort_keys=True).encode()).hexdigest()

    @property
    def architecture(self) -> Architecture:
        """Architecture of a run of the decoder.

        Raises:
            RunError: it is a run of a module.
        """
        if isinstance(self.model, Architecture):
            return self.model
        fix = "read its checkpoints with the module, or export their arrays"
        raise RunError(f"{self.store.url}: a run of {self.model.module}, not of the decoder\n    fix: {fix}")

    def shapes(self, step: int) -> dict[str, Any]:
        """Return the shapes of the trained parameters; those of a module are read from the checkpoint."""
        if isinstance(self.model, Architecture):
            return decoder.trained(self.model, self.lora)
        try:
            stored = ocp.PyTreeCheckpointer().metadata(self._folder(step)).item_metadata.tree["params"]
        except Exception as error:  # orbax and tensorstore raise any type
            raise self._unreadable(step, error) from error
        shapes: dict[str, Any] = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), stored
        )
        return shapes

    def whole_shapes(self, step: int) -> dict[str, Any]:
        """Return the shapes of a checkpoint's parameters.

        Raises:
            RunError: it can't be read, or has adapters alone.
        """
        if self.lora.rank:
            fix = f"lora.rank = {self.lora.rank}, to go on with them; or "
            fix += (
                f"`{command('checkpoints', 'export')} {self.store.url} --merged --out …`, and use that folder"
                if isinstance(self.model, Architecture)
                else "begin with the run that it began with"
            )
            raise RunError(f"{self.store.url}: its checkpoints hold adapters alone\n    fix: {fix}")
        return self.shapes(step)

    def identity(self, step: int) -> dict[str, Any]:
        """Return the run's settings and the save's file names, which orbax draws anew for each save."""
        files = "\n".join(self.store.list(f"{FOLDER}/{step}/"))
        return {
            "run_sha256": self.sha256,
            "step": step,
            "files_sha256": hashlib.sha256(files.encode()).hexdigest(),
        }

    def restore(self, step: int, whole_state: bool) -> Any:
        """Restore a checkpoint on this host: the whole state, or its parameters alone.

        Raises:
            RunError: it can't be read.
        """
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        params = self.shapes(step)
        abstract: dict[str, Any] = {"params": params}
        if whole_state:
            abstract["opt_state"] = self.optimizer_shapes(params)
        placed = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), abstract
        )
        return self.state(step, placed)

    def optimizer_shapes(self, params: Any) -> Any:
        """Return the shapes of the optimizer's state for such parameters."""
        narrow = isinstance(self.model, ModuleConfig) and "moments" not in self.exact
        return jax.eval_shape(build(Config(optimizer=self.optimizer), narrow).init, params)

    def state(self, step: int, abstract: Any) -> Any:
        """Restore the state, or its parameters alone, as `abstract` places it.

        Raises:
            RunError: it can't be read.
        """
        known = read_checksums(self.store, step)
        state = self._restore(step, abstract, partial="opt_state" not in abstract, strict=True)
        self._compare(step, state, known)
        return state

    def params(self, step: int, abstract: Params) -> Params:
        """Restore some of a checkpoint's parameters, cast and sharded; a single array is in memory uncast.

        Args:
            step: of a complete checkpoint.
            abstract: their shapes, dtypes and shardings; a shorter axis of layers selects the first ones.

        Raises:
            RunError: it can't be read, or has adapters alone.
        """
        dtypes = dict(jax.tree_util.tree_leaves_with_path(self.whole_shapes(step)))
        known = read_checksums(self.store, step)

        def load(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
            saved: Any = jax.ShapeDtypeStruct(leaf.shape, dtypes[path].dtype, sharding=leaf.sharding)
            for part in reversed(path):
                saved = {part.key: saved}
            state = self._restore(step, {"params": saved}, partial=True, strict=False)
            self._compare(step, state, known)
            (array,) = jax.tree.leaves(state)
            cast: jax.Array = array.astype(leaf.dtype)
            return cast

        params: Params = jax.tree_util.tree_map_with_path(load, abstract)
        return params

    def _compare(self, step: int, state: Any, known: tuple[str | None, str]) -> None:
        """Compare restored arrays with `read_checksums`, if the step has any. Raises RunError."""
        stored, problem = known
        if stored is not None:
            problem = checksums.problem(stored, step, state, checksums.compiled(state)(state))
        if problem:
            raise RunError(
                f"{self.store.url}: checkpoint {step} is damaged: {problem}\n"
                f"    fix: another step; `{command('checkpoints', 'verify')} {self.store.url}` reads them all"
            )

    def _restore(self, step: int, placed: Any, partial: bool, strict: bool) -> Any:
        quiet_failures()
        loader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
        desired = ocp.checkpoint_utils.construct_restore_args(placed, strict=strict)
        arguments = ocp.args.PyTreeRestore(placed, restore_args=desired, partial_restore=partial)
        try:
            return loader.restore(self._folder(step), args=arguments)
        except Exception as error:  # orbax and tensorstore raise any type
            raise self._unreadable(step, error) from error

    def _folder(self, step: int) -> Any:
        return epath.Path(self.store.url) / FOLDER / str(step)

    def _unreadable(self, step: int, error: Exception) -> RunError:
        return RunError(f"{self.store.url}: checkpoint {step} can't be read: {first_line(error)}")


def complete_step(store: Store, step: int | str | None) -> int:
    """Return `step` if it has a complete checkpoint, by default the newest such step; `best`: the best one.

    Raises:
        RunError: there is none.
    """
    complete = list_steps(store).complete
    if step == best.BEST:
        return best.require(store, complete)
    if not complete or (step is not None and step not in complete):
        desired = "no complete checkpoint" if step is None else f"no complete checkpoint {step}"
        beside = re.sub(r"^(gs://[^/]+)", r"\1-steps", store.url)
        unfinished = (
            f"continue its training; while it runs on a slice, they are in $STEPS_BUCKET, e.g. {beside}"
        )
        fix = f"one of {list(complete)}" if complete else unfinished
        raise RunError(f"{store.url}: {desired}\n    fix: {fix}")
    return complete[-1] if step is None else int(step)
