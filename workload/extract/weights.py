"""Weights for an extraction, as `train/base.py` names them."""
# mypy: allow-untyped-calls

from typing import Any, Protocol

from workload import folders
from workload.model.architecture import Architecture
from workload.model.decoder import Params
from workload.model.generation import Generation
from workload.train import base

_DESCRIPTIONS = ("config.json", "tokenizer.json")


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

    @property
    def tokenizer_sha256(self) -> str:
        """Identity of its own tokenizer.json; empty if it has none."""

    def check(self) -> None:
        """Raise if the weights don't match `arch`."""

    def load(self, model: Architecture, abstract: Params) -> Params:
        """Load parameters of the first `model.layers` layers, placed and cast like `abstract`."""


def described(weights: str, root: str | None) -> Weights:
    """Return the weights for an estimate: a bucket's folder that isn't mounted here without its tensors."""
    if weights.startswith("gs://") and not folders.MOUNT.is_dir():
        return base.Folder(folders.downloaded(weights, _DESCRIPTIONS), weights)
    return find(weights, root)


def find(weights: str, root: str | None) -> Weights:
    """Return the weights named by `model.weights`.

    Args:
        weights: value of the setting.
        root: parent of runs/; see `location.of_run`.

    Raises:
        ConfigError: a run without a step, or without a known place.
        RunError: there is no such run.
    """
    return base.named(weights, "model.weights", root)
