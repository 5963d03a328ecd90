"""Checkpoints of a run, read from outside: verification and export.

workload checkpoints verify gs://my-project-checkpoints/runs/first
workload checkpoints export gs://my-project-checkpoints/runs/first --out first-hf/
"""
# mypy: allow-untyped-calls

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp  # type: ignore[import-untyped]
from etils import epath  # type: ignore[import-untyped]
from safetensors import SafetensorError
from safetensors.numpy import save_file

from settings_schema import foreign
from workload import command, settings
from workload.errors import Problem, RunError, WeightsError
from workload.model import adapters, decoder, huggingface, peft
from workload.model.adapters import LoraConfig
from workload.model.architecture import Architecture
from workload.model.decoder import Params
from workload.model.generation import Generation
from workload.model.transformers_config import CONFIG
from workload.modules.config import ModuleConfig
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store
from workload.train import checksums, record
from workload.train.checkpoints import FOLDER, list_steps, quiet_failures, read_checksums
from workload.train.cluster import first_line
from workload.train.config import Config, OptimizerConfig
from workload.train.optimizer import build


@dataclass(frozen=True)
class Past:
    """Begun run: its model and the settings that its checkpoints depend on."""

    store: Store
    sha256: str  # of the settings that determine the losses
    model: Architecture | ModuleConfig
    optimizer: OptimizerConfig
    generation: Generation
    lora: LoraConfig
    base: str  # folder of the weights that the run began with; empty: none
    base_sha256: str  # of those that its adapters stand beside

    @classmethod
    def read(cls, store: Store) -> "Past":
        """Read the run's config.json; see `open_run`.

        Raises:
            RunError: another version of the trainer wrote it.
        """
        try:
            written = foreign.parse(store.read(record.NAME))
            exact = written["exact"]
        except (ValueError, KeyError):
            fix = "use the version of the trainer that began the run"
            where = f"{store.url}/{record.NAME}"
            raise RunError(f"{where}: not written by this version\n    fix: {fix}") from None
        problems: list[Problem] = []
        kind = ModuleConfig if "module" in exact["model"] else Architecture
        model = settings.build(kind, exact["model"], "model.", problems)
        optimizer = settings.build(OptimizerConfig, exact["optimizer"], "optimizer.", problems)
        lora = settings.build(LoraConfig, exact.get("lora", {}), "lora.", problems)
        if problems:
            listed = "\n  ".join(map(str, problems))
            raise RunError(f"{store.url}/{record.NAME}: not written by this version\n  {listed}")
        sha256 = hashlib.sha256(json.dumps(exact, sort_keys=True).encode()).hexdigest()
        length = {"longest": exact["data"]["sequence_length"]}
        generation = Generation.read(length | written.get("generation", {}))
        base = exact.get("train", {}).get("init_from", "")
        return cls(store, sha256, model, optimizer, generation, lora, base, exact.get("base_sha256", ""))

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

    def _shapes(self, step: int) -> dict[str, Any]:
        """Return the shapes of the parameters; those of a module are read from the checkpoint."""
        if isinstance(self.model, Architecture):
            if not self.lora.rank:
                return decoder.shapes(self.model, jnp.float32)
            trained = adapters.shapes(self.model, self.lora).items()
            return {"layers": {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in trained}}
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
            fix = (
                f"`{command('checkpoints', 'export')} {self.store.url} --merged --out …`, and use that folder"
                if isinstance(self.model, Architecture)
                else "begin with the run that it began with"
            )
            raise RunError(f"{self.store.url}: its checkpoints hold adapters alone\n    fix: {fix}")
        return self._shapes(step)

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
        params = self._shapes(step)
        abstract: dict[str, Any] = {"params": params}
        if whole_state:
            optimizer = build(Config(optimizer=self.optimizer))
            abstract["opt_state"] = jax.eval_shape(optimizer.init, params)
        placed = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), abstract
        )
        state = self._restore(step, placed, partial=not whole_state, strict=True)
        self._compare(step, state, read_checksums(self.store, step))
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

    def merged(self, params: Params) -> Params:
        """Add a checkpoint's adapters to the weights that they were trained beside.

        Raises:
            WeightsError: the weights are no longer there, or others.
        """
        if isinstance(self.model, ModuleConfig):
            return self._merged_module(params)
        folder, device = Path(self.base), jax.sharding.SingleDeviceSharding(jax.devices()[0])
        if self.base_sha256 != huggingface.digest(folder):
            raise self._of_other_weights()
        placed = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
            decoder.shapes(self.architecture),
        )
        given = huggingface.load(folder, self.architecture, placed)
        return {**given, "layers": adapters.merged(given["layers"], params["layers"], self.lora)}

    def _merged_module(self, params: Params) -> Params:
        from workload.modules import lora
        from workload.train.base import Base

        base = Base.named(self.base)
        if self.base_sha256 != base.sha256:
            raise self._of_other_weights()
        return lora.merged(base.whole(), params, self.lora)

    def _of_other_weights(self) -> WeightsError:
        fix = "put the weights that it was trained beside back there"
        return WeightsError(f"{self.base}: has other weights than the run was trained beside\n    fix: {fix}")

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


@dataclass(frozen=True)
class Checked:
    """Result of verifying a checkpoint.

    Attributes:
        problem: empty if it is usable.
        digests: of its parameters and its optimizer's state.
        as_ended: True if they match final.json, which only the last step of a run can.
    """

    step: int
    problem: str
    digests: dict[str, str]
    as_ended: bool = False


def verify(store: Store, step: int | None = None) -> list[Checked]:
    """Read all data of a run's complete checkpoints, or of a single one.

    A checkpoint is usable if all of it is readable and every number is finite; the last one of a finished
    run must also match its final.json.
    """
    past = Past.read(store)
    try:
        final = foreign.parse(store.read("final.json"))
    except MissingObjectError:
        final = {}
    except ValueError as error:
        fix = "remove it; a restart of the run writes it again"
        raise RunError(f"{store.url}/final.json: is damaged: {error}\n    fix: {fix}") from None
    complete = list_steps(store).complete
    checked = []
    for number in [s for s in complete if step in (None, s)]:
        try:
            state = past.restore(number, whole_state=True)
        except RunError as error:
            checked.append(Checked(number, first_line(error), {}))
            continue
        digests = checksums.digests(state)
        bad = _not_finite(state)
        problem = f"{bad[0]} and {len(bad) - 1} more arrays hold non-finite numbers" if bad else ""
        known = {name: final[name] for name in digests if name in final}
        if final.get("step") == number and known != {name: digests[name] for name in known}:
            problem = "differs from final.json"
        checked.append(Checked(number, problem, digests, not problem and final.get("step") == number))
    if step is not None and not checked:
        raise RunError(f"{store.url}: no complete checkpoint {step}\n    fix: one of {complete or 'none'}")
    return checked


def complete_step(store: Store, step: int | None) -> int:
    """Return `step` if it has a complete checkpoint, or by default the newest such step.

    Raises:
        RunError: there is none.
    """
    complete = list_steps(store).complete
    if not complete or (step is not None and step not in complete):
        desired = "no complete checkpoint" if step is None else f"no complete checkpoint {step}"
        raise RunError(
            f"{store.url}: {desired}\n    fix: one of {list(complete) or 'none: continue its training'}"
        )
    return complete[-1] if step is None else step


def _not_finite(state: Any) -> list[str]:
    return [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not bool(jnp.all(jnp.isfinite(leaf)))
    ]


def export(
    store: Store,
    out: Path,
    step: int | None,
    dtype: str,
    progress: Callable[[str], None],
    merged: bool = False,
) -> tuple[int, list[str]]:
    """Write a checkpoint's parameters as a Hugging Face folder; return its step and the files.

    Adapters are written as PEFT reads them or, `merged`, added to the weights that they were trained beside.
    A module's are the arrays by their paths, such as `blocks.0.up.kernel`, beside its name and settings.

    Raises:
        RunError: no complete checkpoint is readable, or `out` isn't empty or can't be written.
    """
    past = Past.read(store)
    chosen = complete_step(store, step)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"--out {out}: isn't empty\n    fix: name a new folder, or remove it")
    if merged and not past.lora.rank:
        raise RunError(f"--merged: {store.url} has no adapters\n    fix: leave it out")
    params = past.restore(chosen, whole_state=False)["params"]
    if merged:
        params = past.merged(params)
    folder = f"{record.TOKENIZER}/"
    tokenizer = {name.removeprefix(folder): store.read(name) for name in store.list(folder)}
    if not past.generation.ends:
        progress("an earlier version began this run without an end token: generation won't stop")
    try:
        if isinstance(past.model, ModuleConfig):
            about = asdict(past.model)
            if past.lora.rank and not merged:
                about |= {"lora": asdict(past.lora), "base": past.base}
            files = _save_arrays(out, params, about, dtype)
        elif past.lora.rank and not merged:
            files = peft.save(out, params["layers"], past.lora, past.base, dtype)
            for name, content in tokenizer.items():
                (out / name).write_bytes(content)
            return chosen, files
        else:
            files = huggingface.save(out, params, past.model, dtype, past.generation, progress=progress)
        past.generation.write(out, tokenizer)
        return chosen, files
    except (OSError, SafetensorError) as error:
        width = {"bfloat16": 2, "float32": 4}[dtype]
        size_gb = sum(leaf.size for leaf in jax.tree.leaves(params)) * width / 1e9
        fix = f"remove the partial export, make room for {size_gb:.3g} GB, or name a writable folder"
        raise RunError(f"--out {out}: can't be written: {first_line(error)}\n    fix: {fix}") from None


def _save_arrays(out: Path, params: decoder.Params, about: dict[str, Any], dtype: str) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    arrays = {
        ".".join(part.key for part in path): np.asarray(jnp.asarray(leaf).astype(dtype))
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    save_file(arrays, out / huggingface.WHOLE)
    (out / CONFIG).write_text(json.dumps(about, indent=2) + "\n")
    return [huggingface.WHOLE]
