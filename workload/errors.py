"""Exceptions of the package.

Errors that a user can fix derive from `WorkloadError`; the command line prints their text and exits with
their `exit_code`. Any other exception is a bug and keeps its traceback.
"""

from collections.abc import Sequence

from settings_schema.problem import Problem as Problem
from settings_schema.problem import listed


class WorkloadError(Exception):
    """The command can't continue; the text states the problem and its fix."""

    exit_code = 1


class ConfigError(WorkloadError):
    """Invalid settings, with all their problems."""

    exit_code = 2

    def __init__(self, source: str, problems: Sequence[Problem]):
        self.source = source
        self.problems = tuple(problems)
        super().__init__(listed(source, self.problems))


class DataError(WorkloadError):
    """Token files are missing, damaged or too small."""

    exit_code = 2


class WeightsError(WorkloadError):
    """Weights are missing, damaged or of another model."""

    exit_code = 2


class StoreError(WorkloadError):
    """The bucket or folder can't be read or written."""


class BoardError(WorkloadError):
    """Vertex AI TensorBoard or W&B is unreachable, or refuses a request."""


class OutageError(StoreError):
    """Storage has an outage; a retry may succeed later."""


class RunError(WorkloadError):
    """The stored run and the requested run don't match."""


class HopelessError(RunError):
    """A restart would fail again."""

    exit_code = 2


class TakenError(HopelessError):
    """Another start owns the run; this start must not write to it any more."""


class ClusterError(WorkloadError):
    """The workers can't connect, or a worker was lost."""
