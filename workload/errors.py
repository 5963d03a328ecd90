"""The package's one family of exceptions.

Everything that a user can mend derives from `WorkloadError`; the command line prints
its text and ends with its `exit_code`. Anything else that escapes is a bug and keeps its
traceback.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class WorkloadError(Exception):
    """The command can't continue; the text says why and what to do."""

    exit_code = 1


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a setting.

    Attributes:
        key: where it stands, e.g. `model.heads` or `$WORKER_ID`.
        value: what stands there, as the user would write it.
        rule: what has to hold.
        fix: what to do about it.
    """

    key: str
    value: str
    rule: str
    fix: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value}: {self.rule}\n    fix: {self.fix}"


class ConfigError(WorkloadError):
    """Settings that can't be used; carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, source: str, problems: Sequence[Problem]):
        self.source = source
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = [f"{source}: {count}", *(f"  {problem}" for problem in self.problems)]
        super().__init__("\n".join(lines))


class DataError(WorkloadError):
    """Token files that are missing, damaged or too small."""

    exit_code = 2


class WeightsError(WorkloadError):
    """Weights of a model that are missing, damaged or another model's."""

    exit_code = 2


class StoreError(WorkloadError):
    """The bucket or folder couldn't be read or written."""


class BoardError(WorkloadError):
    """Vertex AI TensorBoard wasn't reached, or refused what was to be written."""


class OutageError(StoreError):
    """Storage answers nobody for now; the same request may be served later."""


class RunError(WorkloadError):
    """The run on storage and the run asked for don't fit together."""


class HopelessError(RunError):
    """The same start again would come to the same end."""

    exit_code = 2


class TakenError(HopelessError):
    """Another start is at work on the run; this one has nothing to say about it any more."""


class ClusterError(WorkloadError):
    """The workers couldn't meet, or one of them was lost."""
