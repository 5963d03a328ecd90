"""What an extraction computes with: a folder of Hugging Face's, or a checkpoint of a run of ours.

Qwen2.5-0.5B            a folder below $DATA_DIR
run:first@400           step 400 of the run `first`, in the bucket or --dir
run:gs://B/runs/first@400, run:/tmp/training/runs/first@400
"""
# mypy: allow-untyped-calls

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from workload import command
from workload.errors import ConfigError, Problem
from workload.model import huggingface
from workload.model.architecture import Architecture
from workload.model.decoder import Params
from workload.runs import archive, location
from workload.runs.checkpoints import FOLDER
from workload.runs.store import Store, open_run

_RUN = re.compile(r"run:(?P<run>.+)@(?P<step>[0-9]+)")


class Weights(Protocol):
    """A model that is kept somewhere."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def arch(self) -> Architecture:
        """All of the model."""

    def identity(self) -> dict[str, Any]:
        """What tells these weights from all others, wherever they lie."""

    def check(self) -> None:
        """Raises where they can't be what `arch` says, before anything depends on them."""

    def load(self, arch: Architecture, abstract: Params) -> Params:
        """Parameters of the first `arch.layers` layers, as `abstract` has them placed and cast."""


@dataclass(frozen=True)
class Folder:
    """Of Hugging Face's."""

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
        """The files' sha256."""
        return {"weights_sha256": huggingface.digest(self.path)}

    def check(self) -> None:
        """See `huggingface.check`."""
        huggingface.check(self.path, self.arch)

    def load(self, arch: Architecture, abstract: Params) -> Params:
        """See `huggingface.load`."""
        return huggingface.load(self.path, arch, abstract)


@dataclass(frozen=True)
class Checkpoint:
    """Of a run of ours: its parameters at a step, without the optimizer's state."""

    store: Store
    step: int

    @property
    def name(self) -> str:
        """As it is asked for."""
        return f"run:{self.store.url}@{self.step}"

    @cached_property
    def _past(self) -> archive.Past:
        return archive.Past.read(self.store)

    @property
    def arch(self) -> Architecture:
        """See `archive.Past.read`."""
        return self._past.model

    def identity(self) -> dict[str, Any]:
        """The run's settings, and which save it was: orbax draws names for the files of each."""
        files = "\n".join(self.store.list(f"{FOLDER}/{self.step}/"))
        return {
            "run_sha256": self._past.sha256,
            "step": self.step,
            "files_sha256": hashlib.sha256(files.encode()).hexdigest(),
        }

    def check(self) -> None:
        """Raises RunError where the step isn't complete."""
        archive.complete_step(self.store, self.step)

    def load(self, arch: Architecture, abstract: Params) -> Params:
        """See `archive.Past.params`."""
        return self._past.params(self.step, abstract)


def find(weights: str, data: Path, root: str | None) -> Weights:
    """What `model.weights` names.

    Args:
        weights: as it stands there.
        data: below which folders lie, $DATA_DIR.
        root: where runs/ is stored; see `location.of_run`.

    Raises:
        ConfigError: it names a run without a step, or nobody knows where.
        RunError: no such run was begun.
    """
    if not weights.startswith("run:"):
        return Folder(data / weights)
    match = _RUN.fullmatch(weights)
    if not match:
        rule = "must name a run and one of its steps: the newest would be another one after a restart"
        fix = f"e.g. run:first@400; `{command('checkpoints', 'list')}` lists them"
        raise ConfigError("workload extract", [Problem("model.weights", repr(weights), rule, fix)])
    url = match["run"]
    if "/" not in url:
        url, problems = location.of_run("runs", url, root)
        if problems:
            raise ConfigError("workload extract", problems)
    return Checkpoint(open_run(url), int(match["step"]))
