"""Weights that a run or an extraction begins with: a Hugging Face folder, or a checkpoint of another run.

Qwen2.5-0.5B            a folder below $DATA_DIR
gs://B/data/qwen        a folder of the mounted checkpoint bucket
run:first@400           step 400 of the run `first`, in the bucket or --dir; run:first@best
run:gs://B/runs/first@400, run:/tmp/training/runs/first@400
"""
# mypy: allow-untyped-calls

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from settings_schema import foreign
from workload import command, folders
from workload.errors import ConfigError, Problem, WeightsError
from workload.model import adapters, decoder, huggingface
from workload.model.architecture import Architecture
from workload.model.decoder import Params
from workload.model.generation import Generation
from workload.modules.config import ModuleConfig
from workload.runs import location
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store, open_run
from workload.train import best, optimizer
from workload.train.config import Config
from workload.train.past import Past, complete_step

KEY = "train.init_from"
_SHOWN = 8  # arrays in a message


def find(key: str, name: str, root: str | None = None) -> tuple[Store, int]:
    """Return the store of a run and its step, by a name as above.

    Args:
        key: of the setting.
        name: its value.
        root: parent of runs/; see `location.of_run`.

    Raises:
        ConfigError: no run with a step, or without a known place.
        RunError: there is no such run, or no best step.
    """
    match = location.CHECKPOINT.fullmatch(name)
    if not match:
        fix = f"e.g. run:first@400; `{command('checkpoints', 'list')}` lists them"
        raise ConfigError("config", [Problem(key, repr(name), location.IS_CHECKPOINT, fix)])
    url = match["run"]
    if "/" not in url:
        url, problems = location.of_run("runs", url, root)
        if problems:
            raise ConfigError("config", problems)
    store = open_run(url)
    return store, complete_step(store, best.BEST) if is_best(name) else int(match["step"])


def is_best(name: str) -> bool:
    """Return True for the name of a run's best checkpoint, False for a folder of such a name."""
    match = location.CHECKPOINT.fullmatch(name)
    return match is not None and match["step"] == best.BEST


def pinned(name: str, own: Store) -> str:
    """Return the name of a run's best checkpoint with its step, which `own` has on record once it has begun.

    Raises:
        ConfigError, RunError: see `find`.
    """
    run, _, _ = name.rpartition("@")
    try:
        exact = foreign.group(foreign.parse(own.read(location.RECORD)), "exact")
        begun = foreign.text(foreign.group(exact, "train"), "init_from")
    except (MissingObjectError, ValueError):
        begun = ""
    return begun if begun.rpartition("@")[0] == run else f"{run}@{find(KEY, name)[1]}"


def named(name: str, key: str = KEY, root: str | None = None) -> "Folder | Checkpoint":
    """Return the weights that a setting names; see `find`.

    Raises:
        ConfigError, RunError: see `find`; or a folder outside the mounted bucket.
    """
    if name.startswith("run:"):
        return Checkpoint(*find(key, name, root))
    return Folder(folders.of_setting(key, name), name)


@dataclass(frozen=True)
class Folder:
    """A Hugging Face folder."""

    path: Path
    given: str = field(default="", compare=False)  # in the setting

    @property
    def name(self) -> str:
        """Its path; of a bucket's folder its URL, wherever it was downloaded to."""
        return self.given if self.given.startswith("gs://") else str(self.path)

    @cached_property
    def arch(self) -> Architecture:
        """See `huggingface.read_architecture`."""
        return huggingface.read_architecture(self.path, self.given)

    @property
    def frozen(self) -> "Folder":
        """Itself: a folder holds no adapters."""
        return self

    @property
    def beside(self) -> str:
        """Empty, likewise."""
        return ""

    @cached_property
    def sha256(self) -> str:
        """See `huggingface.digest`."""
        return huggingface.digest(self.path)

    @property
    def exact(self) -> dict[str, Any]:
        """None: a folder has no run's settings."""
        return {}

    @property
    def files(self) -> dict[str, Any]:
        """See `huggingface.versions`."""
        return huggingface.versions(self.path)

    def identity(self) -> dict[str, Any]:
        """Return the files' sha256."""
        return {"weights_sha256": self.sha256}

    @property
    def generation(self) -> Generation:
        """See `Generation.of_weights`."""
        return Generation.of_weights(self.path)

    @cached_property
    def tokenizer_sha256(self) -> str:
        """Identity of the tokenizer.json in it; empty if there is none."""
        file = self.path / f"{location.TOKENIZER}.json"
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""

    def check(self) -> None:
        """See `huggingface.check`."""
        huggingface.check(self.path, self.arch)

    def fits(self, config: Config, abstract: Params, state: Any, tokenizer_sha256: str) -> None:
        """See `huggingface.check`; `fitting.resolve` has compared the tokenizer."""
        huggingface.check(self.path, config.decoder)

    def load(self, model: Architecture | ModuleConfig, abstract: Params) -> Params:
        """See `huggingface.load`."""
        assert isinstance(model, Architecture)
        return huggingface.load(self.path, model, abstract)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a training run."""

    store: Store
    step: int

    @property
    def name(self) -> str:
        """As written in the config."""
        return f"run:{self.store.url}@{self.step}"

    @cached_property
    def past(self) -> Past:
        """Run that saved it."""
        return Past.read(self.store)

    @property
    def arch(self) -> Architecture:
        """See `Past.read`."""
        return self.past.architecture

    def identity(self) -> dict[str, Any]:
        """See `Past.identity`."""
        return self.past.identity(self.step)

    @property
    def beside(self) -> str:
        """Name of the weights that its adapters were trained beside; empty: it has none."""
        return self.past.base if self.past.lora.rank else ""

    @cached_property
    def frozen(self) -> "Folder | Checkpoint":
        """Weights beside which its adapters were trained; itself without adapters."""
        return named(self.beside) if self.beside else self

    @cached_property
    def sha256(self) -> str:
        """Identity of its parameters. Raises RunError if the step isn't complete."""
        self.check()
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()

    @property
    def exact(self) -> dict[str, Any]:
        """Settings that determine the run's losses, by section."""
        return self.past.exact

    @property
    def files(self) -> dict[str, Any]:
        """None that are sooner read than `sha256`."""
        return {}

    @property
    def generation(self) -> Generation:
        """See `Past.read`."""
        return self.past.generation

    @cached_property
    def tokenizer_sha256(self) -> str:
        """Identity of the tokenizer.json that the run keeps; empty if there is none."""
        names = self.store.list(f"{location.TOKENIZER}/{location.TOKENIZER}.json")
        return hashlib.sha256(self.store.read(names[0])).hexdigest() if names else ""

    def check(self) -> None:
        """Raise RunError if the step isn't complete."""
        complete_step(self.store, self.step)

    def load(self, model: Architecture | ModuleConfig, abstract: Params) -> Params:
        """See `check` and `Past.params`."""
        self.check()
        return self.past.params(self.step, abstract)

    def state(self, abstract: Any) -> Any:
        """See `Past.state`."""
        self.check()
        return self.past.state(self.step, abstract)

    def whole(self) -> Any:
        """Restore its parameters on this host."""
        return self.past.restore(self.step, whole_state=False)["params"]

    def fits(self, config: Config, abstract: Params, state: Any, tokenizer_sha256: str) -> None:
        """Check that a run can begin with it.

        Args:
            config: of that run.
            abstract: parameters that it must hold, and no others; of adapters the weights beside them.
            state: of that run; its optimizer's part counts unless `train.init_with` is parameters.
            tokenizer_sha256: of the run's tokens.

        Raises:
            WeightsError: lists all that doesn't fit.
            RunError: it can't be read, or has adapters and the run none.
        """
        self.check()
        if config.lora.rank and self.beside:
            _require_unchanged(self.past, self.frozen)
            with_parameters = replace(config, train=replace(config.train, init_with="parameters"))
            self.frozen.fits(with_parameters, abstract, state, tokenizer_sha256)
            stored = self.past.shapes(self.step)
            problems = _unlike(stored, state["params"], "params.")
            if (was := self.past.lora.alpha) != config.lora.alpha:
                problems.append(f"lora.alpha is {was} there, {config.lora.alpha} here")
        else:
            stored = self.past.whole_shapes(self.step)
            problems = _unlike(stored, abstract)
        if config.lora.rank and not self.beside and config.train.init_with != "parameters":
            rule = f'has no adapters, whose state train.init_with = "{config.train.init_with}" takes'
            raise WeightsError(f'{self._shown}: {rule}\n    fix: train.init_with = "parameters"')
        if config.train.init_with != "parameters":
            problems += self._of_state(config, stored, state)
        if problems:
            more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
            listed = "\n    ".join([*sorted(problems)[:_SHOWN], *more])
            fix = "name a run of the same module with the same model.settings and vocabulary"
            if isinstance(config.model, Architecture):
                fix = "name a run of the same [model] and vocabulary"
            noun = "arrays"
            if config.train.init_with != "parameters":
                noun = "arrays or settings"
                fix += '; or train.init_with = "parameters", for these alone'
            raise WeightsError(
                f"{self._shown}: {len(problems)} {noun} don't fit\n    {listed}\n    fix: {fix}"
            )
        if self.tokenizer_sha256 not in ("", tokenizer_sha256):
            fix = "prepare the tokens with the tokenizer that lies in its folder"
            raise WeightsError(f"{self._shown}: has another tokenizer than the tokens\n    fix: {fix}")

    def _of_state(self, config: Config, stored: Params, state: Any) -> Iterator[str]:
        """Yield what keeps a run from continuing with the optimizer's state or the step."""
        was, now = self.past.optimizer.name, config.optimizer.name
        if was != now:
            yield f"optimizer.name is {was} there, {now} here"
        else:
            yield from _unlike(self.past.optimizer_shapes(stored), state["opt_state"], "opt_state.")
        if config.train.init_with == "optimizer" and not optimizer.restarts(state["opt_state"]):
            yield f'optimizer.name = {now} counts its schedule with its moments: train.init_with = "step"'
        if config.train.init_with == "step" and self.step >= config.train.steps:
            yield f"train.steps = {config.train.steps} must be more than its step, {self.step}"

    @property
    def _shown(self) -> str:
        return f"{KEY}, {self.store.url}@{self.step}"


def _unlike(stored: Any, needed: Any, prefix: str = "") -> list[str]:
    """Return the arrays that two trees don't share."""
    was, now = (
        {
            prefix + jax.tree_util.keystr(path, simple=True, separator="."): (leaf.shape, str(leaf.dtype))
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (stored, needed)
    )
    problems = [f"{name} is missing" for name in now.keys() - was.keys()]
    problems += [f"{name} is of no array of this run" for name in was.keys() - now.keys()]
    shared = was.keys() & now.keys()
    problems += [
        f"{name} has shape {was[name][0]}, this run's is {now[name][0]}"
        for name in shared
        if was[name][0] != now[name][0]
    ]
    if prefix:  # parameters are cast
        problems += [
            f"{name} is {was[name][1]}, here {now[name][1]}"
            for name in shared
            if was[name][1] != now[name][1]
        ]
    return problems


def _require_unchanged(past: Past, base: Folder | Checkpoint) -> None:
    """Raise WeightsError unless these are the weights that the run's adapters were trained beside."""
    if past.base_sha256 != base.sha256:
        fix = "put the weights that it was trained beside back there"
        raise WeightsError(f"{past.base}: has other weights than the run was trained beside\n    fix: {fix}")


def merged(past: Past, params: Params) -> Params:
    """Add a checkpoint's adapters to the weights that they were trained beside.

    Raises:
        WeightsError: the weights are no longer there, or others.
    """
    if past.base.startswith("gs://") and not folders.MOUNT.is_dir():
        base: Folder | Checkpoint = Folder(folders.downloaded(past.base))
    else:
        base = named(past.base)
    _require_unchanged(past, base)
    if isinstance(past.model, ModuleConfig):
        from workload.modules import lora  # qwix takes seconds to import

        assert isinstance(base, Checkpoint)
        return lora.merged(base.whole(), params, past.lora)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
        decoder.shapes(past.architecture),
    )
    given = base.load(past.architecture, placed)
    return {**given, "layers": adapters.merged(given["layers"], params["layers"], past.lora)}
