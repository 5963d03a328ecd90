"""Weights for an extraction: a Hugging Face folder, or a checkpoint of a training run.

Qwen2.5-0.5B            a folder below $DATA_DIR
gs://B/data/qwen        a folder of the mounted checkpoint bucket
run:first@400           step 400 of the run `first`, in the bucket or --dir
run:gs://B/runs/first@400, run:/tmp/training/runs/first@400
"""
# mypy: allow-untyped-calls

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from workload import folders
from workload.model import huggingface
from workload.model.architecture import Architecture
from workload.model.decoder import Params
from workload.model.generation import Generation
from workload.runs.store import Store
from workload.train import base
from workload.train.past import Past, complete_step


class Weights(Protocol):
    """A stored model."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def arch(self) -> Architecture:
        """Architecture of the whole model."""

    def identity(self) -> dict[str, Any]:
        """Return an identity of these weights, independent of their place."""

    @property
    def generation(self) -> Generation:
        """Begin and end tokens."""

    def check(self) -> None:
        """Raise if the weights don't match `arch`."""

    def load(self, arch: Architecture, abstract: Params) -> Params:
        """Load parameters of the first `arch.layers` layers, placed and cast like `abstract`."""


@dataclass(frozen=True)
class Folder:
    """A Hugging Face folder."""

    path: Path

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    @cached_property
    def arch(self) -> Architecture:
        """See `huggingface.read_architecture`."""
        return huggingface.read_architecture(self.path)

    def identity(self) -> dict[str, Any]:
        """Return the files' sha256."""
        return {"weights_sha256": huggingface.digest(self.path)}

    @property
    def generation(self) -> Generation:
        """See `Generation.of_weights`."""
        return Generation.of_weights(self.path)

    def check(self) -> None:
        """See `huggingface.check`."""
        huggingface.check(self.path, self.arch)

    def load(self, arch: Architecture, abstract: Params) -> Params:
        """See `huggingface.load`."""
        return huggingface.load(self.path, arch, abstract)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a training run: its parameters at a step, without optimizer state."""

    store: Store
    step: int

    @property
    def name(self) -> str:
        """As written in the config."""
        return f"run:{self.store.url}@{self.step}"

    @cached_property
    def _past(self) -> Past:
        return Past.read(self.store)

    @property
    def arch(self) -> Architecture:
        """See `Past.read`."""
        return self._past.architecture

    def identity(self) -> dict[str, Any]:
        """See `Past.identity`."""
        return self._past.identity(self.step)

    @property
    def generation(self) -> Generation:
        """See `Past.read`."""
        return self._past.generation

    def check(self) -> None:
        """Raise RunError if the step isn't complete."""
        complete_step(self.store, self.step)

    def load(self, arch: Architecture, abstract: Params) -> Params:
        """See `Past.params`."""
        return self._past.params(self.step, abstract)


def find(weights: str, root: str | None) -> Weights:
    """Return the weights named by `model.weights`.

    Args:
        weights: value of the setting.
        root: parent of runs/; see `location.of_run`.

    Raises:
        ConfigError: a run without a step, or without a known place.
        RunError: there is no such run.
    """
    if not weights.startswith("run:"):
        return Folder(folders.of_setting("model.weights", weights))
    return Checkpoint(*base.find("model.weights", weights, root))
