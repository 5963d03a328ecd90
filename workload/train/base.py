"""Checkpoint of another run, by name: the parameters that a module's run begins with, or an extraction's.

run:first@400           step 400 of the run `first`, in the bucket or --dir
run:gs://B/runs/first@400, run:/tmp/training/runs/first@400
"""
# mypy: allow-untyped-calls

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import jax

from workload import command, folders
from workload.errors import ConfigError, Problem, WeightsError
from workload.model import adapters, decoder, huggingface
from workload.model.decoder import Params
from workload.modules.config import ModuleConfig
from workload.runs import location
from workload.runs.store import Store, open_run
from workload.train import record
from workload.train.past import Past, complete_step

_SHOWN = 8  # arrays in a message


def find(key: str, name: str, root: str | None = None) -> tuple[Store, int]:
    """Return the store of a run and its step, by a name as above.

    Args:
        key: of the setting.
        name: its value.
        root: parent of runs/; see `location.of_run`.

    Raises:
        ConfigError: no run with a step, or without a known place.
        RunError: there is no such run.
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
    return open_run(url), int(match["step"])


@dataclass(frozen=True)
class Base:
    """Checkpoint of another run."""

    past: Past
    step: int

    @classmethod
    def named(cls, name: str) -> "Base":
        """Open the checkpoint that `train.init_from` names; see `find`."""
        store, step = find("train.init_from", name)
        return cls(Past.read(store), complete_step(store, step))

    @property
    def sha256(self) -> str:
        """Identity of its parameters."""
        return hashlib.sha256(json.dumps(self.past.identity(self.step), sort_keys=True).encode()).hexdigest()

    def check(self, abstract: Params, tokenizer_sha256: str) -> None:
        """Check that it holds these arrays and no others, from tokens of this tokenizer.

        Raises:
            WeightsError: lists all that don't fit.
            RunError: it can't be read, or has adapters alone.
        """
        stored, needed = (
            {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape for path, leaf in leaves}
            for leaves in map(
                jax.tree_util.tree_leaves_with_path, (self.past.whole_shapes(self.step), abstract)
            )
        )
        problems = [f"{name} is missing" for name in needed.keys() - stored.keys()]
        problems += [f"{name} is of no array of this module" for name in stored.keys() - needed.keys()]
        problems += [
            f"{name} has shape {stored[name]}, the module's is {needed[name]}"
            for name in stored.keys() & needed.keys()
            if stored[name] != needed[name]
        ]
        if problems:
            more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
            listed = "\n    ".join([*sorted(problems)[:_SHOWN], *more])
            fix = "name a run of the same module with the same model.settings and vocabulary"
            raise WeightsError(
                f"{self._name}: {len(problems)} arrays don't fit\n    {listed}\n    fix: {fix}"
            )
        for name in self.past.store.list(f"{record.TOKENIZER}/{record.TOKENIZER}.json"):
            if hashlib.sha256(self.past.store.read(name)).hexdigest() != tokenizer_sha256:
                fix = "prepare the tokens with the tokenizer that lies in its folder"
                raise WeightsError(f"{self._name}: has another tokenizer than the tokens\n    fix: {fix}")

    def params(self, abstract: Params) -> Params:
        """See `Past.params`."""
        return self.past.params(self.step, abstract)

    def whole(self) -> Any:
        """Restore its parameters on this host."""
        return self.past.restore(self.step, whole_state=False)["params"]

    @property
    def _name(self) -> str:
        return f"train.init_from, {self.past.store.url}@{self.step}"


def merged(past: Past, params: Params) -> Params:
    """Add a checkpoint's adapters to the weights that they were trained beside.

    Raises:
        WeightsError: the weights are no longer there, or others.
    """
    if isinstance(past.model, ModuleConfig):
        from workload.modules import lora  # qwix takes seconds to import

        base = Base.named(past.base)
        _require(past, base.sha256)
        return lora.merged(base.whole(), params, past.lora)
    folder = folders.of_setting("train.init_from", past.base)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    _require(past, huggingface.digest(folder))
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
        decoder.shapes(past.architecture),
    )
    given = huggingface.load(folder, past.architecture, placed)
    return {**given, "layers": adapters.merged(given["layers"], params["layers"], past.lora)}


def _require(past: Past, sha256: str) -> None:
    """Raise WeightsError unless a run's adapters were trained beside the weights of this digest."""
    if past.base_sha256 != sha256:
        fix = "put the weights that it was trained beside back there"
        raise WeightsError(f"{past.base}: has other weights than the run was trained beside\n    fix: {fix}")
